"""Ctrl-C and SIGTERM: stop a command cleanly, and lose no Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_SECONDS = 0.1
"""Delay before a swallowed Ctrl-C is raised again."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has stopped a command cleanly. The text tells which results are kept and how to continue."""


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise a KeyboardInterrupt once more, in the main thread, if Python could only print it: for example in a callback
    from a compiler's C code, or in `__del__`."""
    before = sys.unraisablehook

    def again(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        # A real signal also ends a wait.
        timer = threading.Timer(AGAIN_SECONDS, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.daemon = True  # the command has already ended
        timer.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


class Interrupt:
    """Handler of Ctrl-C and SIGTERM for a training. The first one asks it to stop cleanly, or ends it at once before it
    learns.

    after: name of the work that it still completes.
    """

    def __init__(self, after: str) -> None:
        self.after = after
        self.asked = False
        self.learning = False

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle a signal."""
        if self.asked or not self.learning:
            raise KeyboardInterrupt
        self.asked = True
        print(f"rlpto: stopping after this {self.after}; Ctrl-C again stops at once", file=sys.stderr)


@contextmanager
def interruptible(after: str = "update") -> Iterator[Interrupt]:
    """Handle Ctrl-C and SIGTERM by an `Interrupt` in the block; not in other threads, where signals do not arrive."""
    interrupt = Interrupt(after)
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
