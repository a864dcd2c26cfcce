"""Speeds by the largest number of GPUs that was seen, in tables and in compiled clusters."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.jobs import Job
from rlpto.core.queues import QueueSettings
from rlpto.core.records import INTERVAL
from rlpto.core.rewards import RewardWeights
from rlpto.envs.compiled_batch import CompiledBatch, Workload, begin, build_batch
from rlpto.knowledge.by_size import CompiledEstimates, estimated_by_size
from rlpto.knowledge.known import BatchCache, EstimateRules, Knowledge
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.policies.index_weights import IndexWeights
from rlpto.simulator.batch_loop import decide_and_run
from rlpto.simulator.settings import SimulatorSettings

RULES = EstimateRules(shared=True, method="bayes", noise_slope=0.2, unseen_hours=0.25)
TYPES = (JobType("cifar10", 256), JobType("deepspeech2"))
MOST = 8


@cache
def truth() -> BatchCache:
    return BatchCache(load_profiles(None))


@cache
def tables() -> SpeedTables:
    return compile_tables(truth().source, TYPES, MOST, 4)


@pytest.mark.parametrize("number", [0, 1])
def test_estimates_are_right_at_sizes_that_were_seen_and_better_with_more_of_them(number: int) -> None:
    off = np.abs(np.log(estimated_by_size(truth(), RULES, tables(), 4)[number, 1:, 1:]))
    for level, gpus in enumerate((1, 2, 4, 8)):
        assert off[level, gpus - 1] < 0.1
    assert off[3].mean() < off[0].mean()


def batch(shared: bool) -> CompiledBatch:
    """Two jobs of one model, the second submitted later."""
    samples = float(tables().samples[0])
    jobs = tuple(Job(f"job{i}", 600.0 * i, "cifar10", 400.0, samples, batch_size=256, max_gpus=MOST) for i in range(2))
    shape, rules = ClusterShape((Node(4), Node(4))), replace(RULES, shared=shared)
    estimates = CompiledEstimates.of(Knowledge(performance=truth(), rules=rules), tables(), 4)
    workload = Workload("one", jobs, seed=0, hours=1.0)
    return build_batch(
        1, shape, [workload], tables(), SimulatorSettings(), QueueSettings(), RewardWeights(), estimates=estimates
    )


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_jobs_look_short_until_they_or_where_fits_are_shared_one_like_them_have_trained(shared: bool) -> None:
    found = batch(shared)
    begin(found, 0, 0)
    loop, weights = found.loop, IndexWeights().array()[None]
    first = loop.shown.jobs[0, 0]["remaining"] / loop.shown.speed[0, 0, 1:]
    np.testing.assert_allclose(first, 900.0)
    while loop.world.clusters[0]["arrived"] < 2:
        decide_and_run(loop, 0, weights, np.zeros(1, INTERVAL))
    assert loop.world.clusters[0]["active"] == 2
    rows = {int(row["index"]): at for at, row in enumerate(loop.shown.jobs[0, :2])}
    seconds = loop.shown.jobs[0, rows[1]]["remaining"] / loop.shown.speed[0, rows[1], 1:]
    assert np.allclose(seconds, 900.0) is not shared
    known = loop.shown.jobs[0, rows[0]]["remaining"] / loop.shown.speed[0, rows[0], 1:]
    assert known[0] > 900.0
    begin(found, 0, 0)
    np.testing.assert_allclose(loop.shown.jobs[0, 0]["remaining"] / loop.shown.speed[0, 0, 1:], 900.0)
