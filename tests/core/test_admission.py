"""GPUs reserved for jobs that have waited too long, under policies that would pass them over."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment
from rlpto.io.errors import ConfigError
from rlpto.policies.registry import make_policy

from ..builders import job, linear_tables, make_cluster

POLICIES = "fifo", "srtf", "sjf", "las", "index", "hesrpt", "tiresias", "equal_share", "optimus", "random"
LATE, DURATION = 600.0, 300.0
RATE = 0.01


def rigid(i: int, submit: float, gpus: int, seconds: float = DURATION) -> Job:
    return job(i, submit, epochs=RATE * gpus * seconds, gpus=gpus, min_gpus=gpus, max_gpus=gpus)


def large_among_small(policy: str, after: float | None) -> RunRecord:
    """One job of all four GPUs; a small one comes every minute for three hours, each worth 300 s of one GPU."""
    small = [rigid(i, 60.0 * i, 1) for i in range(180)]
    jobs = [*small[:5], rigid(500, 270.0, 4, 900.0), *small[5:]]
    cluster = make_cluster(jobs, linear_tables(RATE), [4])
    return run(cluster, make_policy(policy), QueueSettings(reserve_after=after, aging_normal=1e9), RewardWeights())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_large_job_starts_soon_after_it_is_overdue_under_every_policy(policy: str) -> None:
    jobs = large_among_small(policy, LATE).jobs
    large = int(np.argmax(jobs.requested_gpus))
    assert jobs.start_time[large] - jobs.submit_time[large] <= LATE + DURATION + 120.0
    assert np.isfinite(jobs.finish_time).all()
    assert jobs.finish_time[large] <= jobs.submit_time[large] + 2 * (LATE + DURATION) + 900.0 + 120.0


def test_without_the_option_policies_that_rank_by_an_amount_let_it_wait_to_the_end() -> None:
    for policy in ("srtf", "index"):
        jobs = large_among_small(policy, None).jobs
        large = int(np.argmax(jobs.requested_gpus))
        assert jobs.finish_time[large] > 10_000


@given(data=st.data(), capacity=st.integers(2, 6))
def test_no_job_grows_while_an_overdue_one_waits(data: st.DataObject, capacity: int) -> None:
    sizes = data.draw(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=6))
    jobs = [
        job(i, 7.0 * i, epochs=RATE * 500, gpus=least, min_gpus=least, max_gpus=min(least + more, capacity))
        for i, (size, more) in enumerate(sizes)
        for least in [min(size, capacity)]
    ]
    cluster, queue = make_cluster(jobs, linear_tables(RATE, 8), [capacity]), Queue(QueueSettings(reserve_after=20.0))
    for _ in range(12):
        if cluster.done:
            break
        state = queue.order(cluster.state())
        held, least, most = state.jobs.gpus, state.jobs.min_gpus, state.jobs.max_gpus
        wishes = data.draw(st.tuples(*(st.sampled_from([0, *each]) for each in zip(least, most, strict=True))))
        waited = state.time - state.jobs.store.records["wait_start"][state.jobs.index]
        overdue = (held == 0) & (waited >= 20.0) & (least <= capacity)
        admitted = queue.admit(state, Allocation(np.array(wishes, dtype=np.int64)), "test")
        gpus = admitted.gpus
        assert gpus.sum() <= capacity
        assert ((gpus == 0) | ((gpus >= least) & (gpus <= most))).all()
        if (overdue & (gpus == 0)).any():
            assert not ((gpus > held) & ~overdue).any()
        cluster.apply(state, admitted)
        cluster.advance()


def test_a_cluster_of_several_gpu_types_refuses_the_option() -> None:
    nodes = [{"count": 1, "gpus": 4, "gpu": gpu_type} for gpu_type in ("v100", "t4")]
    config = Config.model_validate({"cluster": {"nodes": nodes}, "queue": {"reserve_after": 60}})
    with pytest.raises(ConfigError, match=r"queue.reserve_after: 60 s, but the cluster has 2 GPU types: expected null"):
        Experiment(config)
