"""Making policies ready beside the scheduler: what a policy imports and compiles the first time takes up to a minute,
in which jobs are to be scheduled as before."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Readying:
    """Makes policies ready in a thread of its own, one after the other.

    make_ready: a policy by its spec, whatever that takes. failed: is told in one line what cannot be made ready; it is
    asked for no less, so that whoever asks is told why.
    """

    def __init__(self, make_ready: Callable[[str], object], failed: Callable[[str], object]) -> None:
        self._make_ready, self._failed = make_ready, failed
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        # Compilation cannot be broken off: a process that is to end does not wait for it.
        threading.Thread(target=self._run, name="readying", daemon=True).start()

    def __call__(self, spec: str) -> bool:
        """Whether a policy is ready, or cannot be made so. One that is not is begun with."""
        if spec not in self._begun:
            self._begun.add(spec)
            self._wanted.put(spec)
        return spec in self._ended

    def now(self, spec: str) -> None:
        """Make a policy ready at once, in the caller's thread."""
        self._begun.add(spec)
        self._make(spec)

    def _run(self) -> None:
        while True:
            self._make(self._wanted.get())

    def _make(self, spec: str) -> None:
        try:
            self._make_ready(spec)
        except Exception as error:  # whatever a broken run or plug-in raises
            self._failed(f"policy {spec} cannot be used: {' '.join(str(error).split())}")
        finally:
            self._ended.add(spec)
