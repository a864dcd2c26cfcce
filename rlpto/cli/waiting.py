"""Lines on stderr that show what a command waits for before it has results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WARNING = "warning: "


@contextmanager
def waiting(quiet: bool = False, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Gives a function that shows its text as the current step; an empty text ends the waiting.

    On a terminal the line appears next to a spinner, and the next line replaces it; elsewhere every line stays. A line
    that starts with `WARNING` always stays. console: of a progress bar that is already on the terminal; lines are then
    printed above it and stay.
    """
    from rich.console import Console

    if quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield _print
    elif console is not None:
        yield lambda doing: console.print(doing, style="dim") if doing else None
    else:
        with Console(stderr=True).status("") as status:

            def show(doing: str) -> None:
                if doing.startswith(WARNING):
                    status.console.print(f"rlpto: {doing}", style="yellow", highlight=False)
                    return
                status.update(doing)
                if not doing:
                    status.stop()

            yield show


def _print(doing: str) -> None:
    if doing:
        print(f"rlpto: {doing}", file=sys.stderr, flush=True)
