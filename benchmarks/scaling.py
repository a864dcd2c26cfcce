"""Work with --workers: its speed-up on raylets of this machine, and how efficient many slots are by measured costs.

    python benchmarks/scaling.py [speedup] [slots] [--repeats CELLS]

Efficiency is the time of one process over that of all slots. `slots` simulates the driver as a serial process: tasks
begin in order on the next free slot, at most twice as many are in flight as there are slots (`ray_workers.AHEAD`).
"""

from __future__ import annotations

import heapq
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from _common import CONFIGS, ROOT, Found, main, progress, seconds_of

from rlpto.agents.settings import WindowSettings
from rlpto.agents.window_training import Learner, learn_by_ppo
from rlpto.bench.results import read_rows
from rlpto.bench.submissions import board
from rlpto.bench.suite import FIFO_FILE, REALISTIC, Case, cases
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.evaluation.runner import BegunEvaluation, Cell, Evaluation, evaluate_all, run_measured
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment, prepare, run_cell
from rlpto.experiments.inputs import runner_for
from rlpto.experiments.on_host import VERSIONS, Stored, call_there
from rlpto.experiments.ray_workers import AHEAD, RayWorkers
from rlpto.io.arrays import FloatArray
from rlpto.io.workers import LocalWorkers, Workers
from rlpto.policies.bonus_network import first_network
from rlpto.ray_cluster.nodes.environment import ray_environment
from rlpto.ray_cluster.nodes.local import start_nodes
from rlpto.ray_cluster.nodes.processes import make_folder, remove_cluster, unused_folder

SLOTS, TASKS = (16, 64, 1_000), 2_000
WINDOWS, WINDOW_S, SPREAD = 200_000, 0.005, 0.3
"""Windows of a training, CPU seconds of one (12,000 of `submissions/agent_microsoft` took 55), and how its logarithm
varies."""
ROLLOUTS = 128, 1_024, 8_192, 65_536


class Costs(NamedTuple):
    """CPU seconds of the driver: to submit a task, to fetch its result, to write a finished cell, and of one wait for
    `TASKS` tasks. start: of a process on a host, until it computes."""

    submit: float
    fetch: float
    write: float
    wait: float
    start: float


@contextmanager
def raylets(count: int) -> Iterator[RayWorkers]:
    """Nodes of one CPU each, and a head without any."""
    folder = unused_folder()
    with ray_environment(folder):
        make_folder(folder)
        try:
            head, *_ = start_nodes([{"cpus": 1, "gpus": 0}] * count, progress, cpus=0)
            with RayWorkers(str(head.gcs_address)) as workers:
                yield workers
        finally:
            remove_cluster(folder)


def evaluation(workers: Workers, out: str) -> Evaluation:
    """Three policies on eight windows of the quickstart."""
    config = load_config(CONFIGS / "quickstart.yaml", ["workload.windows.limit=8", "policies=[fifo,srtf,las]"])
    experiment = Experiment(config)
    return Evaluation(experiment.cells(), runner_for(workers, config), Path(out), experiment.outcome(), config.reward)


def _evaluate(one: Evaluation, workers: Workers) -> None:
    list(evaluate_all([one], False, workers))


def _keep_all(begun: BegunEvaluation, outcome: Any) -> None:
    for cell in begun.cells:
        begun.keep(cell, outcome)


def speedup(_: int) -> Found:
    """The same evaluation in this process, on one raylet and on two. Each follows a first run, in which processes
    start."""

    def seconds(workers: Workers) -> float:
        for _ in range(2):
            with TemporaryDirectory() as out:
                one = evaluation(workers, out)
                taken = seconds_of(partial(_evaluate, one, workers), time.perf_counter)
        return taken

    found = {"this process": seconds(LocalWorkers())}
    for count in (1, 2):
        with raylets(count) as workers:
            found[f"{count} CPUs of Ray"] = seconds(workers)
    return [], {
        f"24 cells in {name}, s": f"{taken:.2f} (speed-up {found['this process'] / taken:.2f})"
        for name, taken in found.items()
    }


