"""Policies that share time in rounds: what each aims at, how long its shares stand, and who comes first."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import Node
from rlpto.core.queues import Queue, QueueSettings
from rlpto.io.arrays import FloatArray
from rlpto.performance.compile import compile_tables
from rlpto.performance.scheduled import ScheduledModel, ScheduledProfiles
from rlpto.performance.tables import JobType
from rlpto.policies.registry import make_policy
from rlpto.policies.time_shares import best_shares, centre, fair_shares, first_on_workers
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import job, linear_tables, make_cluster
from .builders import J, make_state

ALL = ("gavel", "themis", "allox", "max_sum_throughput", "min_duration", "gandiva_fair")


def shares(spec: str, jobs: list[J], capacity: int, time: float = 0.0) -> FloatArray:
    """[n] shares of a policy's first decision, on one kind of GPU."""
    state = make_state(jobs, capacity, time=time)
    speed = state.jobs.speed[np.arange(len(jobs)), state.jobs.requested_gpus][:, None]
    return make_policy(spec).shares(state, speed, np.array([capacity]))[:, 0]


def test_every_job_is_to_end_when_the_last_can() -> None:
    share = shares("min_duration", [J(work=100.0), J(work=200.0), J(work=300.0)], 1)
    assert share == pytest.approx([1 / 6, 2 / 6, 3 / 6], rel=1e-4)


def test_gandiva_gives_equal_time_and_gavel_equal_gpu_time() -> None:
    jobs = [J(requested=1), J(requested=3)]
    assert shares("gandiva_fair", jobs, 1 + 3 - 2) == pytest.approx([1.0, 1.0])
    assert shares("gandiva_fair", [*jobs, *jobs], 3) == pytest.approx([0.75] * 4)
    assert shares("gavel", [*jobs, *jobs], 3) == pytest.approx([0.75, 0.25] * 2, abs=1e-3)


def test_themis_helps_the_job_that_has_waited_longest() -> None:
    share = shares("themis", [J(work=100.0, submitted=0.0), J(work=100.0, submitted=900.0)], 1, time=1000.0)
    assert share[0] > 0.6
    fairness = (np.array([1000.0, 100.0]) + 100.0 / share) / 200.0
    assert fairness.max() == pytest.approx(fairness[0]), "none can do better than the one that has waited"
    even = shares("themis", [J(work=50.0), J(work=100.0)], 1)
    assert even == pytest.approx([0.5, 0.5], rel=1e-2), "alike where all have just come"


@pytest.mark.parametrize("unit", ["samples", "steps"])
def test_most_throughput_goes_to_the_fastest(unit: str) -> None:
    jobs = [J(speed=(0.01,)), J(speed=(0.05,)), J(speed=(0.03,))]
    share = shares(f"max_sum_throughput:unit={unit}", jobs, 1)
    assert share[1] == pytest.approx(1.0)
    assert 0 < share[0] < share[2] < 0.01, "those left over are ranked by what they lack"


def test_allox_runs_short_jobs_of_the_oldest_first() -> None:
    jobs = [J(work=300.0, submitted=0.0), J(work=100.0, submitted=1.0), J(work=10.0, submitted=2.0)]
    assert shares("allox:alpha=0.7", jobs, 1, time=9.0).tolist() == [0.0, 1.0, 0.0], "the third is not among the oldest"
    assert shares("allox:alpha=1", jobs, 1, time=9.0).tolist() == [0.0, 0.0, 1.0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 3))
