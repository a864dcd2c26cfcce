"""A restarted scheduler takes up its work: the books, and the runners that are there, make a ledger again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rlpto.ray_cluster.scheduler.gpu_claims import Command, Entry, Ledger


@dataclass(frozen=True)
class Reopened:
    """How things stand.

    ledger: as it was. adopted: jobs whose runners went on by themselves. lost: jobs that had a runner which is gone;
    they go on from their checkpoints. strangers: runners of jobs that have ended, or were never ours.
    """

    ledger: Ledger
    adopted: tuple[str, ...]
    lost: tuple[str, ...]
    strangers: tuple[str, ...]


def reopen(
    capacity: Mapping[str, int],
    active: Collection[str],
    started: Collection[str],
    commands: Mapping[str, Sequence[Command]],
    unsent: Collection[int],
    runners: Collection[str],
) -> Reopened:
    """What a scheduler believes that finds its books and some runners.

    capacity: GPUs by node that is alive. active: jobs that have neither finished nor failed. started: jobs that ever
    had a runner. commands: of each job, from the newest one known to be in force on. unsent: generations of commands
    that were never sent. runners: jobs that have one now.

    What was sent may have been obeyed, so it is claimed until the runner says otherwise. What was planned and not sent
    goes out once there is room.
    """
    ledger = Ledger(capacity)
    adopted = [job for job in active if job in runners]
    for job in adopted:
        known = list(commands.get(job, ()))
        sent = [command for command in known if command.generation not in unsent]
        steps = [command for command in known if command.generation in unsent]
        planned = known[-1].nodes if known else ()
        ledger.entries[job] = Entry(planned=planned, steps=steps, sent=sent)
    return Reopened(
        ledger=ledger,
        adopted=tuple(adopted),
        lost=tuple(job for job in active if job in started and job not in runners),
        strangers=tuple(job for job in runners if job not in active),
    )
