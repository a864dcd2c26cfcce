"""`rlpto tune`: fit the constants of a policy on training windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rlpto.cli.common import (
    ConfigArgument,
    QuietOption,
    SeedOption,
    SetOption,
    interrupted,
    make_console,
    make_progress,
    read_config,
)

if TYPE_CHECKING:
    from rlpto.config import Config
    from rlpto.evaluation.tuning import TuningState
    from rlpto.policies.index_weights import IndexWeights

app = typer.Typer(help="Tune the constants of a policy on training windows.", no_args_is_help=True)

HOUR = 3600.0
Place = tuple[str, int]
"""A window and a seed."""


class Goal(StrEnum):
    """What a better index has more, or less, of."""

    reward = "reward"
    jct = "jct"


@app.callback()
def tune() -> None:
    """Tune the constants of a policy on training windows."""


@app.command(epilog="Example: rlpto tune index configs/philly.yaml --limit 6 -o index-philly.yaml")
def index(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File of weights to write (YAML).")],
    goal: Annotated[Goal, typer.Option(help="Raise the total reward, or lower the mean JCT.")] = Goal.reward,
    start: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights to start from, instead of the two-parameter form.")
    ] = None,
    generations: Annotated[int, typer.Option(min=1, help="Generations in all.")] = 20,
    population: Annotated[int, typer.Option(min=4, help="Candidates in each generation.")] = 10,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many windows of each split.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions of every window.")] = None,
    seed: SeedOption = None,
    set_: SetOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint beside the output.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that run windows side by side.")] = 1,
    quiet: QuietOption = False,
) -> None:
    """Tune the weights of the index policy with an evolution strategy, on training windows only.

    A candidate's cost is its mean relative difference from the start, window by window. Every
    generation is kept in FILE.checkpoint.json; use the result as `index:weights=FILE`.
    """
    from rlpto.evaluation.tuning import TuningSettings, index_parameters, read_costs, tuning_fingerprint
    from rlpto.evaluation.tuning import tune as search
    from rlpto.experiment import prepare
    from rlpto.policies.index_weights import IndexWeights, load_index_weights, save_index_weights

    overrides = [
        *(set_ or ()),
        *([] if limit is None else [f"workload.windows.limit={limit}"]),
        *([] if seeds is None else [f"evaluation.seeds={seeds}"]),
    ]
    settled = read_config(config, overrides, seed)
    first = IndexWeights() if start is None else load_index_weights(start)
    experiment = prepare(settled)
    places = [(window, s) for window in experiment.windows("train") for s in experiment.seeds()]
    parameters = index_parameters(first)
    settings = TuningSettings(generations=generations, population=population, seed=settled.seed)
    searched = {"goal": goal.value, "gain": first.gain, "places": places, **experiment.outcome()}
    fingerprint = tuning_fingerprint(parameters, settings, searched)
    checkpoint = out.with_suffix(".checkpoint.json")
    if resume and checkpoint.exists():
        read_costs(checkpoint, fingerprint, population)  # a foreign one is refused before anything runs
    console = make_console(quiet)

    def complete(point: Mapping[str, float]) -> IndexWeights:
        return first.model_copy(update=dict(point))

    with _costs(settled, goal, jobs) as costs, make_progress(quiet) as bar:
        started = complete({p.name: p.start for p in parameters})
        task = bar.add_task("start", total=generations * population)
        base = costs(started, places, None)

        def told(state: TuningState) -> None:
            bar.update(task, description=f"best {-state.best_cost:+.2%}", completed=len(state.costs) * population)

        try:
            found = search(
                lambda point: _relative(costs(complete(point), places, base), base),
                parameters,
                settings,
                checkpoint,
                fingerprint,
                resume=resume,
                each_candidate=lambda: bar.advance(task),
                each_generation=told,
            )
        except KeyboardInterrupt:
            bar.stop()
            if not checkpoint.exists():
                interrupted("no generation was finished")
            interrupted(f"the generations so far are in {checkpoint}; add --resume to the same command to go on")
        best = complete(found.best)
        save_index_weights(best, out)
        console.print(f"{out}: better by {abs(found.best_cost):.2%} in {goal.value} on {len(places)} training runs")
        windows = experiment.windows("validation", required=False)
        unseen = [(window, s) for window in windows for s in experiment.seeds()]
        if unseen:
            bar.update(task, description="validation")
            unseen_base = costs(started, unseen, None)
            change = -_relative(costs(best, unseen, unseen_base), unseen_base) + 0.0  # no negative zero
            console.print(f"on {len(unseen)} validation runs, which were not used: {change:+.2%}")


class Cost(NamedTuple):
    """Cost of one run, and the hours until its last job finished."""

    cost: float
    hours: float


Costs = Callable[["IndexWeights", Sequence[Place], Sequence[Cost] | None], list[Cost]]
"""From weights, places, and what the start cost there (None: unknown) to the cost of each place."""

PATIENCE = 3.0
"""A candidate is stopped when it has taken so many times as long as the start: it may never finish."""


@contextmanager
def _costs(config: Config, goal: Goal, jobs: int) -> Iterator[Costs]:
    """A function that computes costs in `jobs` processes."""
    task = partial(_cost, config, goal.value)

    def limits(places: Sequence[Place], base: Sequence[Cost] | None) -> list[float | None]:
        return [None] * len(places) if base is None else [PATIENCE * start.hours for start in base]

    if jobs == 1:
        yield lambda weights, places, base: list(map(partial(task, weights), places, limits(places, base)))
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield lambda weights, places, base: list(pool.map(partial(task, weights), places, limits(places, base)))


def _cost(config: Config, goal: str, weights: IndexWeights, place: Place, max_hours: float | None) -> Cost:
    """Minus the total reward, or the mean JCT in seconds, of the index with these weights on one window.

    A job that is not finished when the run is stopped counts as finishing then.
    """
    import numpy as np

    from rlpto.experiment import prepare
    from rlpto.policies.index import Index

    window, seed = place
    record = prepare(config).run_policy(Index(weights=weights), window, seed, max_hours)
    jobs = record.jobs
    finished = jobs.finish_time[np.isfinite(jobs.finish_time)]
    last = float(finished.max()) if len(finished) else 0.0
    end = last if max_hours is None else max_hours * HOUR
    jct = (
        np.where(np.isfinite(jobs.finish_time), jobs.finish_time, np.maximum(end, jobs.submit_time)) - jobs.submit_time
    )
    cost = float(jct.mean()) if goal == "jct" else -float(record.decisions.reward.sum())
    return Cost(cost, last / HOUR)


def _relative(costs: Sequence[Cost], base: Sequence[Cost]) -> float:
    """Mean over places of (cost - base) / |base|."""
    changes = [(now.cost - start.cost) / max(abs(start.cost), 1e-9) for now, start in zip(costs, base, strict=True)]
    return sum(changes) / len(changes)