def test_the_first_on_workers_start_the_best_sequence(seed: int, count: int, workers: int) -> None:
    seconds = np.random.default_rng(seed).uniform(1.0, 9.0, count)

    def total(order: tuple[int, ...]) -> float:
        return sum(float(np.cumsum(seconds[list(order[first::workers])]).sum()) for first in range(workers))

    best = min(total(order) for order in permutations(range(count)))
    first = np.flatnonzero(first_on_workers(seconds[:, None], np.array([workers])) == 0)
    assert len(first) == min(count, workers)
    rest = sorted(set(range(count)) - set(first.tolist()))
    assert min(total((*lead, *order)) for lead in permutations(first.tolist()) for order in permutations(rest)) == (
        pytest.approx(best)
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30), st.floats(0.01, 0.99))
def test_the_centre_fits_and_no_small_change_has_a_larger_product(seed: int, count: int, filled: float) -> None:
    rng = np.random.default_rng(seed)
    gpus, lowest = rng.integers(1, 5, count), rng.uniform(0.0, 0.9, count)
    room = max(int(np.ceil(gpus @ lowest / filled)), int(gpus.max()))
    one = np.ones((count, 1))
    share = centre(one, 0.5 / np.maximum(lowest, 1e-9)[:, None], 0.5, gpus, np.array([room]))[:, 0]
    assert (share >= lowest).all()
    assert (share <= 1).all()
    assert gpus @ share <= room

    def product(at: FloatArray) -> float:
        slack = np.concatenate([at, at - lowest, 1 - at, [room - gpus @ at]])
        return float(np.log(slack).sum()) if (slack > 0).all() else -np.inf

    for _ in range(5):
        assert product(share + rng.normal(0, 1e-3, count)) <= product(share) + 1e-4


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 3))
def test_shares_are_possible_fair_ones_leave_no_job_out_and_the_largest_sum_is_no_less(
    seed: int, count: int, kinds: int
) -> None:
    rng = np.random.default_rng(seed)
    gpus, room = rng.integers(1, 5, count), rng.integers(0, 6, kinds)
    value = rng.uniform(0.1, 5.0, (count, kinds))
    share, least, lacks = best_shares(value, gpus, room, fair=False)
    fair, fair_least, _ = best_shares(value, gpus, room)
    for found in (share, fair):
        assert (found >= -1e-9).all()
        assert (found.sum(axis=1) <= 1 + 1e-6).all()
        assert (gpus @ found <= room + 1e-6).all()
    shared = fair_shares(value, gpus, room)
    assert ((shared.sum(axis=1) > 0) == (gpus[:, None] <= room).any(axis=1)).all()
    assert (gpus @ shared <= room + 1e-6).all()
    assert (share * value).sum() >= (fair * value).sum() - 1e-6
    assert fair_least >= least == 0
    assert (lacks >= 0).all()


@pytest.mark.parametrize("policy", ALL)
def test_shares_stand_and_newcomers_wait_until_they_are_renewed(policy: str) -> None:
    jobs = [job(0, gpus=1, epochs=1e4), job(1, submit=70.0, gpus=1, epochs=1e4)]
    for renew, starts in ((600.0, 660.0), (0.0, 120.0)):
        cluster = make_cluster(jobs, linear_tables(), (4,), decide_on="interval", interval=60.0)
        decides, queue = make_policy(f"{policy}:round=60,renew={renew:g}"), Queue(QueueSettings())
        while np.isnan(cluster.store.start_time).any():
            state = queue.order(cluster.state())
            cluster.apply(state, queue.admit(state, decides(state), policy))
            cluster.advance()
        assert cluster.store.start_time.tolist() == [60.0, starts]


def test_steps_favour_the_small_batch_of_jobs_whose_batch_changes() -> None:
    by_size = {4: 10.0, 64: 5.0}
    given_ = {
        "small": ScheduledModel(6400, np.array([4, 4]), by_size),
        "grown": ScheduledModel(6400, np.array([64, 64]), by_size),
    }
    tables = compile_tables(ScheduledProfiles(given_), [JobType(name) for name in given_], 1, 1)
    jobs = [job(j, model=name, gpus=1, epochs=2.0, data_size=6400.0) for j, name in enumerate(given_)]
    for unit, first in (("steps", 0), ("samples", 1)):
        cluster = SimulatedCluster([Node(1)], jobs, tables, SimulatorSettings())
        allocation = make_policy(f"max_sum_throughput:unit={unit}")(cluster.state())
        assert allocation.gpus.tolist() == [1 - first, first]
