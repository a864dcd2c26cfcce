"""What a simulated cluster refuses and shows, and jobs that become known while time passes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rlpto.core.cluster import Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.rewards import RewardWeights
from rlpto.io.errors import ConfigError, JobError
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import Case, cases, give, job, linear_tables, make_cluster, played


def test_a_job_that_wants_more_than_there_is_is_named():
    with pytest.raises(JobError, match="job1 wants 7 GPUs, but the cluster has 6 in all"):
        make_cluster([job(0, gpus=6), job(1, gpus=7)], linear_tables(), [4, 2])


@pytest.mark.parametrize("nodes", [(), (Node(0),)])
def test_a_cluster_needs_gpus(nodes):
    with pytest.raises(ConfigError, match="no GPUs"):
        SimulatedCluster(nodes, [], linear_tables(), SimulatorSettings())


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"epoch_resolution": 1}, "epoch_resolution 1 needs decide_on: interval"),
        ({"growth": "overlap", "placement": "most_free"}, "growth overlap needs placement: pack"),
        ({"share": 2, "decide_on": "interval"}, "share 2 needs decide_on: events"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(given_, said):
    with pytest.raises(ValidationError, match=said):
        SimulatorSettings(**given_)


def test_states_show_jobs_in_order_of_submission():
    cluster = make_cluster([job(i, 0.0 if i < 2 else 5.0) for i in range(3)], linear_tables(), interval=5)
    assert cluster.state().jobs.index.tolist() == [0, 1]
    give(cluster, [1, 0])
    cluster.advance()
    jobs = cluster.state().jobs
    assert jobs.index.tolist() == [0, 1, 2]
    assert jobs.gpus.tolist() == [1, 0, 0]
    assert jobs.waiting.tolist() == [False, True, True]
    assert jobs.attained_service.tolist() == [5.0, 0.0, 0.0]


def test_nothing_is_forgotten_however_often_allocations_are_applied():
    """Every change is in the log, also when the caller never lets time pass."""
    cluster = make_cluster([job()], linear_tables(), interval=1)
    for _ in range(500):
        give(cluster, [1])
        give(cluster, [0])
    changes = cluster.changes()
    assert changes.gpus.tolist() == [1, 0] * 500
    assert np.unique(changes.time).tolist() == [0.0]
    assert cluster.store.peak_gpus.tolist() == [1]


def test_policies_see_the_rescale_delay_that_the_settings_impose() -> None:
    settings = SimulatorSettings(rescale_delay=42.0)
    cluster = SimulatedCluster((Node(4),), [job()], linear_tables(delay=5.0), settings)
    assert cluster.state().jobs.rescale_delay.tolist() == [42.0]
    assert cluster.rescale_delay.tolist() == [42.0]


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
            finished.append(played(cluster, "fifo").jobs.finish_time)
        np.testing.assert_array_equal(*finished)


def test_a_cluster_whose_jobs_have_ended_is_done_only_once_its_source_is_closed() -> None:
    shape = make_cluster([], linear_tables()).shape
    source = Portions([[job(0, 0.0, epochs=0.1)], [job(1, 1e5, epochs=0.1)], []])
    cluster = SimulatedCluster(shape, (), linear_tables(), SimulatorSettings(), source=source)
    played(cluster, "fifo")
    assert np.isfinite(cluster.store.finish_time).all()
    assert len(cluster.store) == 2
    assert cluster.done


def test_jobs_of_the_past_are_refused() -> None:
    cluster = make_cluster([job(0, 0.0, epochs=5.0), job(1, 100.0)], linear_tables())
    with pytest.raises(JobError, match="job job2: submitted at 99 s, expected 100 or later"):
        cluster.append([job(2, 99.0)])
    with pytest.raises(JobError, match="wants 9 GPUs"):
        cluster.append([job(2, 100.0, gpus=9)])
