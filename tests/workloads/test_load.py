from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.io.errors import ConfigError, TraceError
from rlpto.workloads.load import JITTER_S, choose_rows, draw_trace, offered_load, scale_load
from rlpto.workloads.trace import Trace, make_trace
from rlpto.workloads.windows import SPLITS, WindowSettings, select, split_windows

WINDOW = 7 * 86_400.0
CAPACITY = 256
DRAWN_SPAN = 8 * 3600.0


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


def test_thinning_takes_jobs_as_they_are_and_repeating_shifts_times_and_renames() -> None:
    trace = long_trace(500)
    half = scale_load(trace, load_of(trace) / 2, CAPACITY, WINDOW, seed=1)
    kept = trace.jobs[trace.jobs["name"].isin(half.jobs["name"])].reset_index(drop=True)
    assert kept.equals(half.jobs)
    scaled = scale_load(trace, load_of(trace) * 2.5, CAPACITY, WINDOW, seed=1)
    names = scaled.texts("name")
    assert len(set(names)) == len(names)
    when = dict(zip(names, scaled.submit_time, strict=True))
    shifts = [when[name] - when[name.partition("+")[0]] for name in names if "+" in name]
    assert 0 < max(map(abs, shifts)) <= 900
    assert set(trace.texts("name")) <= set(names)


def test_load_needs_durations_and_sense() -> None:
    unknown = make_trace({"name": ["a"], "submit_time": [0.0]}, source="test")
    with pytest.raises(TraceError, match="no job with a known duration"):
        scale_load(unknown, 0.5, CAPACITY, WINDOW)
    with pytest.raises(TraceError, match="expected all above 0"):
        scale_load(long_trace(10), 0.0, CAPACITY, WINDOW)
    short = make_trace({"submit_time": [0.0], "duration": [1.0]}, source="short")
    with pytest.raises(TraceError, match=r"short: jobs ask for 1 GPU-s each, expected .* at most 5000000 jobs"):
        scale_load(short, 1.0, CAPACITY, WINDOW)


def benchmark(jobs: int = 160) -> tuple[Trace, np.ndarray]:
    """A trace within DRAWN_SPAN, and the GPU-seconds of its jobs: a few of them hold most of it."""
    rng = np.random.default_rng(1)
    trace = make_trace(
        {
            "name": [f"job-{i}" for i in range(jobs)],
            "submit_time": rng.uniform(0, DRAWN_SPAN, jobs),
            "gpus": rng.choice([1, 4, 16], jobs),
            "model": rng.choice(["ncf", "bert"], jobs),
        },
        source="benchmark.csv",
    )
    return trace, rng.lognormal(8, 2, jobs)


def work_of(drawn: Trace, trace: Trace, work: np.ndarray) -> float:
    by_name = dict(zip(trace.texts("name"), work, strict=True))
    return float(sum(by_name[name.partition("+")[0]] for name in drawn.texts("name")))


@given(rounds=st.floats(0.3, 3), seed=st.integers(0, 1000))
def test_a_draw_meets_the_wanted_work_with_as_many_jobs_as_have_it_on_average(rounds: float, seed: int) -> None:
    trace, work = benchmark()
    target = rounds * float(work.sum())
    drawn = draw_trace(trace, work, target, DRAWN_SPAN, (seed,))
    assert len(drawn) == round(rounds * len(trace))
    assert work_of(drawn, trace, work) == pytest.approx(target, rel=0.15)


def test_drawn_jobs_are_those_of_the_trace_at_nearly_their_times() -> None:
    trace, work = benchmark()
    drawn = draw_trace(trace, work, None, DRAWN_SPAN, (0,))
    assert len(drawn) == len(trace)
    position = {name: i for i, name in enumerate(trace.texts("name"))}
    source = np.array([position[name.partition("+")[0]] for name in drawn.texts("name")])
    np.testing.assert_array_equal(drawn.gpus, trace.gpus[source])
    assert drawn.texts("model") == [trace.texts("model")[row] for row in source]
    assert np.abs(drawn.submit_time - trace.submit_time[source]).max() <= JITTER_S
    assert drawn.submit_time.min() >= 0
    assert drawn.submit_time.max() < DRAWN_SPAN
    assert len(set(source.tolist())) < len(trace)  # with replacement


