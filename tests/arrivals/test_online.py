"""Forecasts from arrivals as they happen, none of which sees the future, and sampled arrivals: joint samples of counts,
what the jobs are like, and the estimates of their speeds."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.arrivals.online import ClassForecasts, Past, WindowForecasts, load_model, past_of
from rlpto.arrivals.sampled import (
    LEAST_ORIGINS,
    MOST_JOBS,
    Futures,
    PathMemory,
    as_estimated,
    sample_arrivals,
    sample_paths,
)
from rlpto.arrivals.settings import ForecastSettings
from rlpto.core.cluster import Forecast
from rlpto.core.jobs import Job
from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.naive import Naive
from rlpto.forecasting.registry import make_forecaster
from rlpto.forecasting.series import DAY, MONDAY, TimeSeries
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ConfigError
from rlpto.performance.tables import JobType

from ..builders import job

STEP = 600.0
USUAL = np.array([0.2, 0.5, 0.3])
NOTHING = Past(np.zeros((0, 3)), USUAL)


def quiet_past(steps: int, jobs: float) -> Past:
    """As many jobs of the usual classes in every step."""
    return Past(np.tile(jobs * USUAL, (steps, 1)), USUAL)


def source_of(past: Past) -> ClassForecasts:
    return ClassForecasts(past, STEP, 3)


def arrivals(steps: list[list[int]]) -> list[Job]:
    """Jobs of these classes, evenly spread over each step."""
    return [
        job(at * 100 + i, submit=STEP * (at + i / len(classes)), priority=own)
        for at, classes in enumerate(steps)
        for i, own in enumerate(classes)
    ]


def daily(days: int, seed: int = 0) -> FloatArray:
    """Counts every hour that come and go over the day."""
    hours = np.arange(24 * days)
    return np.random.default_rng(seed).poisson(6 + 5 * np.sin(2 * np.pi * hours / 24)).astype(float)


def same(one: Forecast | None, other: Forecast | None) -> bool:
    if one is None or other is None:
        return one is other
    parts = zip((one.mean, one.low, one.high), (other.mean, other.low, other.high), strict=True)
    return all(np.array_equal(a, b) for a, b in parts)


def test_the_total_is_split_by_the_shares_of_the_classes_which_follow_what_arrives() -> None:
    source = source_of(quiet_past(60, jobs=10))
    before = source.forecast(0)
    after = WindowForecasts(source, STEP, 72).known(arrivals([[0] * 10] * 72))[-1]
    np.testing.assert_allclose(before.mean, np.tile(10 * USUAL, (3, 1)), rtol=1e-6)
    shares = after.mean[0] / after.mean[0].sum()
    assert shares[0] > 0.5 > before.mean[0, 0] / before.mean[0].sum()
    assert (after.low <= after.mean).all()
    assert (after.mean <= after.high).all()


def test_what_is_given_step_by_step_is_forecast_like_what_is_given_at_once() -> None:
    jobs = arrivals([[0, 1, 2], [1], [], [0, 0], [2, 1], []] * 6)
    one, source = (source_of(quiet_past(30, 3)) for _ in range(2))
    for known, every in enumerate(WindowForecasts(one, STEP, 36).known(jobs)):
        new = [job for job in jobs if int(job.submit_time / STEP) == known - 1]
        assert same(WindowForecasts(source, STEP, known).known(new)[-1], every)


@given(
    counts=st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=14, max_size=24),
    other=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    place=st.floats(0, 1, exclude_max=True),
    with_past=st.booleans(),
)
def test_no_forecast_sees_the_future(counts: list[list[int]], other: list[int], place: float, with_past: bool) -> None:
    """Other arrivals in one step, and in all that follow, change no forecast made until that step is over."""
    changed = int(place * len(counts))
    others = counts[:changed] + [other + own for own in counts[changed:]]
    past = quiet_past(20, 2) if with_past else NOTHING
    last = len(counts)
    one, two = (WindowForecasts(source_of(past), STEP, last).known(arrivals(steps)) for steps in (counts, others))
    assert all(map(same, one[: changed + 1], two))
    if with_past or changed >= 10:
        assert not same(one[last], two[last])


class TestPast:
    TIMES = np.array([0.0, 100.0, 650.0, 1199.0, 1250.0, 2000.0])

    def test_counts_end_where_the_workload_begins(self) -> None:
        found = past_of(self.TIMES, np.array([0, 1, 2, -1, 0, 0]), 1250.0, STEP, USUAL, MONDAY)
        # Steps of 600 s that end at 1250 s begin at 50 s; the job at 1250 s is the workload's own.
        np.testing.assert_allclose(found.jobs, [[0, 1, 0], np.add(USUAL, [0, 0, 1])])

    def test_what_comes_later_is_not_looked_at(self) -> None:
        ones = np.ones(6, dtype=np.int64)
        cut = past_of(self.TIMES[:3], ones[:3], 1000.0, STEP, USUAL, MONDAY)
        whole = past_of(self.TIMES, ones, 1000.0, STEP, USUAL, MONDAY)
        np.testing.assert_array_equal(cut.jobs, whole.jobs)

        none = past_of(np.zeros(0), np.zeros(0, dtype=int), 0.0, STEP, USUAL, MONDAY)
        assert none.jobs.shape == (0, 3)


@pytest.fixture(scope="module")
def hybrid() -> Forecaster:
    return make_forecaster("hybrid", seed=0, updates=3, hidden=4).fit(TimeSeries(daily(14), 3600.0))


class TestModel:
    @pytest.mark.slow
    def test_the_combination_follows_the_past_it_is_given(self, hybrid: Forecaster) -> None:
        before = hybrid.predict(6, quantiles=(0.1, 0.9))
        other = TimeSeries(20 * daily(9, seed=1), 3600.0, MONDAY + 40 * DAY)
        there = hybrid.moved(other, 24)
        assert there.predict(6).point.mean() > 3 * before.point.mean()
        there.update(5.0)
        again = hybrid.predict(6, quantiles=(0.1, 0.9))
        np.testing.assert_array_equal(before.values, again.values)

    def test_it_waits_for_two_counts(self, hybrid: Forecaster) -> None:
        source = ClassForecasts(NOTHING, 3600.0, 2, hybrid)
        source.arrived(3600.0 * np.repeat(np.arange(3), [3, 4, 5]), np.zeros(12, dtype=np.int64))
        seen = [source.forecast(known) for known in range(4)]
        assert seen[:2] == [None, None]
        assert all(look is not None and np.isfinite(look.mean).all() for look in seen[2:])

    def test_a_file_of_no_use_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "hourly.safetensors"
        make_forecaster("naive").fit(TimeSeries(daily(2), 3600.0)).save(path)
        settings = ForecastSettings(model=path, every="1h")
        assert isinstance(load_model(settings), Naive)
        path.write_bytes(b"something else")
        with pytest.raises(ConfigError, match=r"forecast.model: .*hourly.safetensors: truncated, damaged or foreign"):
            load_model(settings)


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


HORIZON = 6


def sampled(counts: IntArray, donors: list[Job], after: float = 0.0, seed: int = 0) -> Futures:
    rng = np.random.default_rng(seed)
    return Futures(tuple(donors), sample_arrivals(counts, 0.0, STEP, after, donors, rng))


def seen_jobs() -> list[Job]:
    return [job(i, gpus=1 + i % 3, model=f"m{i % 3}", priority=i % 3, epochs=1.0 + i) for i in range(9)]


def test_as_many_jobs_arrive_as_are_forecast() -> None:
    source = ClassForecasts(NOTHING, STEP, HORIZON, memory=PathMemory(HORIZON, 3))
    assert source.paths(0, 4, np.random.default_rng(0)) is None, "nothing is known"
    rng = np.random.default_rng(0)
    level = np.repeat(rng.gamma(1.0, 1.0, 50), 12)  # bursts of two hours, of all classes at once
    at = np.repeat(np.arange(600), rng.poisson(4 * level))
    source.arrived(STEP * at, rng.choice(3, len(at), p=USUAL))
    forecast, counts = source.forecast(600), source.paths(600, 3000, np.random.default_rng(0))
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


def test_jobs_that_a_full_future_leaves_out_are_not_sampled() -> None:
    rng, after = Mock(wraps=np.random.default_rng(0)), 1.5 * STEP
    found = sample_arrivals(np.full((2, 1000, 3), 2000), 0.0, STEP, after, seen_jobs(), rng)
    assert max(call.args[0] for call in rng.random.call_args_list) == 2 * 3 * 2000 * 3, "two begun steps and the next"
    for one in found:
        assert len(one.submit) == MOST_JOBS
        assert after < one.submit.min() <= one.submit.max() < 3 * STEP


def test_a_class_that_was_seen_often_has_jobs_of_its_own_kind() -> None:
    donors = [job(i, gpus=1, priority=i // 10, model=f"m{i // 10}") for i in range(20)]
    futures = sampled(np.full((1, HORIZON, 3), 5), donors)
    by_class = [{made.model for made in futures.jobs(0) if made.priority == own} for own in range(3)]
    assert by_class == [{"m0"}, {"m1"}, {"m0", "m1"}]


def test_donors_have_the_speeds_of_present_estimates() -> None:
    """A donor that is gone is as fast as the newest job of its program; without one, jobs like it are left out."""
    donors = [job(i, model=f"m{i}") for i in range(3)]
    futures = sampled(np.full((1, HORIZON, 3), 5), donors)
    types = [JobType("m0", 8), JobType("m1", 16)]
    newest = job(7, model="m1")
    found = as_estimated(types, futures, [donors[0], newest], np.array([0, 1]))
    assert [(made.model, made.batch_size) for made in found.donors] == [("m0", 8), ("m1", 16)]
    (before,), (after,) = futures.arrivals, found.arrivals
    np.testing.assert_array_equal(after.submit, before.submit[before.donor < 2])
    np.testing.assert_array_equal(after.donor, before.donor[before.donor < 2])
