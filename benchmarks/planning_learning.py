"""What learning is worth to the planner, at an equal number of rollouts; see docs/notes/planning-learnt.md.

PART is one of: portfolio (a learnt portfolio against random perturbations), proposals (those of
networks against the portfolio that they begin with, and against random changes of it), learn and learn-proposals (make
what these measure again, from training windows). Time alone counts, and classes are weighted.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import _common
import numpy as np
from _common import TIME_ONLY, Check
from planning import FRESH_SEED, Rows, as_table, interval, mean_jct

from rlpto.agents.proposer import Proposer, load_proposer, save_proposer
from rlpto.core.rewards import RewardWeights
from rlpto.envs.plan_env import PlanEnv, look
from rlpto.envs.settings import EnvSettings
from rlpto.evaluation.metrics import completion_times
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import FloatArray
from rlpto.planning.branching import Branch, Keeper, cost_matrix, drawn_candidates
from rlpto.planning.planner import Planner, PlannerOptions, perturbed
from rlpto.planning.portfolio import always_tried, choose_greedily, refine
from rlpto.policies.steering_file import load_portfolio, load_steering_weights, save_portfolio

PARTS = ("portfolio", "proposals", "learn", "learn-proposals")
REWARD = RewardWeights(accuracy=0, time=1, resources=0, rescale=0)
SIZE = 8
"""Vectors in a portfolio."""
WORK = {"pollux": 400_000, "synthetic": 20_000}
"""Speeds that a rollout looks at while portfolios are learnt."""
STATES = {"pollux": {0.7: (40, 0.1), 0.9: (40, 0.1), 1.1: (40, 0.1)}, "synthetic": {0.7: (4, 0.04), 0.9: (8, 0.06)}}
"""Training windows at each load, and the share of their plans that states are kept of."""
DRAWN, ROUNDS = 300, 600
"""Candidates tried in all states, and changes tried of the portfolio chosen from them."""
CELLS = {"pollux": (0.5, 0.7, 0.9, 1.1), "synthetic": (0.9,)}
ROLLOUTS = {"pollux": (10, 26), "synthetic": (10,)}
"""In each plan, the base and the plan that stands among them."""
NETWORKS = {
    "expert iteration": _common.CONFIGS / "portfolios" / "pollux-proposals.zip",
    "and PPO": _common.ROOT / "runs" / "pollux-proposals-ppo.zip",
}
PPO_STEPS = 60_000
CLAIMED = ("pollux",)
"""Workloads on which the learnt portfolio is claimed to lower mean JCT: over all loads, at the fewest rollouts."""


def base_of(workload: str) -> Path:
    """Weights tuned for mean JCT under weighted classes."""
    return _common.CONFIGS / "tuned" / f"{workload}-jct-weighted.yaml"


def portfolio_of(workload: str) -> Path:
    """That of synthetic is no good, and does not come with RLPTO."""
    folder = _common.CONFIGS / "portfolios" if workload in CLAIMED else _common.ROOT / "runs"
    return folder / (f"{workload}.yaml" if workload in CLAIMED else f"{workload}-portfolio.yaml")


def experiment_of(workload: str, load: float, *settings: str) -> Experiment:
    given = [*TIME_ONLY, "queue.classes=weighted", f"workload.load={load}", *settings]
    return Experiment(load_config(_common.CONFIGS / "results" / f"{workload}.yaml", given))


def states_of(workload: str) -> list[Branch]:
    """States that a planner with random candidates met on training windows."""
    found: list[Branch] = []
    for load, (count, share) in STATES[workload].items():
        experiment = experiment_of(workload, load)
        policy = experiment.policy(f"planner:base={base_of(workload)},portfolio=[],perturbations=8")
        assert isinstance(policy, Planner)
        keeper, names = Keeper(policy, share), experiment.windows("train")
        for name in names[:: max(1, len(names) // count)][:count]:
            experiment.run_policy(keeper, name, 0)
        found += keeper.kept
    return found


def learn(workload: str) -> Rows:
    """Make a portfolio again; what it leaves of the cost of the states that it was and was not learnt on."""
    states, work = states_of(workload), WORK[workload]
    halves = states[::2], states[1::2]
    tuned = sorted((_common.CONFIGS / "tuned").glob("*.yaml"))
    around = np.array([load_steering_weights(path) for path in [base_of(workload), *tuned]])
    candidates = drawn_candidates(around, DRAWN, 0.4, seed=0)
    costs = cost_matrix(halves[0], candidates, work, REWARD)
    chosen = candidates[choose_greedily(costs, SIZE, always_tried(halves[0], work, REWARD))]
    found, _ = refine(chosen, halves[0], ROUNDS, work, REWARD, seed=0)
    save_portfolio(found, portfolio_of(workload))
    rows: Rows = []
    for what, half in zip(("learnt on", "others"), halves, strict=True):
        anyway = always_tried(half, work, REWARD)
        cells: dict[str, object] = {"workload": workload, "states": f"{len(half)}, {what}"}
        for name, portfolio in (("tuned files", around), ("chosen", chosen), ("refined", found)):
            best = np.minimum(cost_matrix(half, portfolio, work, REWARD).min(axis=1), anyway)
            cells[f"{name} ({len(portfolio)}) save %"] = f"{100 * (anyway - best).mean():.3f}"
        rows.append(cells)
    return rows


def portfolio(workloads: Sequence[str], limit: int, split: str) -> tuple[list[Check], Rows]:
    """The learnt portfolio and perturbations against perturbations alone, equally many rollouts in each plan."""
    checks: list[Check] = []
    rows: Rows = []
    for workload in workloads:
        loads = CELLS[workload]
        size = len(load_portfolio(portfolio_of(workload)))
        for rollouts in ROLLOUTS[workload]:
            with_it, without = [], []
            for load in loads:
                fresh = [f"seed={FRESH_SEED}"] if split == "test" else []
                experiment = experiment_of(workload, load, f"workload.windows.limit={limit}", *fresh)
                names = experiment.windows(split)
                base, count = f"planner:base={base_of(workload)}", rollouts - 2
                one = f"{base},portfolio=[{portfolio_of(workload)}],perturbations={count - size}"
                with_it.append(mean_jct(experiment, one, names))
                without.append(mean_jct(experiment, f"{base},portfolio=[],perturbations={count}", names))
                rows.append(row(workload, f"{load}", rollouts, with_it[-1:], without[-1:]))
            if len(loads) > 1:
                rows.append(row(workload, "all", rollouts, with_it, without))
            if workload in CLAIMED and rollouts == min(ROLLOUTS[workload]):
                _, _, high = interval((np.concatenate(with_it), np.concatenate(without)))
                what = f"learnt portfolio, {workload}, {rollouts} rollouts, upper end of the interval"
                checks.append(Check(what, high, "of the mean JCT without", 1.0, False))
    return checks, rows


def seen_states(settings: EnvSettings) -> list[Branch]:
    """States on training windows of Pollux's workload, with what a network sees of them."""
    found: list[Branch] = []
    for load in (1.1, 0.9):
        experiment = experiment_of("pollux", load, "workload.draws=80")
        policy = experiment.policy(f"planner:base={base_of('pollux')},portfolio=[],perturbations=8")
        assert isinstance(policy, Planner)
        keeper = Keeper(policy, 0.06, look(settings))
        for name in experiment.windows("train"):
            experiment.run_policy(keeper, name, 0)
        found += keeper.kept
    return found


