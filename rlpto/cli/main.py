"""The `rlpto` command. Verbs import their dependencies when they run, which keeps `--help` quick."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from pkgutil import iter_modules
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rlpto import __version__, cli
from rlpto.cli.common import BENCHMARK, CLUSTERS, EXPERIMENTS, INPUTS, SERVICE, Verb
from rlpto.io.errors import RlptoError
from rlpto.io.extras import extras
from rlpto.io.interrupts import Interrupted, interrupts_kept
from rlpto.io.terminal import say

BAD_INPUT = 2
"""Exit code for bad input."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it."""
LEAVE_S = 20.0
"""Longest time that an interrupted command waits for its threads [s]."""
HELP = "Schedule distributed deep-learning training: simulate, train schedulers, compare them, run real jobs."


class _Group(TyperGroup):
    """Lists its commands with their first sentences, uncut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands; at the root, under the headings of their groups."""
        known = dict(verbs()) if ctx.parent is None else {}
        for heading, names in groupby(known or self.commands, lambda name: known[name].group if known else "Commands"):
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=1000)) for name in names])


class _Command(_Group):
    """The root command. After a clean stop by Ctrl-C it ends with one line on stderr."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except Interrupted as interrupted:
            say(f"rlpto: interrupted; {interrupted}", err=True)
            raise typer.Exit(INTERRUPTED) from None


class _OnStderr(logging.Handler):
    """Prints the library's log on stderr, above a progress bar if there is one by then."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        say(f"rlpto: {record.getMessage()}", err=True)


def verbs() -> Iterator[tuple[str, Verb]]:
    """Names and verbs of all modules of `rlpto.cli` that have any, by group and name."""
    groups = (EXPERIMENTS, BENCHMARK, INPUTS, CLUSTERS, SERVICE)
    known: dict[str, Verb] = {}
    for found in iter_modules(cli.__path__):
        if found.name != "main":
            module = import_module(f"{cli.__name__}.{found.name}")
            known |= getattr(module, "VERBS", {})
            if hasattr(module, "VERB"):
                known[found.name] = module.VERB
    yield from sorted(known.items(), key=lambda named: (groups.index(named[1].group), named[0]))


def make_app(only: str = "") -> typer.Typer:
    """The command with all its verbs, or only with the verb `only`: importing the others takes most of the time."""
    app = typer.Typer(
        name="rlpto",
        help=HELP,
        cls=_Command,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # importing the code that draws boxes around help takes longer than all else
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    known = dict(verbs())
    for name, verb in {only: known[only]}.items() if only in known else known.items():
        example = f"Example: {verb.example}"
        if isinstance(verb.run, typer.Typer):
            verb.run.rich_markup_mode = None
            first = verb.run.registered_commands[0].epilog
            app.add_typer(verb.run, name=name, cls=_Group, epilog=example if verb.example else first)
        else:
            app.command(name, epilog=example)(verb.run)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rlpto {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run() -> None:
    """Entry point: bad input ends with exit code 2 and one line on stderr; no Ctrl-C is lost, and SIGTERM
    is handled as Ctrl-C."""
    log = logging.getLogger("rlpto.io")
    log.setLevel(logging.INFO)
    log.addHandler(_OnStderr())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: Slurm and others send it
    try:
        with interrupts_kept(), extras():
            make_app(*sys.argv[1:2])()
    except RlptoError as error:
        say(f"rlpto: error: {error}", err=True)
        sys.exit(BAD_INPUT)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            exit_if_threads_hang(LEAVE_S)
        raise


def exit_if_threads_hang(wait_s: float) -> None:
    """After Ctrl-C, end the process if a thread is still running after `wait_s` seconds; else return.

    Ctrl-C may leave a lock held in code that it interrupts, for example in a compiler, and Python would wait forever
    for a thread that waits for the lock. All files are closed by now.
    """
    ends_at = time.monotonic() + wait_s
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(ends_at - time.monotonic(), 0.0))
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(INTERRUPTED)


if __name__ == "__main__":
    run()
