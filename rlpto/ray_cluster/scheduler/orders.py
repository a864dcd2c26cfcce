"""What reaches the scheduler of a session while it lasts: further jobs, and what users ask of jobs that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from rlpto.core.jobs import Job
from rlpto.ray_cluster.messages import JobSpec


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
