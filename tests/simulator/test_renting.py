"""Rented nodes: when they can be used, what they cost, and how they are given back."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Node
from rlpto.core.loop import DecisionLoop, run
from rlpto.core.queues import QueueSettings
from rlpto.core.records import NodeRecords
from rlpto.core.renting import RentedSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import PolicyError
from rlpto.policies.registry import make_policy
from rlpto.provisioning.control import SimulatedNodes
from rlpto.provisioning.demand import demand_of
from rlpto.provisioning.rules import Reactive
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import job, linear_tables, random_jobs, random_tables

PRICE = 3.0


def nodes(count: int, gpus: int = 4, least: int = 0, **rented: float) -> list[Node]:
    """Rented nodes, `least` of them there from the start."""
    settings = RentedSettings(most=count, least=least, **({"boot": 200.0, "idle": 0.0, "minimum": 0.0} | rented))
    return [Node(gpus, price=PRICE, rented=settings, up=number < least) for number in range(count)]


def run_with(cluster: SimulatedCluster, wanted: Sequence[int], policy: str = "fifo") -> FloatArray:
    """Rent wanted[minute] nodes, the last number from then on, until all jobs are done; [P, 3] time, GPUs up, cost."""
    loop, decides, seen, cost = DecisionLoop(cluster, QueueSettings()), make_policy(policy), [], 0.0
    decides.reset(0)
    while not cluster.done:
        if cluster.time >= cluster.next_rent:
            minute = min(int(cluster.time / 60 + 1e-6), len(wanted) - 1)
            cluster.rent(np.array([wanted[minute]]))
            seen.append((cluster.time, float(cluster.up_gpus), cost))
        loop.decide(decides)
        cost += float(cluster.advance()["cost"].sum())
    seen.append((cluster.time, float(cluster.up_gpus), cost))
    return np.array(seen)


def test_a_job_starts_at_the_second_its_node_has_booted_and_the_node_costs_from_request_to_return():
    jobs = [job(epochs=1.0, submit=30.0, gpus=1)]
    tables = linear_tables()
    cluster = SimulatedCluster(tuple(nodes(2, gpus=1)), jobs, tables, SimulatorSettings())
    seen = run_with(cluster, [0, 1])
    assert cluster.store.start_time[0] == 60 + 200
    assert seen[-1, 2] == pytest.approx((seen[-1, 0] - 60) * PRICE / 3600)


def test_a_rented_cluster_that_starts_without_jobs_counts_the_work_of_later_ones() -> None:
    done = []
    for jobs in ([], [job(epochs=1.0)]):
        cluster = SimulatedCluster(tuple(nodes(1, gpus=1, least=1)), jobs, linear_tables(), SimulatorSettings())
        if not jobs:
            cluster.append([job(epochs=1.0)])
            cluster.advance()
        run_with(cluster, [1])
        done.append(cluster.work_done())
    assert done[0] == done[1]
    assert done[0][0] > 0


def test_an_idle_node_is_kept_for_its_idle_time_and_its_least_time():
    jobs = [job(epochs=50.0, gpus=4)]
    for rented, kept in (({"idle": 300.0}, 540), ({"minimum": 1200.0}, 1200), ({}, 300)):
        cluster = SimulatedCluster(tuple(nodes(3, **rented)), jobs, linear_tables(), SimulatorSettings())
        seen = run_with(cluster, [2, 2, 2, 2, 2, 1])
        both = seen[seen[:, 1] == 8, 0]  # at decisions; the nodes have booted at 200 s, and one is found empty at 240 s
        assert (both.min(), both.max() + 60) == (240, kept)


def test_jobs_of_a_node_that_is_drained_move_and_lose_nothing():
    jobs = [job(0, epochs=12.0, gpus=2), job(1, epochs=2.0, gpus=2), job(2, epochs=12.0, gpus=2)]
    cluster = SimulatedCluster(tuple(nodes(2, least=2)), jobs, linear_tables(), SimulatorSettings())
    seen = run_with(cluster, [2, 2, 2, 1])
    assert seen[-2, 1] == 4  # both fit one node once the second job has finished
    assert sorted(cluster.store.rescales.tolist()) == [0, 0, 1]
    assert np.isfinite(cluster.store.finish_time).all()
    assert np.allclose(cluster.store.progress, cluster.store.epochs)


def test_a_rented_node_that_fails_is_paid_no_longer_and_can_be_asked_for_once_it_is_repaired():
    failures = FailureSettings(mtbf_hours=0.5, mttr_hours=0.2)
    rules = SimulatorSettings(failures=failures)
    cluster = SimulatedCluster(tuple(nodes(1)), [job(epochs=1e4, gpus=1)], linear_tables(), rules, 4)
    up = paid = 0.0
    while cluster.time < 100 * 3600:
        if cluster.time >= cluster.next_rent:
            cluster.rent(np.array([1]))
        before = cluster.time
        paid += float(cluster.advance()["cost"].sum())
        up += (cluster.time - before) * (cluster.up_gpus > 0)
    assert 0.4 < up / cluster.time < 0.9
    booting = paid * 3600 / PRICE / 4 - up
    assert 0 < booting < 0.3 * cluster.time  # boots are paid, the repair is not


def test_boot_times_are_lognormal_around_their_median():
    cluster = SimulatedCluster(
        tuple(nodes(400, gpus=1, boot=300.0, boot_spread=0.5)), [job(epochs=1e3)], linear_tables(), SimulatorSettings()
    )
    cluster.rent(np.array([400]))
    boots = []
    while len(boots) < 400:
        before = cluster.up_gpus
        cluster.advance()
        boots += [cluster.time] * (cluster.up_gpus - before)
    assert np.median(boots) == pytest.approx(300, rel=0.1)
    assert np.log(boots).std() == pytest.approx(0.5, rel=0.15)


class Never:
    """Rents nothing."""

    due = np.inf

    def decide(self) -> None:
        """It is never asked."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.advance = cluster.advance

    def records(self) -> NodeRecords:
        """No decisions."""
        return NodeRecords()