def slots(repeats: int) -> Found:
    """Efficiency of the leaderboard's realistic division, and of a training by the number of windows in an update."""
    rng = np.random.default_rng(0)
    windows, policies = realistic()
    samples: dict[str, list[float]] = {}
    for policy in dict.fromkeys(policies):
        drawn = [windows[place] for place in rng.integers(len(windows), size=repeats)]
        measured = [timed_cell(policy, *one) for one in drawn]
        samples[policy] = [seconds for seconds, _ in measured]
        progress(f"{policy.rpartition('/')[2]}: {samples[policy][-1]:.2f} s")
    paid, size = costs(measured[-1][1])
    updates = {rollout: update_seconds(rollout) for rollout in ROLLOUTS}
    cells = np.array([samples[policy][rng.integers(repeats)] for _ in windows for policy in policies])
    low, middle, high = np.quantile(cells, [0.1, 0.5, 0.9])
    facts: dict[str, object] = {f"driver, {name}, ms": f"{1000 * value:.2f}" for name, value in paid._asdict().items()}
    facts |= {
        "cells of the board": f"{len(cells):,}",
        "a cell, CPU-s": f"{middle:.2f} (80 % of {low:.2f} to {high:.2f}, longest {cells.max():.1f})",
        "its record, kB": f"{size / 1000:.0f}",
    }
    facts |= {f"PPO's update with {rollout:,} windows, s": f"{taken:.3f}" for rollout, taken in updates.items()}
    for count in SLOTS:
        for name, seconds in (
            ("board", cells),
            ("board, longest cells first", np.sort(cells)[::-1]),
            ("ten boards, longest cells first", np.sort(np.tile(cells, 10))[::-1]),
        ):
            taken = makespan(seconds, paid, count)
            facts[f"{count} slots, {name}"] = f"efficiency {seconds.sum() / count / taken:.2f}, {taken:.0f} s"
        for rollout in ROLLOUTS:
            played = rng.lognormal(-(SPREAD**2) / 2, SPREAD, rollout) * WINDOW_S
            parts = np.array([part.sum() for part in np.array_split(played, min(AHEAD * count, rollout // 2))])
            taken = makespan(parts, paid._replace(write=0.0, start=0.0), count) + updates[rollout]
            share = (played.sum() + updates[rollout]) / count / taken
            name = f"{count} slots, training of {WINDOWS:,} windows by {rollout:,}"
            facts[name] = f"efficiency {share:.2f}, {WINDOWS / rollout * taken:.0f} s"
    return [], facts


def realistic() -> tuple[list[tuple[Case, str]], list[str]]:
    """Windows of the realistic division, and the policies of all submissions."""
    chosen = {case.id: case for case in cases() if case.counts and case.division == REALISTIC}
    windows = [(chosen[row.case], row.window) for row in read_rows(FIFO_FILE) if row.case in chosen]
    return windows, [policy for card, _ in board(ROOT / "submissions", ROOT / "runs") for policy in card.policies]


def timed_cell(policy: str, case: Case, window: str) -> tuple[float, Any]:
    """Run a cell in this process, as in one that has run none of its case. Returns the CPU seconds, and what its task
    would return."""
    config = case.config().model_copy(update={"policies": (policy,)})
    prepare.cache_clear()
    outcomes, cell = list[Any](), Cell(policy, window, config.seed)
    run = partial(run_cell, config, sealed=True)
    return seconds_of(lambda: outcomes.append(run_measured(run, None, cell))), outcomes[0]


def update_seconds(rollout: int) -> float:
    """Seconds that PPO takes for an update of all constants and a network, between two rollouts."""
    rng, learner = np.random.default_rng(0), Learner(len(ACTION_FEATURES) + len(first_network(0)), 0.02)
    drawn, losses = learner.draw(rng, rollout // 2), rng.lognormal(size=rollout)
    call = partial(learn_by_ppo, learner, drawn, losses, WindowSettings())
    return float(np.median([seconds_of(call, time.perf_counter) for _ in range(5)]))


FIRST = """
import sys, time
sys.path.insert(0, "benchmarks")
import scaling
scaling.timed_cell("fifo", *scaling.realistic()[0][0])
print(time.process_time() - scaling.timed_cell("fifo", *scaling.realistic()[0][0])[0])
"""
"""Prints the CPU seconds of a process that are not for its first cell."""


class Echo:
    """A task that returns the same result at once."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def __call__(self, _: object) -> Any:
        return self.result


def costs(outcome: Any) -> tuple[Costs, int]:
    """The driver's costs with a cell's outcome as the result of each task, and the size of its record [bytes]."""
    import ray

    start = subprocess.run([sys.executable, "-c", FIRST], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout

    def seconds(call: Callable[[], object]) -> float:
        return seconds_of(call, time.thread_time)

    with raylets(2) as workers, TemporaryDirectory() as out:
        one = evaluation(workers, out)
        begun, stored, task = BegunEvaluation(one), Stored[Any].of(Echo(outcome)), ray.remote(num_cpus=1)(call_there)
        pending = list[Any]()
        submit = seconds(lambda: pending.extend(task.remote(stored, VERSIONS, one.cells[0]) for _ in range(TASKS)))
        ray.wait(pending, num_returns=TASKS)
        wait = np.median([seconds(lambda: ray.wait(pending, num_returns=TASKS, timeout=0)) for _ in range(20)])
        fetch = seconds(lambda: [ray.get(reference) for reference in pending])
        write = seconds(partial(_keep_all, begun, outcome))
    each = Costs(submit / TASKS, fetch / TASKS, write / len(one.cells), float(wait), float(start))
    return each, len(outcome.record)


def makespan(seconds: FloatArray, paid: Costs, slots: int) -> float:
    """Time until the results of tasks that take `seconds` [n] are written. Each round of the driver waits twice."""
    free, pending, now, begun = [paid.start] * slots, list[float](), 0.0, 0
    while pending or begun < len(seconds):
        while begun < len(seconds) and len(pending) < AHEAD * slots:
            now += paid.submit
            end = max(heapq.heappop(free), now) + float(seconds[begun])
            heapq.heappush(free, end)
            heapq.heappush(pending, end)
            begun += 1
        now = max(now, pending[0]) + 2 * paid.wait * len(pending) / TASKS
        while pending and pending[0] <= now:
            heapq.heappop(pending)
            now += paid.fetch + paid.write
    return now


if __name__ == "__main__":
    main(__doc__, {"speedup": speedup, "slots": slots}, repeats=2)
