"""Rules of a session: its clock, and the times of decisions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from rlpto.ray_cluster.settings import RaySettings


class Clock:
    """Seconds since a session began, also across restarts of the scheduler.

    began: second 0 of the session [s of `time.time`]. at: second that the session had reached.

    Time passes by the monotonic clock, hence a correction of the machine's clock does not affect results. If
    `time.time` has gone back while there was no scheduler, the session continues from `at`.
    """

    def __init__(self, began: float | None = None, at: float = 0.0) -> None:
        wall = time.time()
        self.began = wall - at if began is None else min(began, wall - at)
        self._offset = (wall - self.began) - time.monotonic()

    def now(self) -> float:
        """Seconds since the session began."""
        return time.monotonic() + self._offset

    def of(self, wall: float) -> float:
        """Convert a time of `time.time` to the second of the session."""
        return wall - self.began


@dataclass(frozen=True)
class SessionRules:
    """When decisions are due, and other rules of the scheduler of a session.

    interval [s], decide_on: same meaning as in the simulator's settings. limit [s]: end of the run, even if jobs
    remain. ray: settings of the cluster. clock: creates the session's clock from the arguments of `Clock`.
    """

    interval: float = 60.0
    decide_on: Literal["interval", "events"] = "events"
    limit: float = math.inf
    ray: RaySettings = field(default_factory=RaySettings)
    clock: Callable[[float | None, float], Clock] = Clock

    def due(self, time: float) -> float:
        """End of the interval that contains `time`."""
        return (math.floor(time / self.interval + 1e-9) + 1) * self.interval