def test_a_run_in_which_no_node_is_ever_rented_for_jobs_that_wait_ends_in_a_line():
    cluster = SimulatedCluster(tuple(nodes(1)), [job(), job(1)], linear_tables(), SimulatorSettings())
    with pytest.raises(PolicyError, match=r"^no job has had GPUs for 30 days, and 2 wait .* rents nodes for them$"):
        run(cluster, make_policy("fifo"), QueueSettings(), RewardWeights(), nodes=Never(cluster))


@given(st.integers(0, 10_000), st.lists(st.integers(0, 6), min_size=1, max_size=60), st.sampled_from(["fifo", "index"]))
def test_any_numbers_of_nodes_leave_a_cluster_in_order(seed, wanted, policy):
    """All jobs finish, nodes cost what they are rented for, and no job holds GPUs of a node that is not there."""
    rng, tables = np.random.default_rng(seed), random_tables(seed, 8, 10.0)
    rented = nodes(6, gpus=2, least=0, boot=float(rng.choice([0.0, 90.0, 300.0])), idle=float(rng.choice([0.0, 200.0])))
    fixed = [Node(4)] if rng.random() < 0.5 else []
    jobs = random_jobs(seed, 8, 8, 4 if not fixed else 8)
    cluster = SimulatedCluster((*fixed, *rented), jobs, tables, SimulatorSettings(), seed)
    seen = run_with(cluster, [*wanted, 6], policy)
    assert np.isfinite(cluster.store.finish_time).all()
    assert (np.diff(seen[:, 2]) >= 0).all()
    most = PRICE / 3600 * 2 * 6 * seen[-1, 0]
    assert 0 <= seen[-1, 2] <= most + 1e-9


def test_the_same_seed_gives_the_same_nodes():
    def times(seed: int) -> list[float]:
        cluster = SimulatedCluster(
            tuple(nodes(4, boot_spread=0.4)),
            random_jobs(1, 6, 4, 16),
            random_tables(1, 4, 5.0),
            SimulatorSettings(),
            seed,
        )
        run_with(cluster, [4])
        return cluster.store.finish_time.tolist()

    assert times(1) == times(1) != times(2)


def test_nodes_drained_together_leave_gpus_for_all_their_jobs():
    """Two nodes could be emptied singly, but not together: no running job stands still."""
    settings = RentedSettings(most=4, boot=300.0, idle=0.0, minimum=3600.0)
    long, short = 9000.0, 3670.0
    sizes = [(long, 3), (short, 3), (short, 3), (short, 1), (long, 1), (long, 1)]
    jobs = [job(i, epochs=0.01 * seconds * gpus, gpus=gpus) for i, (seconds, gpus) in enumerate(sizes)]
    jobs.append(job(6, submit=3890.0, epochs=0.1, gpus=1))
    rented = tuple(Node(4, price=PRICE, rented=settings, up=False) for _ in range(4))
    cluster = SimulatedCluster(rented, jobs, linear_tables(), SimulatorSettings())
    demand = demand_of(jobs, 240, cluster.shape, (np.zeros(0), np.zeros(0, np.int64)), 0.0)
    provided = SimulatedNodes(cluster, Reactive(), demand.by_minute(), 0.0)
    record = run(cluster, make_policy("fifo"), QueueSettings(), RewardWeights(), nodes=provided)
    moved = False
    for number in (0, 4, 5):
        mine = (record.changes.job == number) & (record.changes.time >= record.jobs.start_time[number])
        time, held = record.changes.time[mine], record.changes.gpus[mine]
        assert np.diff(time)[held[:-1] == 0].sum() == 0, f"job {number} stands still"
        moved |= len(time) > 2
    assert moved, "a node was drained"