def learn_proposals() -> Rows:
    """Train networks by expert iteration and then by PPO; percent that they save in states learnt on."""
    from rlpto.agents.proposals import Proposals, expert_iteration

    settings, anchors, work = EnvSettings(), load_portfolio(portfolio_of("pollux")), WORK["pollux"]
    states = seen_states(settings)
    learner = Proposals(lambda: PlanEnv(states, settings, anchors, work, REWARD), anchors, seed=0)
    course = expert_iteration(learner, states, 5, 4, work, REWARD, seed=0)
    save_proposer(Proposer(learner.network, anchors, settings), NETWORKS["expert iteration"])
    learner.ppo.learn(PPO_STEPS)
    save_proposer(Proposer(learner.network, anchors, settings), NETWORKS["and PPO"])
    anyway = always_tried(states, work, REWARD)
    best = np.minimum(cost_matrix(states, learner(states), work, REWARD).min(axis=1), anyway)
    saved = [*course, 100 * (anyway - best).mean()]
    names = ["the portfolio", *(f"expert iteration {i + 1}" for i in range(5)), "and PPO"]
    return [{"proposals": name, "saves %": f"{one:.3f}"} for name, one in zip(names, saved, strict=True)]


def proposals(limit: int, split: str) -> tuple[list[Check], Rows]:
    """Ten rollouts in each plan: what is tried beside the base and the plan that stands."""
    anchors, rng = load_portfolio(portfolio_of("pollux")), np.random.default_rng(4)
    networks = {name: load_proposer(path) for name, path in NETWORKS.items()}
    ways: dict[str, Proposer | Callable[..., FloatArray]] = {
        "the portfolio": lambda *_: anchors,
        "random changes of it": lambda *_: perturbed(anchors, 0.25, rng),
        **networks,
    }
    found: dict[str, list[FloatArray]] = {name: [] for name in ways}
    for load in (0.7, 0.9, 1.1):
        fresh = [f"seed={FRESH_SEED}"] if split == "test" else []
        experiment = experiment_of("pollux", load, f"workload.windows.limit={limit}", *fresh)
        config, names = experiment.config, experiment.windows(split)
        options = PlannerOptions(base=base_of("pollux"), portfolio=(), perturbations=0)
        for name, way in ways.items():
            planner = Planner(options, config.queue, config.simulator, config.reward, way)
            records = [experiment.run_policy(planner, window, 0) for window in names]
            found[name].append(np.array([completion_times(record.jobs).mean() for record in records]))
    rows: Rows = []
    for other, one in itertools.combinations(ways, 2):
        ratio, low, high = interval((np.concatenate(found[one]), np.concatenate(found[other])))
        rows.append(
            {"tried": one, "against": other, "windows": sum(map(len, found[one])), "ratio": f"{ratio:.4f}"}
            | {"95 % interval": f"{low:.4f} to {high:.4f}"}
        )
    return [], rows


