"""What must hold for every workload, cluster, policy and all settings."""

import numpy as np
import pytest
from hypothesis import given

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.loop import run
from rlpto.core.policy import StandingPolicy
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster

from ..builders import PRICE, Case, Scripted, cases, played

WEIGHTS = RewardWeights(money=0.1)


class WatchedCluster(SimulatedCluster):
    """Checks every step of a simulated cluster, and keeps what it reported."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.reports: list[AnyArray] = []
        super().__init__(case.nodes, case.jobs, case.tables, case.settings, case.seed)

    def apply(self, state: ClusterState, allocation: Allocation) -> None:
        before = {int(j): self.nodes_of(j) for j in state.jobs.index}
        super().apply(state, allocation)
        rows = allocation.placement if allocation.placement is not None else [None] * len(state.jobs)
        for j, gpus, row in zip(state.jobs.index, allocation.gpus, rows, strict=True):
            nodes = self.nodes_of(j)
            assert len(nodes) == self.store.gpus[j] == gpus
            starts = 1 + np.count_nonzero(np.diff(nodes)) if gpus else 0
            assert starts == len(np.unique(nodes)), "GPUs of one node stand together"
            if row is not None:
                assert np.array_equal(np.bincount(nodes, minlength=len(row)), row), "jobs go where a policy places them"
            elif len(before[j]) == gpus:
                assert np.array_equal(nodes, before[j]), "unchanged jobs stay where they are"
            elif gpus < len(before[j]) and self.case.settings.placement == "pack":
                kept, had = np.bincount(nodes, minlength=9), np.bincount(before[j], minlength=9)
                assert (kept <= had).all(), "a job shrinks in place"
        self.check_nodes()

    def advance(self, until: float = -np.inf) -> AnyArray:  # noqa: ARG002
        """One decision point at a time, so that every one is checked."""
        before, progress = self.time, self.store.progress.copy()
        report = super().advance().copy()
        self.reports.append(report)
        assert report["start"] == before
        assert report["end"] == self.time >= before
        if not self.case.settings.failures.on and not any(node.spot for node in self.case.nodes):
            assert (self.store.progress >= progress).all(), "work is never lost"
        assert (self.store.progress <= self.store.epochs).all()
        came = self.store.submit_time <= self.time
        on_curve = self.table_of(np.arange(len(self.jobs))).accuracy
        np.testing.assert_allclose(self._world.jobs["accuracy"][0, came], on_curve[came], rtol=1e-9)
        self.check_nodes()
        return report

    def check_nodes(self) -> None:
        machines = self._world.machines[0]
        held = np.zeros(len(machines), dtype=np.int64)
        for j in np.flatnonzero(self.store.gpus):
            np.add.at(held, self.nodes_of(j), 1)
        assert np.array_equal(held + self._world.free[0], machines["size"] * machines["up"])
        assert self.held_gpus == held.sum() == self.store.gpus.sum() <= self.up_gpus
        assert self.up_gpus == (machines["size"] * machines["up"]).sum()


def held_seconds(record: RunRecord) -> FloatArray:
    """[M] GPU-seconds of every job, from the changes alone."""
    held = np.zeros(len(record.jobs.names))
    gpus = np.zeros(len(held), dtype=np.int64)
    since = np.zeros(len(held))
    for time, j, now in zip(record.changes.time, record.changes.job, record.changes.gpus, strict=True):
        held[j] += gpus[j] * (time - since[j])
        gpus[j], since[j] = now, time
    assert not gpus.any(), "everything is given back"
    return held


def total_after(record: RunRecord) -> IntArray:
    """GPUs held in all after the last change of each moment."""
    gpus = np.zeros(len(record.jobs.names), dtype=np.int64)
    totals = []
    for i, (j, now) in enumerate(zip(record.changes.job, record.changes.gpus, strict=True)):
        gpus[j] = now
        if i + 1 == len(record.changes.time) or record.changes.time[i + 1] > record.changes.time[i]:
            totals.append(gpus.sum())
    return np.array(totals)


def same(a: RunRecord, b: RunRecord) -> bool:
    """True if two runs agree bit for bit on all that is not wall-clock time."""
    pairs = [(vars(a.jobs), vars(b.jobs)), (vars(a.changes), vars(b.changes))]
    return all(
        np.array_equal(np.asarray(one[key]), np.asarray(two[key]), equal_nan=np.asarray(one[key]).dtype.kind == "f")
        for one, two in pairs
        for key in one
    )


@given(cases())
def test_every_run_adds_up(case: Case) -> None:
    cluster = WatchedCluster(case)
    record = run(cluster, make_policy(case.policy), case.queue, WEIGHTS, seed=case.seed)
    jobs, changes, decisions = record.jobs, record.changes, record.decisions
    # Every job runs, once, and after it came.
    assert cluster.done
    assert cluster.active_jobs == 0
    assert cluster.held_gpus == 0
    assert np.isfinite(jobs.finish_time).all()
    assert (jobs.start_time >= jobs.submit_time).all()
    assert (jobs.finish_time >= jobs.start_time).all()
    if not case.settings.epoch_resolution:  # else an epoch of less than half of it takes no time
        assert (jobs.finish_time > jobs.start_time).all()
    assert np.concatenate(cluster.reports)["finished"].sum() == len(jobs.names)
    assert np.array_equal(cluster.store.progress, cluster.store.epochs)
    for j in range(len(jobs.names)):
        own = np.flatnonzero(changes.job == j)
        assert changes.time[own[0]] == jobs.start_time[j]
        assert changes.time[own[-1]] == jobs.finish_time[j]
        assert changes.gpus[own[-1]] == 0
        assert jobs.peak_gpus[j] == changes.gpus[own].max()
    # Never more GPUs than there are; time goes forward.
    assert (np.diff(changes.time) >= 0).all()
    assert (np.diff(decisions.time) >= 0).all()
    assert (total_after(record) <= cluster.shape.capacity).all()
    assert (decisions.held <= decisions.capacity).all()
    assert (decisions.waiting <= decisions.active).all()
    # GPU-seconds add up on every path.
    np.testing.assert_allclose(held_seconds(record), jobs.gpu_seconds, rtol=1e-9, atol=1e-6)
    assert np.concatenate(cluster.reports)["gpu_seconds"].sum() == pytest.approx(jobs.gpu_seconds.sum(), rel=1e-9)
    assert decisions.cost.sum() == pytest.approx(PRICE * jobs.gpu_seconds.sum() / 3600, rel=1e-9)
    # The reward is what the metrics say.
    accuracy, time, resources, rescale, _, money = decisions.reward.sum(axis=0)
    assert time == pytest.approx(-WEIGHTS.time * (jobs.finish_time - jobs.submit_time).sum() / 3600, rel=1e-9)
    assert resources == pytest.approx(-WEIGHTS.resources * jobs.gpu_seconds.sum() / 3600, rel=1e-9)
    assert money == pytest.approx(-WEIGHTS.money * decisions.cost.sum())
    assert accuracy == pytest.approx(WEIGHTS.accuracy * np.array(WEIGHTS.classes)[jobs.priority].sum(), rel=1e-9)
    delays = (jobs.rescales * cluster.rescale_delay).sum()
    if case.settings.growth == "pause":
        assert rescale == pytest.approx(-WEIGHTS.rescale * delays / 3600, rel=1e-9, abs=1e-12)
    else:  # only a start costs its delay
        assert -WEIGHTS.rescale * delays / 3600 - 1e-9 <= rescale <= 0
    # No job beats the bound.
    rounding = case.settings.epoch_resolution / 2 * np.ceil(jobs.epochs)
    assert (jobs.finish_time - jobs.submit_time >= jobs.alone_time * (1 - 1e-9) - rounding).all()


@given(cases())
def test_same_seed_same_run(case: Case) -> None:
    clusters = (SimulatedCluster(case.nodes, case.jobs, case.tables, case.settings, case.seed) for _ in range(2))
    assert same(*(played(cluster, case.policy, case.queue, case.seed) for cluster in clusters))


@given(cases(policies=("fifo", "fifo:backfill=true", "sjf", "las", "las:levels=[300,1000]", "tiresias:threshold=900")))
def test_a_skipped_decision_changes_nothing(case: Case) -> None:
    standing, asked = make_policy(case.policy), make_policy(case.policy)
    assert isinstance(standing, StandingPolicy)
    often = Scripted(asked, case.policy)
    often.reset = asked.reset
    assert not isinstance(often, StandingPolicy)
    skipping, asking = (
        played(
            SimulatedCluster(case.nodes, case.jobs, case.tables, case.settings, case.seed),
            decides,
            case.queue,
            case.seed,
        )
        for decides in (standing, often)
    )
    assert len(skipping.decisions.time) <= len(asking.decisions.time)
    assert same(skipping, asking)
