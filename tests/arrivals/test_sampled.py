"""Sampled arrivals: how many come, what they are like, and which speeds are believed of them."""

from __future__ import annotations

import numpy as np

from rlpto.arrivals.online import ClassForecasts, sampling_forecasts
from rlpto.arrivals.past import Past
from rlpto.arrivals.sampled import Futures, as_believed, sample_arrivals
from rlpto.core.jobs import Job
from rlpto.io.arrays import IntArray
from rlpto.performance.tables import JobType

from ..builders import job

STEP = 600.0
HORIZON = 6
USUAL = np.array([0.2, 0.5, 0.3])


def bursty_past(steps: int = 600, seed: int = 0) -> Past:
    """Jobs in bursts of two hours, of all classes at once."""
    rng = np.random.default_rng(seed)
    level = np.repeat(rng.gamma(1.0, 1.0, steps // 12), 12)
    jobs = rng.poisson(4 * level[:, None] * USUAL).astype(float)
    return Past(jobs, 2 * jobs, USUAL)


def source_of(past: Past) -> ClassForecasts:
    return sampling_forecasts(past, STEP, HORIZON)


def sampled(counts: IntArray, donors: list[Job], after: float = 0.0, seed: int = 0) -> Futures:
    rng = np.random.default_rng(seed)
    return Futures(tuple(donors), sample_arrivals(counts, 0.0, STEP, after, donors, rng))


def seen_jobs() -> list[Job]:
    return [job(i, gpus=1 + i % 3, model=f"m{i % 3}", priority=i % 3, epochs=1.0 + i) for i in range(9)]


def test_as_many_jobs_arrive_as_are_forecast() -> None:
    source = source_of(bursty_past())
    forecast = source.forecast(0)
    assert forecast is not None
    counts = source.paths(0, 3000, np.random.default_rng(0))
    assert counts is not None
    np.testing.assert_allclose(counts.mean(axis=0), forecast.mean, rtol=0.1)
    total = counts.sum(axis=2)
    assert np.corrcoef(total[:, 0], total[:, 3])[0, 1] > 0.3, "a burst goes on"
    assert np.corrcoef(counts[:, :, 1].sum(axis=1), counts[:, :, 2].sum(axis=1))[0, 1] > 0.3, "of all classes"


def test_nothing_is_sampled_before_anything_is_known() -> None:
    nothing = Past(np.zeros((0, 3)), np.zeros((0, 3)), USUAL)
    assert source_of(nothing).paths(0, 4, np.random.default_rng(0)) is None


def test_every_count_becomes_that_number_of_jobs_in_its_step() -> None:
    counts = np.random.default_rng(1).integers(0, 4, (5, HORIZON, 3))
    futures = sampled(counts, seen_jobs())
    found = np.zeros_like(counts)
    for number, one in enumerate(futures.arrivals):
        assert (np.diff(one.submit) >= 0).all()
        np.add.at(found[number], ((one.submit / STEP).astype(int), one.priority), 1)
    np.testing.assert_array_equal(found, counts)
    later = sampled(counts, seen_jobs(), after=2.5 * STEP)
    for one, cut in zip(futures.arrivals, later.arrivals, strict=True):
        np.testing.assert_array_equal(one.submit[one.submit > 2.5 * STEP], cut.submit)


def test_jobs_are_like_their_donors_but_for_time_and_class() -> None:
    futures = sampled(np.full((1, HORIZON, 3), 4), seen_jobs())
    (one,), jobs = futures.arrivals, futures.jobs(0)
    assert len(jobs) == 72
    for made, submit, donor, priority in zip(jobs, one.submit, one.donor, one.priority, strict=True):
        like = futures.donors[donor]
        assert (made.submit_time, made.priority) == (submit, priority)
        assert (made.model, made.epochs, made.requested_gpus) == (like.model, like.epochs, like.requested_gpus)


def test_a_class_that_was_seen_often_has_jobs_of_its_own_kind() -> None:
    donors = [job(i, gpus=1, priority=i // 10, model=f"m{i // 10}") for i in range(20)]
    futures = sampled(np.full((1, HORIZON, 3), 5), donors)
    by_class = [{made.model for made in futures.jobs(0) if made.priority == own} for own in range(3)]
    assert by_class == [{"m0"}, {"m1"}, {"m0", "m1"}]


def test_donors_have_the_speeds_that_are_believed_now() -> None:
    """A donor that is gone is as fast as the newest job of its program; without one, jobs like it are left out."""
    donors = [job(i, model=f"m{i}") for i in range(3)]
    futures = sampled(np.full((1, HORIZON, 3), 5), donors)
    types = [JobType("m0", 8), JobType("m1", 16)]
    newest = job(7, model="m1")
    found = as_believed(types, futures, [donors[0], newest], np.array([0, 1]))
    assert [(made.model, made.batch_size) for made in found.donors] == [("m0", 8), ("m1", 16)]
    (before,), (after,) = futures.arrivals, found.arrivals
    np.testing.assert_array_equal(after.submit, before.submit[before.donor < 2])
    np.testing.assert_array_equal(after.donor, before.donor[before.donor < 2])
