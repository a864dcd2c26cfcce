"""Seconds since a session began, also across restarts of the scheduler."""

from __future__ import annotations

import time


class Clock:
    """began: second 0 of the session, on the clock of `time.time`.

    Time passes by the monotonic clock, so that a correction of the machine's clock does not show in results.
    """

    def __init__(self, began: float | None = None, at: float = 0.0) -> None:
        wall = time.time()
        self.began = wall - at if began is None else began
        self._offset = (wall - self.began) - time.monotonic()

    def now(self) -> float:
        """Seconds since the session began."""
        return time.monotonic() + self._offset

    def of(self, wall: float) -> float:
        """The second of the session at which it was `wall` on the clock of `time.time`."""
        return wall - self.began
