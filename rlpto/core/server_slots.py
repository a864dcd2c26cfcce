"""Parameter servers and the CPU slots they take: how many each job gets, and whether a job can run at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlpto.core.cluster import ClusterShape, ClusterState
from rlpto.core.job_store import JobStore
from rlpto.core.jobs import Job
from rlpto.io.arrays import IntArray
from rlpto.io.compiled import njit
from rlpto.io.errors import JobError, PolicyError
from rlpto.performance.tables import SpeedTables


def check_servers_fit(jobs: Sequence[Job], store: JobStore, tables: SpeedTables, shape: ClusterShape) -> None:
    """Raise JobError for a job whose own parameter servers exceed the CPU slots of all nodes.

    jobs, store: the same jobs, and their records.
    """
    needed = tables.servers[tables.own[store.type_index]]
    for number in np.flatnonzero(needed > shape.cpu_slots)[:1].tolist():
        raise JobError(
            f"job {jobs[number].name} trains through {int(needed[number])} parameter servers, but the nodes have "
            f"{shape.cpu_slots} CPU slots in all: expected at least one for each (`cpus` of nodes)"
        )


def admit_servers(servers: Any, state: ClusterState, gpus: IntArray, policy: str) -> IntArray | None:
    """Parameter servers [n] of the jobs that get `gpus` [n], 0 for those that get none; None if no job has any.

    servers: as in `Allocation`, whole numbers or None. They are cut to the CPU slots there are: first jobs keep what
    they have, then the others get theirs, in queue order. A job whose number was chosen gets as many as there are; one
    that has its own number gets just these or none. Where a job gets none, its `gpus` are set to 0.
    Raises PolicyError naming the policy for a number that a job cannot have.
    """
    jobs = state.jobs
    if not jobs.has_servers:
        if servers is not None and np.any(servers):
            raise PolicyError(f"policy {policy} chose parameter servers for jobs that have none")
        return None
    own, most = jobs.own_servers, jobs.most_servers
    chosen = np.zeros(len(jobs), dtype=np.int64) if servers is None else np.asarray(servers).astype(np.int64)
    wrong = np.flatnonzero((chosen < 0) | (chosen > most))
    if len(wrong):
        job, highest = int(jobs.index[wrong[0]]), int(most[wrong[0]])
        raise PolicyError(
            f"policy {policy} gave job {job} {int(chosen[wrong[0]])} parameter servers at {state.time:.0f} s: expected "
            + (f"0 (its own number), or 1 to {highest}" if highest else "0, for it trains without")
        )
    wanted = np.where(gpus > 0, np.where(chosen > 0, chosen, own), 0)
    least = np.where(chosen > 0, 1, own)
    held = np.where(jobs.gpus > 0, jobs.servers, 0)
    given = np.minimum(wanted, held)
    share_slots(given, wanted, least, state.cpu_slots)
    gpus[(wanted > 0) & (given == 0)] = 0
    return given


@njit()
def share_slots(given: IntArray, wanted: IntArray, least: IntArray, slots: int) -> None:
    """Raise given [n], which rows hold already, to wanted [n], in order, as far as there are slots; cut it if need be.

    A row that gets less than its least gets nothing.
    """
    left = slots
    for i in range(len(given)):
        given[i] = min(given[i], left)
        left -= given[i]
    for i in range(len(given)):
        reached = min(wanted[i], given[i] + left)
        if reached >= least[i]:
            left -= reached - given[i]
            given[i] = reached
        else:
            left += given[i]
            given[i] = 0
