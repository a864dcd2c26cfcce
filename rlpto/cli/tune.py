"""`rlpto tune`: fit the constants of a policy on training windows."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from rlpto.errors import ConfigError

if TYPE_CHECKING:
    from rlpto.evaluation.tuning import TuningState
    from rlpto.policies.index_weights import IndexWeights

app = typer.Typer(help="Tune the constants of a policy on training windows.", no_args_is_help=True)


class Goal(StrEnum):
    """What a better index has more, or less, of."""

    reward = "reward"
    jct = "jct"


@app.callback()
def tune() -> None:
    """Tune the constants of a policy on training windows."""


def _parse_loads(text: str | None) -> list[float]:
    """Numbers of a comma-separated list. Raises ConfigError if one is no load."""
    if text is None:
        return []
    try:
        loads = [float(part) for part in text.split(",")]
    except ValueError:
        loads = []
    if not loads or not all(0 < load < float("inf") for load in loads) or len(set(loads)) < len(loads):
        raise ConfigError(f"--loads {text}: expected different numbers above 0, such as .5,.7,.9,1.1")
    return loads


@app.command(epilog="Example: rlpto tune index configs/results/philly.yaml --loads .5,.9 --limit 6 -o mine.yaml")
def index(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File of weights to write (YAML).")],
    goal: Annotated[Goal, typer.Option(help="Raise the total reward, or lower the mean JCT.")] = Goal.reward,
    start: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights to start from, instead of the two-parameter form.")
    ] = None,
    generations: Annotated[int, typer.Option(min=1, help="Generations in all.")] = 20,
    population: Annotated[int, typer.Option(min=4, help="Candidates in each generation.")] = 10,
    loads: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Loads to be good at, all alike, instead of the config's.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many windows of each split (and load).")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions of every window.")] = None,
    seed: SeedOption = None,
    set_: SetOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint beside the output.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that run windows side by side.")] = 1,
    quiet: QuietOption = False,
) -> None:
    """Tune the weights of the index policy with an evolution strategy, on training windows only.

    A candidate is judged by the reward it gains per job, or by the JCT it saves, against the start on the
    same windows. Every generation is kept in FILE.checkpoint.json; use the result as `index:weights=FILE`.
    """
    from rlpto.evaluation.tuning import TuningSettings, index_parameters, read_costs, tuning_fingerprint
    from rlpto.evaluation.tuning import tune as search
    from rlpto.experiment import Experiment
    from rlpto.policies.index_weights import IndexWeights, load_index_weights, save_index_weights
    from rlpto.runs.tuning import change, costs_in, described, places_of

    overrides = [
        *(set_ or ()),
        *([] if limit is None else [f"workload.windows.limit={limit}"]),
        *([] if seeds is None else [f"evaluation.seeds={seeds}"]),
    ]
    wanted = _parse_loads(loads)
    configs = [read_config(config, [*overrides, f"workload.load={load}"], seed) for load in wanted]
    configs = configs or [read_config(config, overrides, seed)]
    first = IndexWeights() if start is None else load_index_weights(start)
    experiments = [Experiment(settled) for settled in configs]
    places = places_of(experiments, "train")
    parameters = index_parameters(first)
    settings = TuningSettings(generations=generations, population=population, seed=configs[0].seed)
    outcomes = [experiment.outcome() for experiment in experiments]
    searched = {"goal": goal.value, "gain": first.gain, "places": places, "outcomes": outcomes}
    fingerprint = tuning_fingerprint(parameters, settings, searched)
    checkpoint = out.with_suffix(".checkpoint.json")
    if resume and checkpoint.exists():
        read_costs(checkpoint, fingerprint, population)  # a foreign one is refused before anything runs
    console = make_console(quiet)

    def complete(point: Mapping[str, float]) -> IndexWeights:
        return first.model_copy(update=dict(point))

    with costs_in(configs, goal, jobs) as costs, make_progress(quiet) as bar:
        started = complete({p.name: p.start for p in parameters})
        task = bar.add_task("start", total=generations * population)
        base = costs(started, places, None)

        def told(state: TuningState) -> None:
            bar.update(task, description=f"best {-state.best_cost:+.4f}", completed=len(state.costs) * population)

        try:
            found = search(
                lambda point: change(goal, costs(complete(point), places, base), base, places),
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
        console.print(f"{out}: better by {described(goal, abs(found.best_cost))} on {len(places)} training runs")
        unseen = places_of(experiments, "validation", required=False)
        if unseen:
            bar.update(task, description="validation")
            before = costs(started, unseen, None)
            gained = -change(goal, costs(best, unseen, before), before, unseen) + 0.0  # no negative zero
            console.print(f"on {len(unseen)} validation runs, which were not used: better by {described(goal, gained)}")
