"""`rlpto sweep`: search hyper-parameters of the training with Ray Tune and Optuna."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlpto.cli.common import (
    EXPERIMENTS,
    ConfigArgument,
    QuietOption,
    RunDirOption,
    SetOption,
    Verb,
    make_console,
    read_config,
    waiting,
)
from rlpto.io.interrupts import Interrupted


def sweep(
    config: ConfigArgument,
    space: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="YAML file: config keys with \\[a, b, c] to choose from, or {low: 1e-4, high: 1e-2, log: true}.",
        ),
    ],
    trials: Annotated[int, typer.Option("--trials", "-n", min=1, help="Trainings in all.")] = 20,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Trainings side by side; one for each core if not given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep in the run's folder.")] = False,
    set_: SetOption = None,
    run_dir: RunDirOption = None,
    quiet: QuietOption = False,
) -> None:
    """Search hyper-parameters: train with values from a space, and rank the trials by validation reward.

    Needs the extra `ray`. Every trial is a run of its own, and the sweep can be interrupted and resumed.
    """
    from rlpto.experiments.parallel import workers
    from rlpto.experiments.sweep import SPACE, TABLE, TRIALS, open_sweep, run_sweep

    chosen = read_config(config, set_)
    folder = Path("runs") / f"{chosen.name}-sweep" if run_dir is None else run_dir
    with waiting(quiet) as on_wait:
        wanted = open_sweep(folder, config, set_ or (), space, on_wait, resume=resume)
        on_wait("starting Ray Tune")
    table = run_sweep(folder, wanted, trials, workers(jobs), chosen.seed, resume=resume, quiet=quiet)
    if len(table) < trials:
        raise Interrupted(f"{len(table)} of {trials} trials are finished; add --resume to the same command to go on")
    best = table.iloc[0]
    options = " ".join(f"--set {key}={best[key]}" for key in wanted)
    make_console(quiet).print(
        f"{folder / TABLE}: best validation reward per job {best['reward']:+.4f} with {options}\n"
        f"its run: {folder / TRIALS / best['trial']}; its space: {folder / SPACE}",
        soft_wrap=True,
    )


VERB = Verb(sweep, EXPERIMENTS, "rlpto sweep quickstart --space space.yaml --trials 20")
