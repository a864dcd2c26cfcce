"""Forecasts from arrivals as they happen: what they say, and that nobody sees the future."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.arrivals.online import (
    ClassForecasts,
    TotalForecaster,
    window_forecasts,
)
from rlpto.arrivals.past import Past, load_model, past_of
from rlpto.core.cluster import Forecast
from rlpto.core.jobs import Job
from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.naive import Naive
from rlpto.forecasting.registry import make_forecaster
from rlpto.forecasting.series import DAY, MONDAY, TimeSeries
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ConfigError

from ..builders import job

STEP = 600.0
USUAL = np.array([0.2, 0.5, 0.3])
NOTHING = Past(np.zeros((0, 3)), USUAL)


def quiet_past(steps: int, jobs: float) -> Past:
    """As many jobs of the usual classes in every step."""
    return Past(np.tile(jobs * USUAL, (steps, 1)), USUAL)


def source_of(past: Past, horizon: int = 3, fitted: Forecaster | None = None) -> ClassForecasts:
    return ClassForecasts(TotalForecaster(past, STEP, horizon, fitted), past, STEP)


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
    after = window_forecasts(source, arrivals([[0] * 10] * 72), 72)[-1]
    np.testing.assert_allclose(before.mean, np.tile(10 * USUAL, (3, 1)), rtol=1e-6)
    shares = after.mean[0] / after.mean[0].sum()
    assert shares[0] > 0.5 > before.mean[0, 0] / before.mean[0].sum()
    assert (after.low <= after.mean).all()
    assert (after.mean <= after.high).all()


def test_nothing_is_said_before_anything_is_known() -> None:
    found = window_forecasts(source_of(NOTHING), arrivals([[0, 1]] * 12), 12)
    assert found[:10] == [None] * 10
    assert all(forecast is not None for forecast in found[10:])


def test_what_is_given_step_by_step_is_forecast_like_what_is_given_at_once() -> None:
    jobs = arrivals([[0, 1, 2], [1], [], [0, 0], [2, 1], []] * 6)
    every, source = window_forecasts(source_of(quiet_past(30, 3)), jobs, 36), source_of(quiet_past(30, 3))
    for known in range(37):
        new = [job for job in jobs if int(job.submit_time / STEP) == known - 1]
        assert same(window_forecasts(source, new, known)[-1], every[known])


@given(
    counts=st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=14, max_size=24),
    other=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    place=st.floats(0, 1, exclude_max=True),
    with_past=st.booleans(),
)
@settings(max_examples=25)
def test_no_forecast_sees_the_future(counts: list[list[int]], other: list[int], place: float, with_past: bool) -> None:
    """Other arrivals in one step, and in all that follow, change no forecast made until that step is over."""
    changed = int(place * len(counts))
    others = counts[:changed] + [other + own for own in counts[changed:]]
    past = quiet_past(20, 2) if with_past else NOTHING
    last = len(counts)
    one, two = (window_forecasts(source_of(past), arrivals(steps), last) for steps in (counts, others))
    assert all(same(one[known], two[known]) for known in range(changed + 1))
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
    def test_the_combination_follows_the_past_it_is_given(self, hybrid: Forecaster) -> None:
        before = hybrid.predict(6, quantiles=(0.1, 0.9))
        other = TimeSeries(20 * daily(9, seed=1), 3600.0, MONDAY + 40 * DAY)
        there = hybrid.moved(other, 24)
        assert there.predict(6).point.mean() > 3 * before.point.mean()
        there.update(5.0)
        again = hybrid.predict(6, quantiles=(0.1, 0.9))
        np.testing.assert_array_equal(before.values, again.values)

    def test_it_waits_for_two_counts(self, hybrid: Forecaster) -> None:
        total = TotalForecaster(NOTHING, 3600.0, 2, hybrid)
        seen = [total.predict()]
        for count in (3.0, 4.0, 5.0):
            total.update(count)
            seen.append(total.predict())
        assert seen[:2] == [None, None]
        assert all(look is not None and np.isfinite(look.mean).all() for look in seen[2:])

    def test_a_file_of_no_use_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "hourly.pt"
        make_forecaster("naive").fit(TimeSeries(daily(2), 3600.0)).save(path)
        assert isinstance(load_model(path, 3600.0), Naive)
        path.write_bytes(b"something else")
        with pytest.raises(ConfigError, match=r"forecast.model: .*hourly.pt: truncated, damaged or foreign"):
            load_model(path, 3600.0)
