"""The search of an index's weights on windows at several loads, which compiled code plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache, lru_cache, partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from rlpto.core.jobs import ACCURACY_LEVELS
from rlpto.core.rewards import RewardWeights
from rlpto.envs.compiled_batch import build_batch
from rlpto.envs.whole_windows import WindowPlayer, per_job
from rlpto.evaluation.weight_search import Parameter, SearchSettings, SearchState, minimise
from rlpto.experiments.config import Config
from rlpto.experiments.environments import workload_of
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.files import is_there
from rlpto.io.interrupts import Interrupted
from rlpto.planning.compiled_loop import CompiledBeliefs
from rlpto.policies.index_weights import IndexWeights

HOUR = 3600.0
SLOWEST_CANDIDATE = 3.0
"""A candidate is stopped after this multiple of the start's duration, because it may never finish."""
TIME_ALONE = RewardWeights(accuracy=0.0, time=1.0, resources=0.0, rescale=0.0)
"""Reward weights whose negative total is the sum of all JCTs, in hours."""
SHORTFALL_ALONE = RewardWeights(
    accuracy=0.0, time=0.0, resources=0.0, rescale=0.0, shortfall=1.0, classes=(1.0, 1.0, 1.0)
)
"""Reward weights whose negative total is the accuracy-hours lost."""


Goal = Literal["reward", "jct", "accuracy", "shortfall"]
"""Quantity that tuning improves: total reward, mean JCT, the mean time to 95 % of the accuracy that a job can gain, or
accuracy-hours lost. The last two are blended with JCT, see `BLENDED`."""
BLENDED: Mapping[Goal, float] = {"accuracy": 0.8, "shortfall": 0.7}
"""Accuracy goals, with the exponent of the goal's quantity in its geometric mean with JCT. Without JCT, the ends of
jobs would be postponed without limit."""
LEVEL = ACCURACY_LEVELS.index(0.95)
"""Column of `reached` in a job's record that the goal is about."""

INDEX_RANGES: Mapping[str, tuple[float, float]] = {
    "remaining": (-2.0, 0.5),
    "remaining_squared": (-0.25, 0.25),
    "load_remaining": (-1.0, 1.0),
    "priority": (0.0, 4.0),
    "age": (-1.0, 1.0),
    "attained": (-1.0, 1.0),
    "start": (-2.0, 8.0),
    "held": (0.0, 4.0),
    "held_remaining": (-0.5, 0.5),
}
"""Ranges in which the weights of the index are searched. `gain` stays: only ratios of weights matter."""
SLOPE_RANGES: Mapping[str, tuple[float, float]] = {"slope": (-0.5, 2.0), "slope_start": (-1.0, 1.0)}
"""Likewise, of those that look at accuracy: only for goals that do."""


def index_parameters(start: IndexWeights, goal: Goal) -> list[Parameter]:
    """Weights of the index to tune, from `start`, which is moved into the ranges if need be."""
    ranges = {**INDEX_RANGES, **(SLOPE_RANGES if goal in BLENDED else {})}
    return [
        Parameter(name, min(max(getattr(start, name), low), high), low, high) for name, (low, high) in ranges.items()
    ]


class Place(NamedTuple):
    """Where an index is tried. load: position among the loads."""

    load: int
    window: str
    seed: int


class Cost(NamedTuple):
    """Cost of a run under a goal: minus the total reward, or hours; its number of jobs, and its hours to the end."""

    cost: float
    jobs: int
    hours: float


Costs = Callable[[IndexWeights, Sequence[Place], Sequence[Cost] | None], list[Cost]]
"""Function of weights, places, and the costs of the start there (None: unknown) that gives the cost of each place."""


class Tuned(NamedTuple):
    """A tuned index, and its gain over the start as text, by the name of the runs."""

    weights: IndexWeights
    gains: dict[str, str]


def tune_index(
    configs: Sequence[Config],
    first: IndexWeights,
    goal: Goal,
    settings: SearchSettings,
    checkpoint: Path,
    *,
    resume: bool,
    jobs: int,
    on_progress: Callable[[str, int], object],
) -> Tuned:
    """Tune the weights of the index from `first` on the training windows of configurations, such as one a load.

    checkpoint: keeps every generation. jobs: processes. on_progress: called with the state and the number of
    candidates tried. Raises CheckpointError for a foreign checkpoint before anything runs, Interrupted after Ctrl-C.
    """
    experiments = [Experiment(settled) for settled in configs]
    places = places_of(experiments, "train")
    unseen = places_of(experiments, "validation", required=False)
    parameters = index_parameters(first, goal)
    outcomes = [experiment.outcome() for experiment in experiments]
    decisive = {"goal": goal, "gain": first.gain, "places": places, "outcomes": outcomes}
    started = first.model_copy(update={p.name: p.start for p in parameters})

    with costs_in(configs, goal, jobs) as costs:

        @cache
        def base() -> list[Cost]:
            return costs(started, places, None)

        def objective(point: Mapping[str, float], _: int) -> float:
            return change(goal, costs(first.model_copy(update=dict(point)), places, base()), base(), places)

        def show(state: SearchState, tried: int) -> None:
            on_progress(f"best {-state.best_cost:+.4f}" if state.costs else "start", tried)

        try:
            found = minimise(objective, parameters, settings, checkpoint, decisive, resume=resume, on_progress=show)
        except KeyboardInterrupt:
            kept = f"the generations so far are in {checkpoint}; add --resume to the same command to go on"
            raise Interrupted(kept if is_there(checkpoint) else "no generation was finished") from None
        best = first.model_copy(update=dict(found.best))
        gains = {f"{len(places)} training runs": described(goal, abs(found.best_cost))}
        if unseen:
            on_progress("validation", len(found.costs) * settings.population)
            before = costs(started, unseen, None)
            gained = -change(goal, costs(best, unseen, before), before, unseen) + 0.0  # no negative zero
            gains[f"{len(unseen)} validation runs, which were not used"] = described(goal, gained)
        return Tuned(best, gains)


