"""The loop between cluster, queue and policy, what it makes of policies that misbehave, and the reward."""

import numpy as np
import pytest

from rlpto.core.cluster import ClusterState
from rlpto.core.loop import MAX_IDLE_POINTS
from rlpto.core.records import intervals
from rlpto.core.rewards import TERMS, RewardWeights, reward_terms, weigh
from rlpto.io.errors import PolicyError
from rlpto.policies.registry import make_policy
from rlpto.simulator.settings import FailureSettings

from ..builders import Scripted, job, linear_tables, make_cluster, played, random_tables


class TestMisbehaviour:
    @pytest.mark.parametrize("failures", [FailureSettings(), FailureSettings(mtbf_hours=0.1, mttr_hours=0.01)])
    @pytest.mark.parametrize("stands", [False, True])
    @pytest.mark.parametrize("decide_on", ["interval", "events"])
    def test_a_policy_that_starves_all_jobs_is_stopped(self, failures, stands, decide_on):
        policy = Scripted(lambda state: np.zeros(len(state.jobs), dtype=int), "lazy")
        if stands:
            policy.stands_until = lambda _: np.inf
        jobs = [job(0), job(1, 5.0)]
        cluster = make_cluster(jobs, linear_tables(), [1, 1], interval=60, decide_on=decide_on, failures=failures)
        with pytest.raises(PolicyError, match=r"policy lazy leaves 2 jobs without GPUs for ever"):
            played(cluster, policy)

    @pytest.mark.parametrize("jobs", [1, 2])
    def test_what_a_policy_writes_into_its_table_changes_no_limit(self, jobs):
        def greedy(state: ClusterState):
            state.jobs.max_gpus[:] = 8
            return np.full(len(state.jobs), 8)

        cluster = make_cluster([job(0, 0, 3.0, 2)] * jobs, linear_tables(gpus=8), sizes=(8,))
        with pytest.raises(PolicyError, match="gave job 0 8 GPUs"):
            played(cluster, Scripted(greedy))

    def test_a_policy_that_changes_which_jobs_there_are_is_stopped(self):
        def confused(state: ClusterState):
            state.jobs.index[:] = 0
            return np.ones(len(state.jobs), dtype=int)

        cluster = make_cluster([job(0), job(1)], linear_tables(), [1, 1])
        with pytest.raises(PolicyError, match=r"has written into state\.jobs\.index"):
            played(cluster, Scripted(confused))

    def test_a_policy_that_stands_until_no_time_is_stopped(self):
        policy = Scripted(lambda state: np.ones(len(state.jobs), dtype=int), "odd")
        policy.stands_until = lambda _: np.nan
        with pytest.raises(PolicyError, match="policy odd: stands_until is NaN"):
            played(make_cluster([job(0), job(1)], linear_tables(), [1, 1]), policy)

    def test_a_policy_may_wait_as_long_as_patience_lasts(self):
        def late(state: ClusterState) -> list[int]:
            return [int(state.time >= 60.0 * (MAX_IDLE_POINTS - 1))]

        record = played(make_cluster([job()], linear_tables(), interval=60), Scripted(late))
        assert record.jobs.start_time[0] == 60.0 * (MAX_IDLE_POINTS - 1)

    def test_no_policy_is_blamed_while_nodes_are_down(self):
        """A repair may take thousands of decision points."""
        rules = FailureSettings(mtbf_hours=0.02, mttr_hours=1.0, checkpoint_interval=10.0)
        cluster = make_cluster([job(epochs=2.0)], linear_tables(), [1], seed=4, interval=1.0, failures=rules)
        record = played(cluster, "fifo")
        assert np.isfinite(record.jobs.finish_time[0])
        assert (record.decisions.capacity == 0).any()
        assert cluster.time > 2 * MAX_IDLE_POINTS

    def test_no_policy_is_blamed_where_jobs_end_together(self):
        """Whenever time has passed no job holds GPUs, since the only one that did has just finished."""
        jobs = [job(i, epochs=0.1) for i in range(MAX_IDLE_POINTS + 2)]
        record = played(make_cluster(jobs, linear_tables(), [1]), "fifo")
        assert record.jobs.finish_time[-1] == pytest.approx(10.0 * len(jobs))

    def test_a_policy_that_rescales_for_ever_is_stopped_and_a_long_rescale_is_no_standstill(self):
        cluster = make_cluster([job(0, gpus=2, min_gpus=1)], linear_tables(delay=90.0), [4])
        turns = Scripted(lambda state: [1 + int(state.time / 60.0) % 2], "fidgety")
        with pytest.raises(PolicyError, match=r"policy fidgety: no job progressed .* rescale"):
            played(cluster, turns)

        cluster = make_cluster([job(0)], linear_tables(delay=70.0 * MAX_IDLE_POINTS), [4])
        record = played(cluster, Scripted(lambda _: [1]))
        assert record.jobs.finish_time[0] > 70.0 * MAX_IDLE_POINTS