def row(
    workload: str, load: str, rollouts: int, ours: Sequence[FloatArray], theirs: Sequence[FloatArray]
) -> dict[str, object]:
    """A line of the table: ratio of mean JCT, paired by window."""
    ratio, low, high = interval((np.concatenate(ours), np.concatenate(theirs)))
    count = sum(map(len, ours))
    cells: dict[str, object] = {"workload": workload, "load": load, "rollouts": rollouts, "windows": count}
    return cells | {"learnt / random": f"{ratio:.4f}", "95 % interval": f"{low:.4f} to {high:.4f}"}


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("part", metavar="PART", choices=PARTS, help=f"one of {', '.join(PARTS)}")
    arguments.add_argument("--workload", choices=tuple(WORK), help="portfolio, learn: of this one (pollux)")
    arguments.add_argument("--limit", type=int, default=40, help="windows of each cell")
    arguments.add_argument("--split", choices=("test", "validation"), default="test")
    options = arguments.parse_args()
    if _common.data_folder() is None:
        _common.refuse(f"{options.part}: needs traces and profiles, expected their folder in $RLPTO_DATA")
    began = time.process_time()
    checks: list[Check] = []
    rows: Rows = []
    with _common.bad_input():
        workloads = [options.workload] if options.workload else list(CLAIMED)
        if options.part == "learn-proposals":
            rows = learn_proposals()
        elif options.part == "proposals":
            checks, rows = proposals(options.limit, options.split)
        elif options.part == "learn":
            rows = [one for workload in workloads for one in learn(workload)]
        else:
            checks, rows = portfolio(workloads, options.limit, options.split)
    if not options.json:
        print(f"{as_table(rows)}\n\n{time.process_time() - began:.0f} CPU-s", flush=True)
    _common.finish(checks, options.json)


if __name__ == "__main__":
    main()
