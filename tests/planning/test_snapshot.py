"""What a snapshot holds and what it cannot, and that a scratch cluster stands where the other did."""

import copy
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterState, Node
from rlpto.core.job_table import JobTable
from rlpto.core.loop import run
from rlpto.core.policy import Policy, StandingPolicy
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.knowledge.known import Knowledge
from rlpto.performance.tables import SpeedTables
from rlpto.planning.predictor import JobForecast, predict
from rlpto.planning.snapshot import take_snapshot
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import Scripted, give, job, linear_tables, make_cluster, random_jobs, random_tables, with_batch_sizes
from ..envs.builders import make_noise

NODES = (Node(4), Node(6))
BATCH_SIZES = {100: 0.9, 200: 1.2}
POLICIES = [
    "max_throughput:choose_batch_size=true",
    "fifo",
    "srtf",
    "las",
    "equal_share",
    "optimus",
    "elastic_fifo",
    "max_throughput",
    "tiresias",
    "hesrpt",
]


def watched(policy: Policy, at: int, look: Callable[[ClusterState, Policy], None]) -> Scripted:
    """Decides as `policy` does; at decision number `at` it is looked at first."""
    decisions = count()

    def decide(state: ClusterState) -> Allocation:
        if next(decisions) == at:
            look(state, policy)
        return policy(state)

    watching = Scripted(decide)
    if isinstance(policy, StandingPolicy):  # as in the prediction: srtf ranks again at events only
        watching.stands_until = policy.stands_until
    return watching


def shown(table: JobTable) -> list[np.ndarray]:
    """All that policies look at."""
    plain = ("submit_time", "epochs", "requested_gpus", "min_gpus", "max_gpus", "priority", "gpus", "progress")
    others = ("attained_service", "start_time", "wait_start", "rescales", "peak_gpus", "rescale_delay", "epoch")
    derived = ("effective_priority", "class_rank", "class_weight", "remaining", "speed", "accuracy", "final_accuracy")
    return [getattr(table, name) for name in (*plain, *others, *derived)]


@pytest.mark.parametrize("way", ["pause", "overlap", "most_free"])
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(POLICIES),
    at=st.integers(0, 12),
    interval=st.sampled_from([60.0, 300.0]),
    decide_on=st.sampled_from(["events", "interval"]),
    rule=st.sampled_from([{}, {"classes": "weighted"}]),
)
def test_with_exact_knowledge_predictions_come_true(way, seed, policy, at, interval, decide_on, rule) -> None:
    """No further arrivals, no failures: what was predicted is what happens, under every policy."""
    jobs = [replace(one, submit_time=0.0) for one in random_jobs(seed, 12, 8, 10)]
    growth, placement = ("pause", way) if way == "most_free" else (way, "pack")
    rounded = 1.0 if way == "most_free" and decide_on == "interval" else 0.0
    times = SimulatorSettings(
        interval=interval, decide_on=decide_on, growth=growth, placement=placement, epoch_resolution=rounded
    )
    queue = QueueSettings(aging_normal=500.0, aging_low=700.0, **rule)
    tables = with_batch_sizes(random_tables(seed, 8, 13.0), BATCH_SIZES)
    cluster = SimulatedCluster(NODES, jobs, tables, times)
    made: list[JobForecast] = []

    def look(state: ClusterState, policy: Policy) -> None:
        made.append(predict(take_snapshot(cluster, state), policy, queue, times))
        assert_same(made[0], predict(take_snapshot(cluster, state), policy, queue, times))

    record = run(cluster, watched(make_policy(policy), at, look), queue, RewardWeights())
    for found in made:
        np.testing.assert_allclose(found.finish, record.jobs.finish_time[found.index], rtol=1e-9)
        np.testing.assert_allclose(found.start, record.jobs.start_time[found.index], rtol=1e-9)


def assert_same(one: JobForecast, other: JobForecast) -> None:
    """Equal to the last bit."""
    for there, here in zip(fields(one), fields(other), strict=True):
        np.testing.assert_array_equal(getattr(one, there.name), getattr(other, here.name))


@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(POLICIES),
    at=st.integers(0, 12),
    mode=st.sampled_from(["exact", "noisy", "known", "known and noisy", "metric", "metric and noisy"]),
    classes=st.sampled_from(["strict", "weighted"]),
)
def test_a_scratch_cluster_shows_and_decides_the_same(
    seed: int, policy: str, at: int, mode: str, classes: Literal["strict", "weighted"]
) -> None:
    tables = with_batch_sizes(random_tables(seed, 8, 13.0), BATCH_SIZES)
    if "known" in mode:
        tables = with_known(tables, seed)
    if "metric" in mode:
        tables = with_scores(tables, seed)
    jobs = random_jobs(seed, 12, 8, 10)
    times, queue = SimulatorSettings(), QueueSettings(classes=classes, aging_normal=500.0, aging_low=700.0)
    known = Knowledge(make_noise(seed, 12) if "noisy" in mode else None)
    cluster = SimulatedCluster(NODES, jobs, tables, times, knowledge=known)

    def look(source: ClusterState, policy: Policy) -> None:
        snapshot = take_snapshot(cluster, source)
        scratch = snapshot.restore(times)
        state = Queue(queue).order(scratch.state())
        assert (state.time, state.shape, state.interval) == (source.time, source.shape, source.interval)
        for there, here in zip(shown(source.jobs), shown(state.jobs), strict=True):
            np.testing.assert_allclose(here, there, rtol=1e-9, atol=1e-12)
        assert [scratch.nodes_of(i).tolist() for i in range(len(snapshot.index))] == [
            cluster.nodes_of(int(i)).tolist() for i in snapshot.index
        ]
        mine, its = copy.deepcopy(policy)(source), copy.deepcopy(policy)(state)
        np.testing.assert_array_equal(its.gpus, mine.gpus)
        np.testing.assert_array_equal(its.batch_size, mine.batch_size)

    run(cluster, watched(make_policy(policy), at, look), queue, RewardWeights())


