"""Sampled arrivals: jobs that may still be submitted, each like one that was submitted before.

A service draws them around its forecasts (`paths.py`), and predictions run in each sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlpto.arrivals.past import CLASSES
from rlpto.core.jobs import Job
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.performance.tables import JobType

OWN_CLASS_JOBS = 10
"""Jobs of a class from which on its sampled jobs are like those of the class, rather than like any."""
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


def rows_alike(classes: IntArray, wanted: IntArray, level: FloatArray) -> IntArray:
    """[m] numbers of donors for jobs of the classes wanted [m], at levels [m] in [0, 1) of the donors that qualify.

    classes: of the donors, [n]. Donors of the same class qualify if there are OWN_CLASS_JOBS of them, else all do.
    """
    rows = np.zeros(len(wanted), dtype=np.int64)
    for own in range(CLASSES):
        alike, of_class = np.flatnonzero(classes == own), wanted == own
        fit = alike if len(alike) >= OWN_CLASS_JOBS else np.arange(len(classes))
        rows[of_class] = fit[(level[of_class] * len(fit)).astype(np.int64)] if len(fit) else 0
    return rows


def as_believed(types: Sequence[JobType], futures: Futures, jobs: Sequence[Job], type_index: IntArray) -> Futures:
    """The futures with donors of the types that a snapshot estimates their speeds by.

    types: of the snapshot. jobs: M, all that the cluster remembers. type_index: [M] theirs in `types`. A donor that is
    no longer remembered is as fast as the newest job of its program; arrivals like a donor without one are left out.
    """
    believed = [types[number] for number in type_index.tolist()]
    own = {job.name: one for job, one in zip(jobs, believed, strict=True)}
    programs = {job.model: one for job, one in zip(jobs, believed, strict=True)}
    found = [own.get(donor.name) or programs.get(donor.model) for donor in futures.donors]
    row = np.cumsum([one is not None for one in found]) - 1
    there = np.array([one is not None for one in found], dtype=np.bool_)
    donors = tuple(
        replace(donor, model=one.model, batch_size=one.batch_size, metric=one.metric)
        for donor, one in zip(futures.donors, found, strict=True)
        if one is not None
    )
    arrivals = []
    for one in futures.arrivals:
        kept = there[one.donor]
        arrivals.append(Arrivals(one.submit[kept], row[one.donor[kept]], one.priority[kept]))
    return Futures(donors, tuple(arrivals))