def test_what_cannot_be_drawn_from_is_named() -> None:
    trace, work = benchmark()
    with pytest.raises(TraceError, match=r"benchmark\.csv: a job is submitted at .* s, expected all within the 3600 s"):
        draw_trace(trace, work, None, 3600.0, (0,))
    with pytest.raises(TraceError, match=r"benchmark\.csv: jobs ask for 0 GPU-s each, expected enough for 5 GPU-s"):
        draw_trace(trace, np.zeros(len(trace)), 5.0, DRAWN_SPAN, (0,))
    with pytest.raises(TraceError, match=r"benchmark\.csv: no jobs to draw from"):
        draw_trace(trace.take(np.arange(0)), work[:0], None, DRAWN_SPAN, (0,))


DAY = 86_400.0


@given(
    span=st.floats(1e4, 2e6),
    hours=st.floats(0.1, 48),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)).filter(lambda s: sum(s) > 0.01),
)
def test_windows_never_overlap_and_never_cross_a_boundary(span, hours, shares) -> None:
    train, validation, test = (share / sum(shares) for share in shares)
    cut = WindowSettings(hours=hours, train=train, validation=validation, test=test)
    try:
        splits = split_windows(span, cut)
    except ConfigError:
        assert max(train, validation, test) * span < hours * 3600 + 1e-3
        return
    in_time = [window for split in SPLITS for window in splits[split]]
    for before, after in pairwise(in_time):
        assert before.end <= after.start
    bounds = dict(zip(SPLITS, ((0, train), (train, train + validation), (train + validation, 1)), strict=True))
    for window in in_time:
        low, high = bounds[window.split]
        assert low * span - 1e-3 <= window.start < window.end <= min(high * span, span) + 1e-3
        whole = max(train, validation, test) == 1.0 and span < hours * 3600
        assert window.end - window.start == pytest.approx(span if whole else hours * 3600, abs=1e-3)
    assert len({window.name for window in in_time}) == len(in_time)


def test_shares_leftovers_and_selections_that_are_spread_and_repeatable() -> None:
    splits = split_windows(10 * DAY, WindowSettings(hours=8))
    assert [len(splits[split]) for split in SPLITS] == [21, 3, 6]
    assert splits["test"][0].start == pytest.approx(8 * DAY)
    assert split_windows(10 * DAY, WindowSettings(hours=23))["validation"][0].end == pytest.approx(7 * DAY + 23 * 3600)
    windows = split_windows(100 * DAY, WindowSettings(hours=8))["train"]
    chosen = select(windows, 7, seed=1)
    assert chosen == select(windows, 7, seed=1)
    assert chosen != select(windows, 7, seed=2)
    stretch = 70 * DAY / 7
    assert [int(window.start // stretch) for window in chosen] == list(range(7))
    assert select(windows, 1000, seed=1) == windows


def test_a_short_trace_that_is_all_for_testing_is_one_window() -> None:
    cut = WindowSettings(hours=8, train=0, validation=0, test=1)
    for span in (7200.0, 5e-324):  # of jobs that are all submitted at once, the last one just belongs to the window
        assert [(window.start, window.end) for window in split_windows(span, cut)["test"]] == [(0.0, span)]


def test_a_trace_of_one_moment_is_refused() -> None:
    with pytest.raises(ConfigError, match="all jobs of the trace are submitted at once: expected a longer trace"):
        split_windows(0.0, WindowSettings())


def test_a_trace_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"windows of 8 h do not fit a trace of 2 h .* smaller windows.hours"):
        split_windows(7200.0, WindowSettings())