class TestRecord:
    def test_a_run_by_hand(self):
        """Two jobs on two GPUs: the second waits for the first, then gets both."""
        jobs = [
            job(0, 0.0, epochs=1.0, gpus=2, data_size=2000.0, priority=0),
            job(1, 10.0, epochs=0.5, gpus=1, max_gpus=2),
        ]
        cluster = make_cluster(jobs, linear_tables(delay=20.0), [2], interval=1000)
        record = played(cluster, Scripted(lambda state: state.jobs.max_gpus), seed=3)
        assert (record.policy, record.seed, record.capacity) == ("scripted", 3, 2)
        own = record.jobs
        assert own.names == ("job0", "job1")
        assert own.models == ("m0", "m0")
        assert own.start_time.tolist() == [0.0, 120.0]
        assert own.finish_time.tolist() == [120.0, 165.0]
        assert own.gpu_seconds.tolist() == [240.0, 90.0]
        assert own.peak_gpus.tolist() == [2, 2]
        assert own.rescales.tolist() == [0, 0]
        assert own.alone_time.tolist() == [120.0, 45.0]
        assert own.requested_time.tolist() == [120.0, 70.0]
        decisions = record.decisions
        assert decisions.time.tolist() == [0.0, 10.0, 120.0]
        assert decisions.held.tolist() == [2, 2, 2]
        assert decisions.active.tolist() == [1, 2, 1]
        assert decisions.waiting.tolist() == [0, 1, 0]
        assert decisions.reward[:, 1].tolist() == pytest.approx([-10 / 3600, -220 / 3600, -45 / 3600])
        assert decisions.reward[:, 0].sum() == pytest.approx(3.0 + 2.0)
        changes = record.changes
        assert changes.time.tolist() == [0.0, 120.0, 120.0, 165.0]
        assert changes.job.tolist() == [0, 0, 1, 1]
        assert changes.gpus.tolist() == [2, 0, 2, 0]
        assert changes.accuracy[1] == own.final_accuracy[0]

    def test_a_run_that_stops_early_says_what_is_not_known(self):
        jobs = [job(0, epochs=1000.0), job(1), job(2, 1e6)]
        record = played(make_cluster(jobs, linear_tables(), [1], max_hours=1.0), "fifo")
        assert record.jobs.start_time[0] == 0.0
        assert np.isnan(record.jobs.finish_time).all()
        assert np.isnan(record.jobs.start_time[1:]).all()
        assert record.jobs.gpu_seconds.tolist() == [3600.0, 0.0, 0.0]
        assert record.decisions.reward[:, 1].sum() == pytest.approx(-2.0)

    def test_policies_start_afresh_with_the_seed_of_the_run(self):
        policy = make_policy("random")
        tables = random_tables(2, 4, 0.0)
        jobs = [job(i, 30.0 * i, epochs=3.0, gpus=1, max_gpus=4) for i in range(8)]

        first, again, other = (
            played(make_cluster(jobs, tables, [4], interval=60), policy, seed=seed).jobs.finish_time.tolist()
            for seed in (1, 1, 2)
        )
        assert first == again != other


def test_every_part_by_hand():
    amounts = {"accuracy": 2.0, "time": 3.0, "resources": 0.5, "rescale": 10.0, "shortfall": 5.0, "money": 0.5}
    weights = RewardWeights(**amounts, classes=(4.0, 2.0, 1.0))
    lost = np.array([[3600.0, 0.0, 1800.0], [0.0, 7200.0, 0.0]])
    sums = intervals(np.array([[0.5, 0.25, 1.0], [0.0, 0.0, 1.0]]), 7200.0, 3600.0 * 8, [360.0, 0.0], lost)
    sums["cost"] = 6.0, 0.0
    parts = reward_terms(sums, weights)
    assert parts[0].tolist() == [2.0 * (2.0 + 0.5 + 1.0), -3.0 * 2, -0.5 * 8, -10.0 * 0.1, -5.0 * 4.5, -3.0]
    assert parts[1].tolist() == [2.0, -6.0, -4.0, 0.0, -5.0 * 4.0, 0.0]
    for at in range(2):
        one = np.zeros(len(TERMS))
        weigh(sums[at : at + 1], weights.record(), one)
        assert one.tolist() == pytest.approx(parts[at].tolist(), rel=1e-15)
