"""Environments with jobs that run on some numbers of GPUs only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.clusters import OneCluster
from rlpto.performance.size_table import largest_sizes

from ..builders import job
from .builders import TABLES, WHOLE, make_setup

SIZES = (2, 3, 6)


def test_no_action_makes_jobs_run_on_other_sizes() -> None:
    tables = replace(TABLES, fit=np.tile(largest_sizes(SIZES, TABLES.max_gpus), (len(TABLES.types), 1)))
    jobs = [job(i, submit=30.0 * i, epochs=3.0, gpus=1 + i % 4, min_gpus=1, max_gpus=8) for i in range(12)]
    setup = make_setup([jobs], tables=tables, episode=WHOLE)
    drawn, compiled = ClusterEnv(setup, "ansi"), ClusterEnv(setup)
    drawn.reset(seed=1)
    compiled.reset(seed=1)
    assert isinstance(drawn.batch.clusters, OneCluster)
    held: set[int] = set()
    drawn.action_space.seed(1)
    for _ in range(30):
        action = drawn.action_space.sample()
        one, other = drawn.step(action), compiled.step(action)
        np.testing.assert_equal(one[0], other[0])
        held |= set(drawn.batch.clusters.cluster.store.gpus.tolist())
        if one[2] or one[3]:
            break
    assert held <= {0, *SIZES}
    assert len(held) > 2
