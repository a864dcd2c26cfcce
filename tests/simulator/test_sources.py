"""Jobs that become known while time passes: nothing is lost, and nothing is otherwise than if all had been known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.errors import JobError
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import Case, cases, job, linear_tables, make_cluster


class Portions:
    """Gives jobs in portions, one at each look; a portion of none makes the cluster wait."""

    def __init__(self, portions: Sequence[Sequence[Job]]) -> None:
        self._left = list(portions)
        self.waits = 0

    @property
    def closed(self) -> bool:
        return not self._left

    def poll(self) -> list[Job]:
        return list(self._left.pop(0)) if self._left else []

    def wait(self) -> None:
        self.waits += 1


@settings(max_examples=30)
@given(cases(), st.lists(st.integers(0, 20), max_size=6))
def test_a_source_gives_the_same_run_as_if_all_had_been_known(case: Case, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(case.jobs)) for cut in cuts), len(case.jobs)]
    portions = [case.jobs[a:b] for a, b in pairwise(bounds)]
    records = []
    for jobs, source in ((case.jobs, None), ((), Portions(portions))):
        cluster = SimulatedCluster(case.nodes, jobs, case.tables, case.settings, case.seed, source=source)
        records.append(run(cluster, make_policy(case.policy), case.queue, RewardWeights(), seed=case.seed))
    fixed, grown = records
    assert grown.jobs.names == fixed.jobs.names, "no job is lost"
    for column in ("start_time", "finish_time", "gpu_seconds", "rescales", "peak_gpus"):
        np.testing.assert_array_equal(getattr(grown.jobs, column), getattr(fixed.jobs, column))
    np.testing.assert_array_equal(grown.decisions.reward, fixed.decisions.reward)
    np.testing.assert_array_equal(grown.changes.gpus, fixed.changes.gpus)


def test_time_waits_for_what_may_come_before_the_next_decision() -> None:
    source = Portions([[job(0, 0.0)], [], [job(1, 500.0)], []])
    shape = make_cluster([], linear_tables()).shape
    cluster = SimulatedCluster(shape, (), linear_tables(), SimulatorSettings(), source=source)
    assert cluster.time == 0.0
    assert not cluster.done
    record = run(cluster, make_policy("fifo"), QueueSettings(), RewardWeights())
    assert record.jobs.finish_time.tolist() == pytest.approx([100.0, 600.0])
    assert source.waits == 1


def test_time_waits_for_jobs_where_a_node_fails_in_an_idle_cluster() -> None:
    jobs = [job(0, 0.0, epochs=0.1), job(1, 943.0), job(2, 952.0)]
    settings = SimulatorSettings(
        interval=300.0, decide_on="interval", failures=FailureSettings(mtbf_hours=0.1, mttr_hours=0.01)
    )
    shape = make_cluster([], linear_tables()).shape
    for seed in range(8):
        finished = []
        for known, source in ((jobs, None), ((), Portions([jobs[:2], jobs[2:], []]))):
            cluster = SimulatedCluster(shape, known, linear_tables(), settings, seed, source=source)
            finished.append(run(cluster, make_policy("fifo"), QueueSettings(), RewardWeights()).jobs.finish_time)
        np.testing.assert_array_equal(*finished)


def test_a_cluster_whose_jobs_have_ended_is_done_only_once_its_source_is_closed() -> None:
    shape = make_cluster([], linear_tables()).shape
    source = Portions([[job(0, 0.0, epochs=0.1)], [job(1, 1e5, epochs=0.1)], []])
    cluster = SimulatedCluster(shape, (), linear_tables(), SimulatorSettings(), source=source)
    run(cluster, make_policy("fifo"), QueueSettings(), RewardWeights())
    assert np.isfinite(cluster.store.finish_time).all()
    assert len(cluster.store) == 2
    assert cluster.done


def test_jobs_of_the_past_are_refused() -> None:
    cluster = make_cluster([job(0, 0.0, epochs=5.0), job(1, 100.0)], linear_tables())
    with pytest.raises(JobError, match="job job2: submitted at 99 s, expected 100 or later"):
        cluster.append([job(2, 99.0)])
    with pytest.raises(JobError, match="wants 9 GPUs"):
        cluster.append([job(2, 100.0, gpus=9)])


def test_stores_grow_by_doubling() -> None:
    cluster = make_cluster([job(0, 0.0)], linear_tables())
    rooms = set()
    for i in range(1, 200):
        cluster.append([job(i, float(i))])
        rooms.add(len(cluster.store.room))
    assert len(cluster.store) == 200
    assert len(rooms) <= 9
