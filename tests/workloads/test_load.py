from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.io.errors import TraceError
from rlpto.workloads.load import choose_rows, offered_load, scale_load
from rlpto.workloads.trace import Trace, make_trace

WINDOW = 7 * 86_400.0
CAPACITY = 256


def long_trace(jobs: int = 5000) -> Trace:
    rng = np.random.default_rng(0)
    return make_trace(
        {
            "name": [f"j{i}" for i in range(jobs)],
            "submit_time": rng.uniform(0, WINDOW, jobs),
            "duration": rng.lognormal(7, 1.5, jobs),
            "gpus": rng.choice([1, 2, 4, 8], jobs),
            "group": rng.choice(["a", "b"], jobs),
        },
        source="drawn",
    )


def load_of(trace: Trace) -> float:
    return offered_load(trace.gpus, trace.duration, CAPACITY, WINDOW)


def test_offered_load_cuts_durations_and_ignores_unknown_ones() -> None:
    gpus, duration = np.array([2, 4, 8]), np.array([100.0, 1e9, np.nan])
    assert offered_load(gpus, duration, 10, 1000.0, cap=1000.0) == pytest.approx((200 + 4000) / 10_000)


@pytest.mark.parametrize("target", [0.02, 0.1, 0.5, 0.9, 2.0])
def test_load_is_met_within_a_percent_on_a_large_window(target) -> None:
    scaled = scale_load(long_trace(), target, CAPACITY, WINDOW, seed=3)
    assert load_of(scaled) == pytest.approx(target, rel=0.01)
    assert scaled.submit_time[-1] < WINDOW


@settings(max_examples=100)
@given(
    work=st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(lambda work: sum(work) > 1),
    factor=st.floats(0.01, 5),
    seed=st.integers(0, 9),
)
def test_the_target_is_missed_by_half_a_job_at_most(work, factor, seed) -> None:
    amounts = np.array(work)
    target = factor * amounts.sum()
    rows = choose_rows(amounts, target, np.random.default_rng(seed))
    assert abs(amounts[rows].sum() - target) <= amounts.max() / 2 * (1 + 1e-9) + 1e-6
    counts = np.bincount(rows, minlength=len(work))
    assert counts.max() - counts.min() <= 1


def test_thinning_takes_jobs_as_they_are_and_keeps_their_mix() -> None:
    trace = long_trace()
    half = scale_load(trace, load_of(trace) / 2, CAPACITY, WINDOW, seed=1)
    kept = trace.jobs[trace.jobs["name"].isin(half.jobs["name"])].reset_index(drop=True)
    assert kept.equals(half.jobs)
    assert len(half) == pytest.approx(len(trace) / 2, rel=0.1)
    for level in (0.1, 0.5, 0.9):
        assert np.quantile(half.duration, level) == pytest.approx(np.quantile(trace.duration, level), rel=0.15)
    first_half = np.mean(half.submit_time < WINDOW / 2)
    assert first_half == pytest.approx(np.mean(trace.submit_time < WINDOW / 2), abs=0.03)


def test_repeating_shifts_times_and_renames() -> None:
    trace = long_trace(500)
    scaled = scale_load(trace, load_of(trace) * 2.5, CAPACITY, WINDOW, seed=1)
    names = scaled.texts("name")
    assert len(set(names)) == len(names)
    when = dict(zip(names, scaled.submit_time, strict=True))
    shifts = [when[name] - when[name.partition("+")[0]] for name in names if "+" in name]
    assert 0 < max(map(abs, shifts)) <= 900
    assert set(trace.texts("name")) <= set(names)


def test_the_same_seed_gives_the_same_jobs() -> None:
    trace = long_trace(300)
    first, again, other = (scale_load(trace, 0.01, CAPACITY, WINDOW, seed=seed) for seed in (1, 1, 2))
    assert first.jobs.equals(again.jobs)
    assert not first.jobs.equals(other.jobs)


def test_load_needs_durations_and_sense() -> None:
    unknown = make_trace({"name": ["a"], "submit_time": [0.0]}, source="test")
    with pytest.raises(TraceError, match="no job with a known duration"):
        scale_load(unknown, 0.5, CAPACITY, WINDOW)
    with pytest.raises(TraceError, match="expected all above 0"):
        scale_load(long_trace(10), 0.0, CAPACITY, WINDOW)
