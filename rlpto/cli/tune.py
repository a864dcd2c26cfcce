"""`rlpto tune`: fit the constants of a policy on training windows."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlpto.cli.common import (
    EXPERIMENTS,
    ConfigArgument,
    QuietOption,
    SeedOption,
    SetOption,
    Verb,
    make_console,
    make_progress,
    read_config,
)
from rlpto.io.errors import ConfigError

app = typer.Typer(help="Tune the constants of a policy on training windows.", no_args_is_help=True)


class Goal(StrEnum):
    """Goal of the tuning: what a better index raises or lowers."""

    reward = "reward"
    jct = "jct"
    accuracy = "accuracy"
    shortfall = "shortfall"


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
        raise ConfigError(f"--loads {text}: expected different numbers above 0, such as 0.5,0.7,0.9,1.1")
    return loads


@app.command(epilog="Example: rlpto tune index results/philly --loads 0.5,0.9 --limit 6 -o mine.yaml")
def index(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File of weights to write (YAML).")],
    goal: Annotated[
        Goal,
        typer.Option(
            help="Raise the total reward, or lower the mean JCT, the time to 95 % of accuracy, or what is lost of it."
        ),
    ] = Goal.reward,
    start: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights to start from, instead of the two-parameter form.")
    ] = None,
    generations: Annotated[int, typer.Option(min=1, help="Generations in all.")] = 20,
    population: Annotated[int, typer.Option(min=4, help="Candidates in each generation.")] = 10,
    loads: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Loads to tune for, weighted equally, instead of the config's."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most windows of each split (and load).")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions of every window.")] = None,
    seed: SeedOption = None,
    set_: SetOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint next to the output.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that run windows side by side.")] = 1,
    quiet: QuietOption = False,
) -> None:
    """Tune the weights of the index policy with an evolution strategy, on training windows only.

    A candidate is judged against the start on the same windows: by the reward it gains per job, the mean JCT it saves,
    the mean time to 95 % of a job's accuracy, or the accuracy-hours lost; in the last two JCT counts a little.
    Every generation is kept in FILE.checkpoint.json; use the result as `index:weights=FILE`.
    """
    from rlpto.evaluation.weight_search import SearchSettings
    from rlpto.experiments.index_search import tune_index
    from rlpto.policies.index_weights import IndexWeights, index_weights, load_weights, save_weights

    overrides = [
        *(set_ or ()),
        *([] if limit is None else [f"workload.windows.limit={limit}"]),
        *([] if seeds is None else [f"evaluation.seeds={seeds}"]),
    ]
    wanted = _parse_loads(loads)
    configs = [read_config(config, [*overrides, f"workload.load={load}"], seed) for load in wanted]
    configs = configs or [read_config(config, overrides, seed)]
    first = IndexWeights() if start is None else index_weights(load_weights(start), start)
    settings = SearchSettings(generations=generations, population=population, seed=configs[0].seed)
    with make_progress(quiet) as bar:
        task = bar.add_task("start", total=generations * population)
        found = tune_index(
            configs,
            first,
            goal.value,
            settings,
            out.with_suffix(".checkpoint.json"),
            resume=resume,
            jobs=jobs,
            on_progress=lambda doing, tried: bar.update(task, description=doing, completed=tried),
        )
    save_weights(found.weights.vector(), out)
    console = make_console(quiet)
    for where, gain in found.gains.items():
        console.print(f"{out}: better by {gain} on {where}")


VERB = Verb(app, EXPERIMENTS)
