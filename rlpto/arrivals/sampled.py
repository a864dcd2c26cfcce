"""Sampled arrivals: joint samples of counts by class around a forecast, and jobs made of them.

Each count has a negative binomial distribution. Its mean is the forecast, and its variance exceeds the mean as much as
past errors did. The dependence between steps and between classes comes from past origins: every past path is turned
into ranks, and a sampled path of ranks is turned into counts by the current distributions (the Schaake shuffle, Clark
et al., Journal of Hydrometeorology 2004; ranks of counts by the randomised probability integral transform, Czado,
Gneiting, Held, Biometrics 2009). So means equal the forecast regardless of past errors, counts are whole and never
below 0, and bursts last as long, and hit as many classes at once, as in the past. Jobs are like those submitted before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlpto.core.cluster import Forecast
from rlpto.core.jobs import PRIORITY_CLASSES, Job
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.performance.tables import JobType

CLASSES = len(PRIORITY_CLASSES)
LEAST_ORIGINS = 20
"""With fewer past paths, counts are sampled independently."""
MOST_ORIGINS = 500
"""Number of newest past paths that are kept."""
DISPERSION = (1e-6, 20.0)
"""Least and most of (variance - mean) / mean**2; the least is Poisson's."""
LEAST_MEAN = 1e-12
"""Lower bound of a divisor, to avoid division by 0."""
MOST_COUNT = 1e9
"""Largest count of one step."""
OWN_CLASS_JOBS = 10
"""Number of jobs of a class from which on its sampled jobs resemble only jobs of the class, not any job."""
MOST_JOBS = 3000
"""Most jobs of one future; later ones are left out."""


class PathMemory:
    """The newest past forecasts of K series, H steps ahead, and the actual counts, one origin after the other."""

    def __init__(self, horizon: int, series: int, most: int = MOST_ORIGINS) -> None:
        self._horizon, self._most = horizon, most
        self._means: list[FloatArray | None] = []
        self._counts: list[FloatArray] = []
        self._none = np.zeros((0, horizon, series))

    def add(self, forecast: Forecast | None, counts: FloatArray) -> None:
        """Add a completed step: the forecast at its start, if there was one, and its actual counts [K]."""
        self._means.append(None if forecast is None else forecast.mean)
        self._counts.append(counts)
        spare = len(self._counts) - self._most - self._horizon
        if spare > 0:
            del self._means[:spare], self._counts[:spare]

    def paths(self) -> tuple[FloatArray, FloatArray]:
        """Means and counts, [N, H, K] each, of the origins whose steps are all completed."""
        last = len(self._counts) - self._horizon + 1
        kept = [(place, mean) for place, mean in enumerate(self._means[: max(last, 0)]) if mean is not None]
        if not kept:
            return self._none, self._none
        counts = np.array(self._counts)
        came = [counts[place : place + self._horizon] for place, _ in kept]
        return np.stack([mean for _, mean in kept]), np.stack(came)


def sample_paths(
    mean: FloatArray, past_mean: FloatArray, past_counts: FloatArray, paths: int, rng: np.random.Generator
) -> IntArray:
    """[F, H, K] whole counts: F = `paths` joint samples whose means are `mean` [H, K].

    past_mean, past_counts: [N, H, K] forecasts from past origins, and the actual counts. With fewer than LEAST_ORIGINS
    origins, counts are independent and Poisson. The average error of past forecasts has no influence. Origins are
    sampled systematically in order of their total count, which gives each the same chance and spreads the paths over
    small and large ones.
    """
    if len(past_mean) < LEAST_ORIGINS:
        return rng.poisson(mean, (paths, *mean.shape)).astype(np.int64)
    past_mean = past_mean * (past_counts.sum(axis=(0, 1)) / np.maximum(past_mean.sum(axis=(0, 1)), LEAST_MEAN))
    beyond = (np.square(past_counts - past_mean) - past_mean).sum(axis=(0, 1))
    # [K] excess of the variance over the mean, in units of the squared mean.
    excess = np.clip(beyond / np.maximum(np.square(past_mean).sum(axis=(0, 1)), LEAST_MEAN), *DISPERSION)
    likely = _negative_binomial(past_mean, excess)
    below, upto = likely.cdf(past_counts - 1), likely.cdf(past_counts)
    levels = below + rng.random(past_mean.shape) * (upto - below)  # of counts relative to their forecasts
    ranks = np.argsort(np.argsort(levels, axis=0), axis=0)
    order = np.argsort(ranks.sum(axis=(1, 2)), kind="stable")
    chosen = order[((np.arange(paths) + rng.random()) * len(order) / paths).astype(np.int64)]
    levels = (ranks[chosen] + rng.random((paths, *mean.shape))) / len(order)
    found: IntArray = np.clip(_negative_binomial(mean, excess).ppf(levels), 0, MOST_COUNT).astype(np.int64)
    return found


def _negative_binomial(mean: FloatArray, excess: FloatArray) -> Any:
    """scipy's distribution of counts with `mean` and variance mean + excess * mean**2."""
    from scipy.stats import nbinom  # takes most of a second, and few runs sample arrivals

    return nbinom(1 / excess, 1 / (1 + excess * mean))


@dataclass(frozen=True)
class Arrivals:
    """One future: n jobs in order of submission. submit: [n] s. donor: [n] row of the job to copy. priority: [n]
    class."""

    submit: FloatArray
    donor: IntArray
    priority: IntArray


@dataclass(frozen=True)
class Futures:
    """Several futures. donors: submitted jobs, with their present estimated speeds."""

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
    """Sample futures after second `after` from counts [F, H, CLASSES] in steps of `step` s from second `begins` on.

    Submit times are spread evenly over each step. Each job copies a donor of its class, if there are OWN_CLASS_JOBS of
    them, else any.
    """
    begun = max(int((after - begins) / step) + 1, 0)
    jobs = counts[:, begun:].sum(axis=2)
    counts = counts.copy()
    counts[:, begun:][np.cumsum(jobs, axis=1) - jobs >= MOST_JOBS] = 0  # these jobs would be left out
    place = np.repeat(np.arange(counts.size), counts.reshape(-1))
    future, at, priority = np.unravel_index(place, counts.shape)
    submit = begins + (at + rng.random(len(place))) * step
    level, classes = rng.random(len(place)), np.array([job.priority for job in donors])
    donor = np.zeros(len(place), dtype=np.int64)
    for own in range(CLASSES):
        alike, wanted = np.flatnonzero(classes == own), priority == own
        fit = alike if len(alike) >= OWN_CLASS_JOBS else np.arange(len(donors))
        donor[wanted] = fit[(level[wanted] * len(fit)).astype(np.int64)]
    found = []
    for number in range(len(counts)):
        rows = np.flatnonzero((future == number) & (submit > after))
        rows = rows[np.argsort(submit[rows])][:MOST_JOBS]
        found.append(Arrivals(submit[rows], donor[rows], priority[rows]))
    return tuple(found)


def as_estimated(types: Sequence[JobType], futures: Futures, jobs: Sequence[Job], type_index: IntArray) -> Futures:
    """Return the futures with donors of the job types by which a snapshot estimates their speeds.

    types: types of the snapshot. jobs: M, all that the cluster remembers. type_index: [M] their indices in `types`. A
    donor that is no longer remembered is as fast as the newest job of its program; arrivals that copy a donor without
    one are left out.
    """
    estimated = [types[number] for number in type_index.tolist()]
    own = {job.name: one for job, one in zip(jobs, estimated, strict=True)}
    programs = {job.model: one for job, one in zip(jobs, estimated, strict=True)}
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
