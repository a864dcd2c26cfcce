"""Shared by all commands: options, the console, and reading a configuration. Imports nothing heavy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlpto.io.errors import ConfigError
from rlpto.io.terminal import printable, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from rlpto.experiments.config import Config
    from rlpto.io.workers import Workers

EXPERIMENTS, BENCHMARK, INPUTS = "Research", "Benchmark", "Traces, forecasts and models"
CLUSTERS, SERVICE = "Real clusters", "Job service"
"""Groups of verbs in `rlpto --help`, in this order."""
WARNING = "warning: "
"""Beginning of lines on stderr that are not replaced by later ones."""


@dataclass(frozen=True)
class Verb:
    """A verb of the command. A module of `rlpto.cli` adds one as VERB under its own name, several as VERBS by name.

    run: the function, or a Typer app with subcommands. group: a heading of `rlpto --help`. example: a command line.
    """

    run: Callable[..., None] | typer.Typer
    group: str
    example: str = ""


def keep_input(out: Path, given: Path) -> None:
    """Raise ConfigError if a command would replace a file that it reads."""
    from rlpto.io.files import file_there

    if file_there(out) and file_there(given) and out.samefile(given):
        raise ConfigError(f"--out {out}: this command reads it, expected the name of another file")


_CONFIG_HELP = "Experiment file, or the name of an example, such as quickstart."
ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help=_CONFIG_HELP)]
OptionalConfig = Annotated[Path | None, typer.Argument(metavar="CONFIG", help=_CONFIG_HELP)]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the config; may be repeated.")
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of all randomness, instead of the config's.")]
RunDirOption = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where results go; runs/NAME if not given.")]
AddressOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT|auto", help="Of a Ray cluster that is there, instead of a local one.")
]
WorkersOption = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="HOST:PORT|ray://HOST:PORT|auto",
        help="Compute on the CPUs of this Ray cluster, instead of processes of this machine; the results are the same.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def make_console(quiet: bool = False) -> Console:
    """The console for tables. A file or a pipe gets lines wide enough for any table."""
    plain = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return _console(quiet=quiet, highlight=False, width=140 if plain else None)


def _console(**given: Any) -> Console:
    """A console that prints control characters in texts as escapes; only its own styles reach the terminal.

    Texts are printed without markup unless a call asks for it, because paths and names of users may hold brackets.
    Cells of tables are markup.
    """
    from rich.console import Console
    from rich.text import Text

    class Clean(Console):
        def print(self, *objects: Any, **how: Any) -> None:
            if all(isinstance(one, str) for one in objects):
                how.setdefault("markup", False)
            super().print(*objects, **how)

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(printable(text), **how)

    return Clean(**given)


def make_table(*columns: str, title: str | None = None, caption: str | None = None) -> Table:
    """A table without lines. title: no markup."""
    from rich.markup import escape
    from rich.table import Table

    return Table(
        *columns,
        title=title and escape(title),
        title_justify="left",
        title_style="bold",
        caption=caption,
        caption_justify="left",
        box=None,
        header_style="bold",
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )


def make_progress(quiet: bool = False) -> Progress:
    """A progress bar on stderr, which keeps redirected results clean."""
    from rich.progress import MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}", style="progress.description", markup=False),
        *Progress.get_default_columns()[1:],
        MofNCompleteColumn(),
        console=_console(stderr=True, quiet=quiet),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )


@contextmanager
def waiting(quiet: bool = False, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text on stderr while the user waits; an empty text ends the waiting.

    On a terminal the line appears next to a spinner, and the next line replaces it; elsewhere every line stays. A line
    that starts with `WARNING` always stays. console: console of a progress bar that is already on the terminal; lines
    are then printed above it and stay.
    """
    if quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield lambda doing: say(f"rlpto: {doing}", err=True) if doing else None
    elif console is not None:
        yield lambda doing: console.print(doing, style="dim") if doing else None
    else:
        from rich.text import Text

        with _console(stderr=True).status("") as status:

            def show(doing: str) -> None:
                if doing.startswith(WARNING):
                    status.console.print(f"rlpto: {doing}", style="yellow", highlight=False)
                    return
                status.update(Text(printable(doing)))
                if not doing:
                    status.stop()

            yield show


@contextmanager
def chosen_workers(address: str | None, processes: int) -> Iterator[Workers]:
    """The workers of a command, by its options --workers and --jobs. Raises ConfigError if both are given."""
    from rlpto.io.workers import LocalWorkers

    if address is None:
        yield LocalWorkers(processes)
        return
    if processes > 1:
        raise ConfigError(f"--jobs {processes}: expected it without --workers, whose cluster has its own CPUs")
    from rlpto.experiments.ray_workers import RayWorkers

    with RayWorkers(address) as found:
        yield found


def read_config(path: Path, overrides: Sequence[str] | None, seed: int | None = None) -> Config:
    """The experiment of a file, with --set and --seed applied."""
    from rlpto.experiments.config import load_config

    changes = [*(overrides or ()), *([] if seed is None else [f"seed={seed}"])]
    return load_config(path, changes)
