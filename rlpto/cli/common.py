"""What the verbs share: options, the console, and writing a run's folder. Imports nothing heavy."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from rlpto.config import Config

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it."""

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="Experiment file, such as configs/philly.yaml.")]
OptionalConfig = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG]", help="Experiment file, such as configs/philly.yaml.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the config; may be repeated."),
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of all randomness, instead of the config's.")]
RunDirOption = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where results go; runs/NAME if not given.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def make_console(quiet: bool = False) -> Console:
    """Where tables go; a file or a pipe gets lines wide enough for any of them."""
    from rich.console import Console

    plain = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(quiet=quiet, highlight=False, width=140 if plain else None)


def make_progress(quiet: bool = False) -> Progress:
    """A progress bar on stderr, so that redirected results stay clean."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True, quiet=quiet),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )


def interrupted(advice: str) -> NoReturn:
    """End after Ctrl-C with a line that says how to go on."""
    print(f"rlpto: interrupted; {advice}", file=sys.stderr)
    raise typer.Exit(INTERRUPTED)


def read_config(path: Path, overrides: Sequence[str] | None, seed: int | None = None) -> Config:
    """The experiment of a file, with --set and --seed applied."""
    from rlpto.config import load_config

    changes = [*(overrides or ()), *([] if seed is None else [f"seed={seed}"])]
    return load_config(path, changes)
