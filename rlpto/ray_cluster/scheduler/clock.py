"""Time of a session: its clock, when decisions are due, and how long it waits for what does not happen."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from rlpto.ray_cluster.settings import RaySettings


class Clock:
    """Seconds since a session began, also across restarts of the scheduler.

    began: second 0 of the session, on the clock of `time.time`. at: second that the session had come to.

    Time passes by the monotonic clock, so that a correction of the machine's clock does not show in results. If that
    clock has gone back while there was no scheduler, the session goes on from `at`.
    """

    def __init__(self, began: float | None = None, at: float = 0.0) -> None:
        wall = time.time()
        self.began = wall - at if began is None else min(began, wall - at)
        self._offset = (wall - self.began) - time.monotonic()

    def now(self) -> float:
        """Seconds since the session began."""
        return time.monotonic() + self._offset

    def of(self, wall: float) -> float:
        """The second of the session at which it was `wall` on the clock of `time.time`."""
        return wall - self.began


@dataclass(frozen=True)
class SessionRules:
    """When decisions are due, and what else the scheduler of a session obeys.

    interval [s], decide_on: as in the simulator's settings. limit [s]: end the run then, even if jobs remain. ray: what
    of it is about the cluster. clock: of the session, given what a `Clock` is.
    """

    interval: float = 60.0
    decide_on: Literal["interval", "events"] = "events"
    limit: float = math.inf
    ray: RaySettings = field(default_factory=RaySettings)
    clock: Callable[[float | None, float], Clock] = Clock

    def due(self, time: float) -> float:
        """End of the interval that `time` lies in."""
        return (math.floor(time / self.interval + 1e-9) + 1) * self.interval
