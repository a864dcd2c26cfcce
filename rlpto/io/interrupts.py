"""Ctrl-C: stop a command cleanly, and lose no Ctrl-C."""

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
    """Ctrl-C has stopped a command cleanly; the text says what is kept and how to continue."""


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Within the block, a KeyboardInterrupt that is raised where Python cannot pass it on (callbacks from C, such as
    those of a compiler; `__del__`) and would only print is raised in the main thread once more."""
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


@contextmanager
def handler_kept() -> Iterator[None]:
    """After the block Ctrl-C does what it did before, also where a library has left a handler of its own."""
    before = signal.getsignal(signal.SIGINT)  # None: one that was not set in Python, and cannot be set again
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


class Interrupt:
    """The first Ctrl-C asks a training to stop, once it learns; otherwise it ends it at once.

    after: what it then still does.
    """

    def __init__(self, after: str) -> None:
        self.after = after
        self.asked = False
        self.learning = False

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle SIGINT."""
        if self.asked or not self.learning:
            raise KeyboardInterrupt
        self.asked = True
        print(f"rlpto: stopping after this {self.after}; Ctrl-C again stops at once", file=sys.stderr)


@contextmanager
def interruptible(after: str = "update") -> Iterator[Interrupt]:
    """Handle Ctrl-C by an `Interrupt` while the block runs; in a thread, where signals do not arrive, by nothing."""
    interrupt = Interrupt(after)
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
