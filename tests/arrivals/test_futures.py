"""Sampled futures: how much they bring, that nobody sees what comes, and that candidates meet the same ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.arrivals.futures import FutureSampler, OracleFutures, sample_futures
from rlpto.arrivals.online import ClassForecasts, TotalForecaster
from rlpto.arrivals.past import Past
from rlpto.arrivals.paths import HOURS_OF_WEEK, ForecastPaths, RatePaths, hour_of_week_rates
from rlpto.core.cluster import Allocation, ClusterState, Future, Node
from rlpto.core.job_store import JobStore
from rlpto.core.jobs import JOB, EstimateNoise, Job
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.forecasting.series import HOUR, MONDAY
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.knowledge import Knowledge
from rlpto.simulator.settings import SimulatorSettings
from rlpto.workloads.trace import make_trace

from ..builders import SAMPLES, advance_to, give, job, random_jobs, random_tables

STEP = 600.0
HORIZON = 6
USUAL = np.array([0.2, 0.5, 0.3])
TABLES = random_tables(0, gpus=6, delay=10.0)


def bursty_past(steps: int = 600, seed: int = 0) -> Past:
    """Jobs in bursts of two hours, of all classes at once."""
    rng = np.random.default_rng(seed)
    level = np.repeat(rng.gamma(1.0, 1.0, steps // 12), 12)
    jobs = rng.poisson(4 * level[:, None] * USUAL).astype(float)
    return Past(jobs, 2 * jobs, USUAL)


def source_of(past: Past) -> ForecastPaths:
    def made(past: Past) -> ClassForecasts:
        counts = past.jobs.sum(axis=1)
        total = TotalForecaster(counts, STEP, past.start - len(counts) * STEP, HORIZON)
        return ClassForecasts(total, past, STEP)

    return ForecastPaths(made, past, STEP, HORIZON)


def cluster_of(jobs: list[Job], noise: EstimateNoise | None = None) -> SimulatedCluster:
    return SimulatedCluster(
        (Node(4), Node(4)), jobs, TABLES, SimulatorSettings(interval=300.0), knowledge=Knowledge(noise=noise)
    )


def other_future(jobs: list[Job], time: float) -> list[Job]:
    """The same jobs up to `time` [s]; later ones are larger, of another model and class, and come at other times."""
    later = [
        replace(
            own, submit_time=time + 0.7 * (own.submit_time - time), model="m1", priority=0, epochs=9.0, data_size=5.0,
            min_gpus=1, requested_gpus=1, max_gpus=1,
        )
        for own in jobs
        if own.submit_time > time
    ]  # fmt: skip
    return [own for own in jobs if own.submit_time <= time] + later


class Asking:
    """Schedules as `fifo` does and asks for futures at every decision."""

    def __init__(self, futures: Callable[[ClusterState], tuple[Future, ...]]) -> None:
        self.name, self._policy, self._futures = "asking", make_policy("fifo"), futures
        self.asked: list[tuple[float, tuple[Future, ...]]] = []

    def reset(self, seed: int) -> None:
        self._policy.reset(seed)

    def __call__(self, state: ClusterState) -> Allocation:
        self.asked.append((state.time, self._futures(state)))
        return self._policy(state)


def asked_during(
    jobs: list[Job], futures: Callable[[ClusterState], tuple[Future, ...]], noise: EstimateNoise | None = None
) -> list[tuple[float, tuple[Future, ...]]]:
    policy = Asking(futures)
    run(cluster_of(jobs, noise), policy, QueueSettings(), RewardWeights())
    return policy.asked


def same(one: tuple[Future, ...], other: tuple[Future, ...]) -> bool:
    return len(one) == len(other) and all(
        a.jobs.tobytes() == b.jobs.tobytes() and np.array_equal(a.like, b.like) for a, b in zip(one, other, strict=True)
    )


def counts_of(futures: tuple[Future, ...], begins: float = 0.0) -> IntArray:
    """[F, H, classes] jobs in every step."""
    found = np.zeros((len(futures), HORIZON, 3), dtype=np.int64)
    for place, future in enumerate(futures):
        at = ((future.jobs["submit_time"] - begins) / STEP).astype(int)
        np.add.at(found[place], (at, future.jobs["priority"]), 1)
    return found


def seen_jobs() -> list[Job]:
    return [job(i, gpus=1 + i % 3, model=f"m{i % 3}", priority=i % 3, epochs=1.0 + i) for i in range(9)]


def test_as_many_jobs_arrive_as_are_forecast() -> None:
    source = source_of(bursty_past())
    mean = source.mean(0)
    assert mean is not None
    futures = FutureSampler(source, STEP, futures=3000)(cluster_of(seen_jobs()).state())
    counts = counts_of(futures)
    np.testing.assert_allclose(counts.mean(axis=0), mean, rtol=0.1)
    total = counts.sum(axis=2)
    assert np.corrcoef(total[:, 0], total[:, 3])[0, 1] > 0.3  # a burst goes on
    assert np.corrcoef(counts[:, :, 1].sum(axis=1), counts[:, :, 2].sum(axis=1))[0, 1] > 0.3  # of all classes


@given(seed=st.integers(0, 1000), changed=st.floats(0, 6000), noisy=st.booleans())
@settings(max_examples=15)
def test_no_future_sees_a_job_that_has_yet_to_come(seed: int, changed: float, noisy: bool) -> None:
    jobs = sorted(random_jobs(seed, 24, 6, 4), key=lambda own: own.submit_time)
    jobs = [replace(own, submit_time=own.submit_time * 2) for own in jobs]
    others = other_future(jobs, changed)
    rng = np.random.default_rng(seed)
    noise = EstimateNoise(*np.exp(rng.normal(0, 0.3, (2, 24))), np.zeros(24)) if noisy else None
    past = bursty_past(240)
    one, two = (asked_during(some, FutureSampler(source_of(past), STEP, futures=4), noise) for some in (jobs, others))
    before = [futures for time, futures in one if time <= changed]
    for first, (_, second) in zip(before, two, strict=False):
        assert same(first, second)
    seen = {own.data_size for own in jobs if own.submit_time <= changed}
    for futures in before:
        assert all(set(future.jobs["data_size"].tolist()) <= seen for future in futures)


def test_only_the_oracle_sees_what_comes() -> None:
    jobs = [job(i, submit=300.0 * i, gpus=2, priority=i % 3, epochs=1.0 + i) for i in range(12)]
    one, two = (asked_during(some, OracleFutures(HORIZON * STEP)) for some in (jobs, other_future(jobs, 600.0)))
    assert OracleFutures.oracle
    assert not FutureSampler.oracle
    (future,) = one[0][1]
    assert future.jobs["submit_time"].tolist() == [300.0 * i for i in range(1, 12)]
    assert future.jobs["epochs"].tolist() == [1.0 + i for i in range(1, 12)]
    assert future.like.tolist() == list(range(1, 12))
    assert not same(one[0][1], two[0][1])


def test_same_seed_same_futures_and_those_of_a_step_stay() -> None:
    jobs = [job(i, submit=50.0 * i, gpus=1, epochs=0.5) for i in range(30)]
    one, two, other = (
        asked_during(jobs, FutureSampler(source_of(bursty_past(240)), STEP, futures=4, seed=seed)) for seed in (3, 3, 4)
    )
    assert all(same(a[1], b[1]) for a, b in zip(one, two, strict=True))
    assert not all(same(a[1], b[1]) for a, b in zip(one, other, strict=True))
    # From the second step on there are jobs from before it to draw from.
    within = [futures for time, futures in one if STEP < time < 2 * STEP]
    times = [time for time, _ in one if STEP < time < 2 * STEP]
    assert len(within) > 3
    for time, futures in zip(times[1:], within[1:], strict=True):
        for first, later in zip(within[0], futures, strict=True):
            assert first.jobs[first.jobs["submit_time"] > time].tobytes() == later.jobs.tobytes()


def test_jobs_are_like_those_seen_and_nothing_has_happened_to_them() -> None:
    cluster = cluster_of(seen_jobs())
    give(cluster, [1, 2] + [0] * 7)
    advance_to(cluster, 900.0)
    state = cluster.state()
    (future,) = FutureSampler(source_of(bursty_past()), STEP, futures=1)(state)
    jobs, store = future.jobs, cluster.store.records[future.like]
    assert len(jobs) > 20
    assert (np.diff(jobs["submit_time"]) >= 0).all()
    assert (jobs["submit_time"] > 900.0).all()
    assert (jobs["submit_time"] <= STEP + HORIZON * STEP).all()
    for column in ("epochs", "data_size", "requested_gpus", "min_gpus", "max_gpus", "type_index"):
        np.testing.assert_array_equal(jobs[column], store[column])
    np.testing.assert_allclose(jobs["scale"], SAMPLES / jobs["data_size"])
    assert not jobs["progress"].any()
    assert not jobs["gpus"].any()
    assert np.isnan(jobs["start_time"]).all()


def test_the_records_are_those_of_jobs_that_were_submitted_so() -> None:
    """Every column is as a store has it of such jobs, whatever columns there are."""
    jobs = [job(i, gpus=1 + i % 3, model=f"m{i % 3}", priority=i % 3, epochs=1.0 + i) for i in range(9)]
    (future,) = FutureSampler(source_of(bursty_past()), STEP, futures=1)(cluster_of(jobs).state())
    sampled = [
        replace(jobs[like], submit_time=own["submit_time"], priority=own["priority"])
        for like, own in zip(future.like.tolist(), future.jobs, strict=True)
    ]
    wanted = JobStore.from_jobs(sampled, TABLES).records
    assert len(wanted) > 20
    for column in JOB.names or ():
        np.testing.assert_array_equal(future.jobs[column], wanted[column], err_msg=column)


def test_a_class_that_was_seen_often_has_jobs_of_its_own_kind() -> None:
    jobs = [job(i, gpus=1, priority=0, model="m0") for i in range(10)] + [
        job(i, gpus=1, priority=1, model="m1") for i in range(10, 20)
    ]
    state = cluster_of(jobs).state()
    counts = np.tile(np.array([5, 5, 5]), (1, HORIZON, 1))
    (future,) = sample_futures(counts, 0.0, STEP, np.arange(20), state, np.random.default_rng(0))
    by_class = [set(future.jobs["type_index"][future.jobs["priority"] == own].tolist()) for own in range(3)]
    assert by_class == [{0}, {1}, {0, 1}]


def test_nothing_arrives_once_a_window_is_over_or_before_anything_is_known() -> None:
    state = cluster_of(seen_jobs()).state()
    nothing = Past(np.zeros((0, 3)), np.zeros((0, 3)), USUAL)
    for futures in (
        FutureSampler(source_of(nothing), STEP)(state),
        FutureSampler(source_of(bursty_past()), STEP, ends=0.0)(state),
    ):
        assert [len(future.jobs) for future in futures] == [0]
    ending = FutureSampler(source_of(bursty_past()), STEP, ends=700.0)(state)
    assert 0 < max(float(future.jobs["submit_time"].max(initial=0.0)) for future in ending) < 700.0


class TestRates:
    def test_rates_are_those_of_the_hour_of_the_week(self) -> None:
        def window(hours: list[float], start: float) -> tuple[object, float, float]:
            trace = make_trace(
                {"submit_time": [HOUR * at for at in hours], "gpus": [1] * len(hours), "priority": [0] * len(hours)},
                source="test",
            )
            return trace, 4 * HOUR, start

        monday, next_monday = MONDAY + 8 * HOUR, MONDAY + (HOURS_OF_WEEK + 8) * HOUR
        rates = hour_of_week_rates(
            [window([0.5] * 40 + [3.9], monday), window([0.5] * 60 + [3.9], next_monday)],  # type: ignore[list-item]
            USUAL,
        )
        assert rates.shape == (HOURS_OF_WEEK, 3)
        busy, mean = rates[8, 0] * HOUR, 102 / 8
        assert busy == pytest.approx((100 + 2 * mean) / 4)  # 2 hours seen, and 2 hours' worth of the mean
        assert rates[10, 0] * HOUR == pytest.approx(2 * mean / 4)
        assert rates[100, 0] * HOUR == pytest.approx(mean)
        assert not rates[:, 1:].any()

    def test_jobs_arrive_at_these_rates(self) -> None:
        rates: FloatArray = np.zeros((HOURS_OF_WEEK, 3))
        rates[9] = np.array([6.0, 0.0, 3.0]) / HOUR
        source = RatePaths(rates, MONDAY + 8.5 * HOUR, STEP, HORIZON)
        futures = FutureSampler(source, STEP, futures=2000)(cluster_of(seen_jobs()).state())
        found = counts_of(futures).mean(axis=0)
        np.testing.assert_allclose(found[3:], np.tile([1.0, 0.0, 0.5], (3, 1)), atol=0.08)
        assert not found[:3].any()
