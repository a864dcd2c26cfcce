"""What becomes of the gain that a plan promises: candidates chosen in single states, then played in what really comes.

In states of windows that agents train on, out of 12, 96 or 960 candidates the one is chosen that is cheapest if no job
comes, in sampled futures, or in the true one. Its cost in the true future is then compared with that of the plan's
base: where it decides to the end, or for ten minutes or an hour and then the base. See docs/notes/planning-states.md.
"""

from __future__ import annotations

import time

import _common
import numpy as np
from _common import Check

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.futures import FutureSource
from rlpto.core.records import INTERVAL
from rlpto.core.rewards import weigh
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import FloatArray
from rlpto.planning.branching import drawn_candidates
from rlpto.planning.compiled_loop import Loop, look_around, run_until
from rlpto.planning.planner import Planner
from rlpto.planning.rollout import ACCURACY, COUNT, Start, roll_out
from rlpto.simulator.kernels import is_over

COUNTS = (12, 96, 960)
"""Candidates beside the base; the smaller sets are the first ones of the larger."""
HELD_S = {"for 10 minutes": 600.0, "for an hour": 3600.0, "to the end": np.inf}
FORESEEN = ("no job comes", "16 sampled futures", "the true future")
LARGEST_WORK = 10**9
"""No rollout is cut short."""
MIN_JOBS = 8
"""States with fewer jobs leave nothing to choose."""


class Witness(Planner):
    """A planner that looks on in some of its states: what its candidates cost, and what chosen ones come to."""

    def __init__(self, planner: Planner, oracle: FutureSource, sampler: FutureSource, share: float) -> None:
        """share: of states with at least MIN_JOBS jobs that are looked at."""
        self.__dict__.update(planner.__dict__)
        self._oracle, self._sampler, self._share = oracle, sampler, share
        self._choice = np.random.default_rng(3)
        self.promised: list[FloatArray] = []
        self.kept: list[FloatArray] = []

    def __call__(self, state: ClusterState) -> Allocation:
        self._sampler.notice(state)
        return super().__call__(state)

    def _best(self, state: ClusterState) -> FloatArray:
        if len(state.jobs) >= MIN_JOBS and self._choice.random() < self._share:
            self._look(state)
        return super()._best(state)

    def _look(self, state: ClusterState) -> None:
        """Note [3, COUNTS] what is promised, by what is foreseen, and [3, COUNTS, HELD_S] what is kept.

        Both in percent of what the base costs if no job comes.
        """
        tried = drawn_candidates(self._base[None], max(COUNTS), self.options.spread, seed=len(self.kept))
        truth = self._scenes.build(state, self._oracle(state)[0])
        alone, true = self._cost(self._scenes.build(state), tried), self._cost(truth, tried)
        sampled = np.mean([self._cost(self._scenes.build(state, one), tried) for one in self._sampler(state)], axis=0)
        promised, kept = np.zeros((3, len(COUNTS))), np.zeros((3, len(COUNTS), len(HELD_S)))
        base = [self._held(*truth, tried[0], hold) for hold in HELD_S.values()]
        for i, costs in enumerate((alone, sampled, true)):
            for j, count in enumerate(COUNTS):
                best = int(costs[: 1 + count].argmin())
                promised[i, j] = costs[0] - costs[best]
                kept[i, j] = [
                    before - self._held(*truth, tried[best], hold)
                    for hold, before in zip(HELD_S.values(), base, strict=True)
                ]
        self.promised.append(100.0 * promised / alone[0])
        self.kept.append(100.0 * kept / alone[0])

    def _cost(self, scene: tuple[Loop, Start], tried: FloatArray) -> FloatArray:
        cost = np.zeros(len(tried))
        roll_out(*scene, tried, LARGEST_WORK, self._reward, cost)
        return cost

    def _held(self, loop: Loop, start: Start, weights: FloatArray, hold: float) -> float:
        """What it costs to decide by these weights for `hold` seconds, and by the base after that."""
        for name, part in start._asdict().items():
            getattr(loop.world, name)[:1] = part
        loop.ordered_until[0] = -np.inf
        total, terms = np.zeros(1, INTERVAL), np.zeros(COUNT)
        look_around(loop, 0)
        run_until(loop, 0, weights[None], loop.world.clusters["time"][0] + hold, total)
        if not is_over(loop.world, 0):
            run_until(loop, 0, self._base[None], np.inf, total)
        weigh(total, self._reward, terms)
        return float(terms[ACCURACY] - terms.sum())


def look_on(load: float, limit: int, share: float) -> Witness:
    """A witness that has looked on in so many windows of Pollux's workload that agents train on."""
    settings = [*_common.TIME_ONLY, "queue.classes=weighted"]
    settings += [f"workload.load={load}", f"workload.windows.limit={limit}", "forecast.horizon=100"]
    experiment = Experiment(load_config(_common.CONFIGS / "results" / "pollux.yaml", settings))
    base = _common.CONFIGS / "tuned" / "pollux-jct-weighted.yaml"
    witness: Witness | None = None
    for window in experiment.windows("train"):
        planner = experiment.policy(f"planner:base={base}")
        assert isinstance(planner, Planner)
        now = Witness(
            planner, experiment.futures("oracle", window, 0), experiment.futures("forecast", window, 0), share
        )
        if witness is not None:
            now.promised, now.kept, now._choice = witness.promised, witness.kept, witness._choice
        experiment.run_policy(now, window, 0)
        witness = now
    assert witness is not None
    return witness


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--load", type=float, default=1.1)
    arguments.add_argument("--limit", type=int, default=10, help="windows")
    arguments.add_argument("--share", type=float, default=0.03, help="of states that are looked at")
    options = arguments.parse_args()
    began = time.process_time()
    with _common.bad_input():
        witness = look_on(options.load, options.limit, options.share)
    promised, kept = np.array(witness.promised), np.array(witness.kept)
    error = kept.std(axis=0) / np.sqrt(len(kept))
    if not options.json:
        print(
            f"{len(kept)} states, {time.process_time() - began:.0f} CPU-s; percent of the base's cost if no job comes\n"
        )
        print("| chosen by | candidates | promised | " + " | ".join(f"kept, {held}" for held in HELD_S) + " |")
        print("| --- | --- | --- | " + " | ".join("---" for _ in HELD_S) + " |")
        for i, foreseen in enumerate(FORESEEN):
            for j, count in enumerate(COUNTS):
                found = " | ".join(f"{kept[:, i, j, k].mean():.2f} ± {error[i, j, k]:.2f}" for k in range(len(HELD_S)))
                print(f"| {foreseen} | {count} | {promised[:, i, j].mean():.2f} | {found} |")
    alone, true = (float(kept[:, i, -1, -1].mean() / promised[:, i, -1].mean()) for i in (0, 2))
    checks = [
        Check("share of what 960 candidates promise that is kept, no job foreseen", alone, "", 0.5, False),
        Check("the same, the true future known", true, "", 0.99, True),
    ]
    _common.finish(checks, options.json)


if __name__ == "__main__":
    main()
