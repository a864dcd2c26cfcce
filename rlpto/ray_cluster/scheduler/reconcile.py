"""A restarted scheduler takes up its work: claims from the session database and the controllers that are there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rlpto.ray_cluster.messages import Plan
from rlpto.ray_cluster.scheduler.gpu_claims import Command, Entry, GpuClaims


@dataclass(frozen=True)
class Reopened:
    """How things stand.

    claims: as they were. adopted: jobs whose controllers went on by themselves. lost: jobs that had a controller which
    is gone; they go on from their checkpoints. orphans: controllers of jobs that have ended, or were never ours.
    """

    claims: GpuClaims
    adopted: tuple[str, ...]
    lost: tuple[str, ...]
    orphans: tuple[str, ...]


def reopen(
    capacity: Mapping[str, int],
    active: Collection[str],
    started: Collection[str],
    commands: Mapping[str, Sequence[Command]],
    unsent: Collection[int],
    controllers: Collection[str],
) -> Reopened:
    """Claims of a scheduler that finds its session database and some controllers.

    capacity: GPUs by node that is alive. active: jobs that have neither finished nor failed. started: jobs that ever
    had a controller. commands: of each job, from the newest one known to be in force on. unsent: generations of
    commands that were never sent. controllers: jobs that have one now.

    What was sent may have been obeyed, so it is claimed until the controller says otherwise. What was planned and not
    sent goes out once there is room.
    """
    claims = GpuClaims(capacity)
    adopted = [job for job in active if job in controllers]
    for job in adopted:
        known = list(commands.get(job, ()))
        sent = [command for command in known if command.generation not in unsent]
        steps = [command for command in known if command.generation in unsent]
        planned = known[-1].plan if known else Plan()
        claims.entries[job] = Entry(planned=planned, steps=steps, sent=sent)
    return Reopened(
        claims=claims,
        adopted=tuple(adopted),
        lost=tuple(job for job in active if job in started and job not in controllers),
        orphans=tuple(job for job in controllers if job not in active),
    )