def places_of(experiments: Sequence[Experiment], split: str, required: bool = True) -> list[Place]:
    """Every window of a split with every seed at every load. Raises ConfigError if required and there are none."""
    return [
        Place(load, window, seed)
        for load, experiment in enumerate(experiments)
        for window in experiment.windows(split, required=required)
        for seed in experiment.seeds()
    ]


@contextmanager
def costs_in(configs: Sequence[Config], goal: Goal, jobs: int) -> Iterator[Costs]:
    """A function that computes costs in `jobs` processes."""
    task = partial(_cost, tuple(config.model_dump_json() for config in configs), goal)
    with ProcessPoolExecutor(jobs, get_context("spawn")) if jobs > 1 else nullcontext() as pool:
        mapped = map if pool is None else partial(pool.map, chunksize=4)

        def costs(weights: IndexWeights, places: Sequence[Place], base: Sequence[Cost] | None) -> list[Cost]:
            limits = repeat(None) if base is None else (SLOWEST_CANDIDATE * start.hours for start in base)
            return list(mapped(partial(task, weights), places, limits))

        yield costs


def change(goal: Goal, costs: Sequence[Cost], base: Sequence[Cost], places: Sequence[Place]) -> float:
    """How much worse costs are than `base`: negative is better.

    reward: reward lost per job. Others: relative change in a window. Each load counts alike.
    """
    load = np.array([place.load for place in places])
    before = np.array([cost.cost for cost in base])
    worse = np.array([cost.cost for cost in costs]) - before
    if goal == "reward":  # near zero as often as not, so that ratios of rewards mean nothing
        return per_job(worse, np.array([cost.jobs for cost in base]), load)
    return per_job(worse / np.maximum(before, 1e-9), np.ones(len(places)), load)


def described(goal: Goal, change: float) -> str:
    """A change in words."""
    if goal == "reward":
        return f"{change:.4f} reward per job"
    blended = {"jct": "", "accuracy": "time to 95 % of accuracy, blended with ", "shortfall": "accuracy-hours, with "}
    return f"{change:.2%} of the {blended[goal]}mean JCT"


def _cost(configs: tuple[str, ...], goal: Goal, weights: IndexWeights, place: Place, max_hours: float | None) -> Cost:
    """Cost of the index with these weights in one place; what is unfinished when it is stopped ends then."""
    player = _player(configs[place.load], goal, place.window, place.seed)
    played = player.play(0, weights.vector(), np.inf if max_hours is None else max_hours * HOUR)
    cost, count = -played.reward, int(player.batch.counts[0])
    if goal in BLENDED:
        jobs, share = player.batch.world.jobs[0, :count], BLENDED[goal]
        about = cost if goal == "shortfall" else _hours(jobs, jobs["reached"][:, LEVEL], played.end)
        cost = float(about**share * _hours(jobs, jobs["finish_time"], played.end) ** (1.0 - share))
    return Cost(cost, count, played.end / HOUR)


@cache
def _player(config: str, goal: Goal, window: str, seed: int) -> WindowPlayer:
    """The compiled cluster of a window, whose rewards are those of the goal."""
    experiment = _experiment(config)
    alone = SHORTFALL_ALONE if goal == "shortfall" else TIME_ALONE
    return WindowPlayer(
        build_batch(
            1,
            experiment.shape,
            [workload_of(experiment, window, seed)],
            experiment.tables(),
            experiment.config.simulator,
            experiment.config.queue,
            experiment.config.reward if goal == "reward" else alone,
            beliefs=_beliefs(config),
            follow_accuracy=goal in BLENDED,
        )
    )


@cache
def _beliefs(config: str) -> CompiledBeliefs:
    experiment = _experiment(config)
    return CompiledBeliefs.of(experiment.knowledge, experiment.tables(), experiment.shape.gpus_per_node)


@lru_cache(maxsize=16)
def _experiment(config: str) -> Experiment:
    return Experiment(Config.model_validate_json(config))


def _hours(jobs: AnyArray, time: FloatArray, end: float) -> float:
    """Hours from the submission of jobs [M] to time [M] s, summed; NaN counts as `end` s."""
    submit_time = jobs["submit_time"]
    return float((np.where(np.isnan(time), np.maximum(end, submit_time), time) - submit_time).sum()) / HOUR
