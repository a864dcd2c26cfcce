"""What a session obeys: its clock, when decisions are due, and what users ask of it while it lasts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from rlpto.core.jobs import Job
from rlpto.ray_cluster.messages import JobSpec
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


@dataclass(frozen=True, slots=True)
class Withdraw:
    """End the job of this id: it was cancelled."""

    job: str


@dataclass(frozen=True, slots=True)
class Reclass:
    """The job of this id belongs to another priority class from now on."""

    job: str
    priority: int


@dataclass(frozen=True, slots=True)
class DecideNow:
    """A decision is due at once, although nothing has happened to jobs or nodes: another policy takes it."""


Order: TypeAlias = Withdraw | Reclass | DecideNow
"""What a source may ask of a cluster other than to take jobs."""


class OrderSource(Protocol):
    """Where jobs and orders come from. A session whose source is open is never done, however idle it is."""

    @property
    def closed(self) -> bool:
        """True once nothing further will be given."""

    def poll(self) -> list[tuple[Job, JobSpec]]:
        """The jobs that have become known since this was last asked, and what their controllers need; none was
        submitted before those given earlier."""

    def orders(self) -> Sequence[Order]:
        """What has been asked for since this was last asked."""
