"""Sampled arrivals: joint samples of counts, their means and spread; what the jobs are like, and which speeds are
believed of them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.arrivals.online import ClassForecasts, sampling_forecasts
from rlpto.arrivals.past import Past
from rlpto.arrivals.sampled import LEAST_ORIGINS, Futures, PathMemory, as_believed, sample_arrivals, sample_paths
from rlpto.core.cluster import Forecast
from rlpto.core.jobs import Job
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.performance.tables import JobType

from ..builders import job

MEAN = np.array([[4.0, 1.0, 0.2], [6.0, 2.0, 0.2], [8.0, 0.0, 0.2], [5.0, 1.0, 0.2]])
"""[H, K] of a forecast."""


def bursty_past(origins: int = 400, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Forecasts that were right on average; all series come in bursts that last as long as a path."""
    rng = np.random.default_rng(seed)
    mean = np.tile(np.array([5.0, 1.5, 0.3]), (origins, len(MEAN), 1))
    level = rng.gamma(1.0, 1.0, (origins, 1, 1))
    return mean, rng.poisson(mean * level).astype(float)


def drawn(past: tuple[FloatArray, FloatArray], paths: int = 4000, seed: int = 1) -> IntArray:
    return sample_paths(MEAN, *past, paths, np.random.default_rng(seed))


def test_means_are_those_of_the_forecast_and_spread_is_that_of_past_errors() -> None:
    found = drawn(bursty_past())
    np.testing.assert_allclose(found.mean(axis=0), MEAN, rtol=0.1, atol=0.03)
    # Bursts of variance 1 around a mean m give the variance m + m**2.
    np.testing.assert_allclose(found.var(axis=0)[:, 0], (MEAN + MEAN**2)[:, 0], rtol=0.3)


def test_steps_and_series_hang_together_as_past_errors_did() -> None:
    past = bursty_past()
    found = drawn(past)

    def together(counts: FloatArray | IntArray, one: tuple[int, int], other: tuple[int, int]) -> float:
        return float(np.corrcoef(counts[:, *one], counts[:, *other])[0, 1])

    for one, other in (((0, 0), (3, 0)), ((0, 0), (0, 1))):
        assert abs(together(found, one, other) - together(past[1], one, other)) < 0.1
        assert together(found, one, other) > 0.5
    rng = np.random.default_rng(0)
    independent = drawn((past[0], rng.permuted(past[1], axis=0)))
    assert abs(together(independent, (0, 0), (3, 0))) < 0.1


def test_without_a_past_counts_are_poisson() -> None:
    few = tuple(part[: LEAST_ORIGINS - 1] for part in bursty_past())
    found = drawn((few[0], few[1]))
    np.testing.assert_allclose(found.mean(axis=0), MEAN, rtol=0.1, atol=0.03)
    np.testing.assert_allclose(found.var(axis=0), MEAN, rtol=0.15, atol=0.03)


@given(seed=st.integers(0, 1000), origins=st.integers(0, 60), paths=st.integers(1, 40), size=st.floats(0, 1e6))
@settings(max_examples=40)
def test_paths_are_whole_and_reproducible(seed: int, origins: int, paths: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    past = size * rng.random((origins, 3, 2)), np.floor(size * rng.random((origins, 3, 2)) ** 3)
    mean = size * rng.random((3, 2))
    mean[0, 0] = 0
    one, two = (sample_paths(mean, *past, paths, np.random.default_rng(seed)) for _ in range(2))
    assert one.shape == (paths, 3, 2)
    assert one.dtype == np.int64
    assert (one >= 0).all()
    assert not one[:, 0, 0].any()
    np.testing.assert_array_equal(one, two)


def test_only_origins_whose_steps_are_over_are_remembered() -> None:
    memory = PathMemory(horizon=2, series=1, most=3)
    for at in range(6):
        means = np.full((2, 1), float(at))
        memory.add(None if at == 3 else Forecast(means, means, means), np.array([10.0 * at]))
    mean, counts = memory.paths()
    assert mean[:, 0, 0].tolist() == [1, 2, 4]
    assert counts[..., 0].tolist() == [[10, 20], [20, 30], [40, 50]]
    empty = PathMemory(horizon=2, series=3).paths()
    assert empty[0].shape == empty[1].shape == (0, 2, 3)


STEP = 600.0
HORIZON = 6
USUAL = np.array([0.2, 0.5, 0.3])


def sampled(counts: IntArray, donors: list[Job], after: float = 0.0, seed: int = 0) -> Futures:
    rng = np.random.default_rng(seed)
    return Futures(tuple(donors), sample_arrivals(counts, 0.0, STEP, after, donors, rng))


def seen_jobs() -> list[Job]:
    return [job(i, gpus=1 + i % 3, model=f"m{i % 3}", priority=i % 3, epochs=1.0 + i) for i in range(9)]


def source_of(past: Past) -> ClassForecasts:
    return sampling_forecasts(past, STEP, HORIZON)


def test_as_many_jobs_arrive_as_are_forecast() -> None:
    assert source_of(Past(np.zeros((0, 3)), USUAL)).paths(0, 4, np.random.default_rng(0)) is None, "nothing is known"
    rng = np.random.default_rng(0)
    level = np.repeat(rng.gamma(1.0, 1.0, 50), 12)  # bursts of two hours, of all classes at once
    source = source_of(Past(rng.poisson(4 * level[:, None] * USUAL).astype(float), USUAL))
    forecast = source.forecast(0)
    counts = source.paths(0, 3000, np.random.default_rng(0))
    np.testing.assert_allclose(counts.mean(axis=0), forecast.mean, rtol=0.1)
    total = counts.sum(axis=2)
    assert np.corrcoef(total[:, 0], total[:, 3])[0, 1] > 0.3, "a burst goes on"
    assert np.corrcoef(counts[:, :, 1].sum(axis=1), counts[:, :, 2].sum(axis=1))[0, 1] > 0.3, "of all classes"


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
