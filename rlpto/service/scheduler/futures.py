"""Sampled futures of a service: who may still submit what, like those who have submitted before.

The scheduler draws them, which takes moments; the process that looks ahead makes jobs of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlpto.arrivals.futures import rows_alike
from rlpto.core.cluster import ClusterState
from rlpto.core.jobs import Job
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.planning.predictor import Sampled
from rlpto.planning.snapshot import Snapshot
from rlpto.ray_cluster.scheduler.serving import ServingCluster

GUESSED, MEASURED = 0.4, 0.05
"""Standard deviations of the logarithm of a program's speed compared with what is believed: before its jobs have
trained, as guesses are off by half, and after, as sizes that have not been measured are."""
MOST_JOBS = 3000
"""Of one future; later ones are left out."""


@dataclass(frozen=True)
class Arrivals:
    """One future: n jobs in order of submission. submit: [n] s. donor: [n] row of the one each is like.
    priority: [n] class."""

    submit: FloatArray
    donor: IntArray
    priority: IntArray


@dataclass(frozen=True)
class Futures:
    """Some futures. donors: jobs that were submitted, with the speed that is believed of them now."""

    donors: tuple[Job, ...]
    arrivals: tuple[Arrivals, ...]

    def jobs(self, number: int) -> list[Job]:
        """The jobs of one future."""
        one = self.arrivals[number]
        rows = zip(one.submit.tolist(), one.donor.tolist(), one.priority.tolist(), strict=True)
        return [
            replace(self.donors[donor], name=f"future-{at}", submit_time=submit, priority=priority)
            for at, (submit, donor, priority) in enumerate(rows)
        ]


def sample_arrivals(
    counts: IntArray, begins: float, step: float, after: float, donors: Sequence[Job], rng: np.random.Generator
) -> tuple[Arrivals, ...]:
    """Futures from counts [F, H, CLASSES] in steps of `step` s from second `begins` on; what is over is left out.

    Submit times are spread evenly over each step. donors: one or more, of which each job is like one, see
    `rows_alike`.
    """
    place = np.repeat(np.arange(counts.size), counts.reshape(-1))
    future, at, priority = np.unravel_index(place, counts.shape)
    submit = begins + (at + rng.random(len(place))) * step
    donor = rows_alike(np.array([job.priority for job in donors], dtype=np.int64), priority, rng.random(len(place)))
    found = []
    for number in range(len(counts)):
        rows = np.flatnonzero((future == number) & (submit > after))
        rows = rows[np.argsort(submit[rows])][:MOST_JOBS]
        found.append(Arrivals(submit[rows], donor[rows], priority[rows]))
    return tuple(found)


def sampled_futures(futures: Futures, cluster: ServingCluster, state: ClusterState, snapshot: Snapshot) -> Sampled:
    """The futures as the predictor takes them. state: that the snapshot was taken of."""
    estimates = cluster.estimates
    measured = [estimates is None or estimates.is_measured(number) for number in snapshot.index.tolist()]
    found = as_believed(snapshot, futures, cluster.jobs, state.jobs.store.told_type)
    return Sampled(len(found.arrivals), found.jobs, np.where(measured, MEASURED, GUESSED))


def as_believed(snapshot: Snapshot, futures: Futures, jobs: Sequence[Job], told_type: IntArray) -> Futures:
    """The futures with the speeds that a snapshot tells of their donors.

    jobs: M, all that the cluster remembers. told_type: [M] theirs. A donor that is forgotten is as fast as the newest
    job of its program; without any, what is like it is left out.
    """
    kinds = [snapshot.tables.types[number] for number in told_type.tolist()]
    own = {job.name: kind for job, kind in zip(jobs, kinds, strict=True)}
    programs = {job.model: kind for job, kind in zip(jobs, kinds, strict=True)}
    types = [own.get(donor.name) or programs.get(donor.model) for donor in futures.donors]
    row = np.cumsum([kind is not None for kind in types]) - 1
    there = np.array([kind is not None for kind in types], dtype=np.bool_)
    donors = tuple(
        replace(donor, model=kind.model, batch_size=kind.batch_size, metric=kind.metric)
        for donor, kind in zip(futures.donors, types, strict=True)
        if kind is not None
    )
    arrivals = []
    for one in futures.arrivals:
        kept = there[one.donor]
        arrivals.append(Arrivals(one.submit[kept], row[one.donor[kept]], one.priority[kept]))
    return Futures(donors, tuple(arrivals))
