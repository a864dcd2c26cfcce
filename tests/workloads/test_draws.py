from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.io.errors import TraceError
from rlpto.workloads.load import JITTER_S, draw_trace
from rlpto.workloads.trace import Trace, make_trace

SPAN = 8 * 3600.0


def benchmark(jobs: int = 160) -> tuple[Trace, np.ndarray]:
    """A trace within SPAN, and the GPU-seconds of its jobs: a few of them hold most of it."""
    rng = np.random.default_rng(1)
    trace = make_trace(
        {
            "name": [f"job-{i}" for i in range(jobs)],
            "submit_time": rng.uniform(0, SPAN, jobs),
            "gpus": rng.choice([1, 4, 16], jobs),
            "model": rng.choice(["ncf", "bert"], jobs),
        },
        source="benchmark.csv",
    )
    return trace, rng.lognormal(8, 2, jobs)


def work_of(drawn: Trace, trace: Trace, work: np.ndarray) -> float:
    by_name = dict(zip(trace.texts("name"), work, strict=True))
    return float(sum(by_name[name.partition("+")[0]] for name in drawn.texts("name")))


@settings(max_examples=30)
@given(rounds=st.floats(0.3, 3), seed=st.integers(0, 1000))
def test_a_draw_meets_the_wanted_work_with_as_many_jobs_as_have_it_on_average(rounds: float, seed: int) -> None:
    trace, work = benchmark()
    target = rounds * float(work.sum())
    drawn = draw_trace(trace, work, target, SPAN, (seed,))
    assert len(drawn) == round(rounds * len(trace))
    assert work_of(drawn, trace, work) == pytest.approx(target, rel=0.15)


def test_drawn_jobs_are_those_of_the_trace_at_nearly_their_times() -> None:
    trace, work = benchmark()
    drawn = draw_trace(trace, work, None, SPAN, (0,))
    assert len(drawn) == len(trace)
    position = {name: i for i, name in enumerate(trace.texts("name"))}
    source = np.array([position[name.partition("+")[0]] for name in drawn.texts("name")])
    np.testing.assert_array_equal(drawn.gpus, trace.gpus[source])
    assert drawn.texts("model") == [trace.texts("model")[row] for row in source]
    assert np.abs(drawn.submit_time - trace.submit_time[source]).max() <= JITTER_S
    assert drawn.submit_time.min() >= 0
    assert drawn.submit_time.max() < SPAN
    assert len(set(source.tolist())) < len(trace)  # with replacement


def test_the_seed_decides_the_draw() -> None:
    trace, work = benchmark()
    first, same, other = (draw_trace(trace, work, work.sum(), SPAN, seed) for seed in ((1, 2), (1, 2), (1, 3)))
    assert first.jobs.equals(same.jobs)
    assert not first.jobs.equals(other.jobs)


def test_what_cannot_be_drawn_from_is_named() -> None:
    trace, work = benchmark()
    with pytest.raises(TraceError, match=r"benchmark\.csv: a job is submitted at .* s, expected all within the 3600 s"):
        draw_trace(trace, work, None, 3600.0, (0,))
    with pytest.raises(TraceError, match=r"benchmark\.csv: jobs ask for 0 GPU-s each, expected enough for 5 GPU-s"):
        draw_trace(trace, np.zeros(len(trace)), 5.0, SPAN, (0,))
    with pytest.raises(TraceError, match=r"benchmark\.csv: no jobs to draw from"):
        draw_trace(trace.take(np.arange(0)), work[:0], None, SPAN, (0,))