def with_scores(tables: SpeedTables, seed: int) -> SpeedTables:
    """Tables of jobs whose metric is not goodput: policies see other speeds than the true ones."""
    factor = np.random.default_rng(seed).uniform(0.5, 2.0, tables.rates.shape)
    return replace(tables, score_rates=tables.rates * factor)


def with_known(tables: SpeedTables, seed: int) -> SpeedTables:
    """Tables with work and speed in units of their own, as measurements have."""
    rng = np.random.default_rng(seed)
    types, epochs = len(tables.types), tables.rates.shape[1]
    work = rng.uniform(50, 100, (types, epochs))
    remaining = np.zeros((types, epochs + 1))
    remaining[:, :-1] = work[:, ::-1].cumsum(axis=1)[:, ::-1]
    speed = np.concatenate([np.zeros((types, 1)), rng.uniform(1, 2, (types, tables.max_gpus)).cumsum(axis=1)], axis=1)
    return replace(tables, known_remaining=remaining, known_speed=speed)


def forecast(cluster: SimulatedCluster, policy: str = "srtf") -> JobForecast:
    """What is predicted for the present jobs of a cluster."""
    state = Queue(QueueSettings()).order(cluster.state())
    return predict(take_snapshot(cluster, state), make_policy(policy), QueueSettings(), SimulatorSettings())


class TestWhatIsNotKnown:
    def test_jobs_that_will_come_cannot_leak(self) -> None:
        now = [job(0, epochs=2.0, max_gpus=4), job(1, epochs=5.0, max_gpus=4)]
        later = [[job(2, 100.0, epochs=50.0, priority=0)], [job(2, 100.0, epochs=0.1), job(3, 101.0)]]
        found = []
        for more in later:
            cluster = make_cluster([*now, *more], linear_tables())
            give(cluster, [1, 1])
            found.append(forecast(cluster))
        assert len(found[0].index) == 2
        assert_same(*found)

    def test_failures_to_come_are_not_known_and_nodes_that_are_down_stay_down(self) -> None:
        failing = SimulatorSettings(failures=FailureSettings(mtbf_hours=0.2, mttr_hours=50.0))
        jobs = [job(0, epochs=50.0, gpus=4), job(1, epochs=1.0, gpus=1)]
        cluster = SimulatedCluster((Node(4), Node(1)), jobs, linear_tables(), failing, 1)
        hopeful = forecast(cluster, "fifo")
        assert np.isfinite(hopeful.finish).all()
        while cluster.up_gpus != 1 and not cluster.done:
            cluster.advance()
        assert cluster.up_gpus == 1
        after = forecast(cluster, "elastic_fifo")
        assert np.isnan(after.finish[0]), "it is not known when the large node will be back"
        assert np.isnan(after.start[0])


def test_policies_know_jobs_by_their_numbers_in_the_cluster() -> None:
    """tiresias has demoted job 0, which ended before the others came: none of them is demoted for that."""
    jobs = [job(0, epochs=2.0), job(1, submit=300.0, epochs=2.0), job(2, submit=310.0, epochs=2.0)]
    cluster, policy = make_cluster(jobs, linear_tables(), (1,), interval=60.0), make_policy("tiresias:threshold=100")
    made, times = list[JobForecast](), SimulatorSettings(interval=60.0)

    def decide(state: ClusterState) -> Allocation:
        if len(state.jobs) == 2 and not made:
            made.append(predict(take_snapshot(cluster, state), policy, QueueSettings(), times))
        return policy(state)

    watching = Scripted(decide)
    watching.stands_until = policy.stands_until
    record = run(cluster, watching, QueueSettings(), RewardWeights())
    assert made[0].index.tolist() == [1, 2]
    np.testing.assert_allclose(made[0].start, record.jobs.start_time[1:])
    np.testing.assert_allclose(made[0].finish, record.jobs.finish_time[1:])


OWNER = """
import time
from rlpto.planning.predictor import own_process

if __name__ == "__main__":
    pool = own_process()
    pool.submit(abs, -1).result()
    print(*pool._processes, flush=True)
    time.sleep(600)
"""
"""A stand-in for the scheduler: it looks ahead, says in which process, and waits to be killed."""


@pytest.mark.slow
def test_it_ends_when_the_scheduler_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "owner.py"
    program.write_text(OWNER)
    owner = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    ahead = int(owner.stdout.readline())
    assert psutil.pid_exists(ahead)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    while psutil.pid_exists(ahead):
        time.sleep(0.05)
