"""Every policy with jobs that run on some sizes only, and on some GPU types not at all."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterState, Node
from rlpto.core.gpu_types import gpu_types_of
from rlpto.core.jobs import Job
from rlpto.core.policy import Policy
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment, prepare
from rlpto.io.errors import JobError
from rlpto.performance.size_table import largest_sizes
from rlpto.policies.registry import is_complete, own_policies
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings
from tests.slow import TYPICAL, few

from ..builders import Scripted, admit, job, linear_tables, with_gpu_types

POLICIES = [name for name, policy in own_policies().items() if is_complete(policy)]
KNOWLEDGE = (
    {"mode": "exact"},
    {"mode": "noisy", "speed_sigma": 0.2, "remaining_sigma": 0.2, "scaling_sigma": 0.2},
    {"mode": "online", "fits": "shared", "remaining": "learnt"},
)
MIXES = ((0, 1), (2, 0, 2), (1, 2, 3, 0), (3, 3, 1, 0, 2, 0))
"""Jobs by their models, in order of submission."""
MODELS = ("mpt-760m", "mpt-30b", "mlperf-llama2-70b-lora", "arena-moe-2.4b-512")


def cluster_with(slow: tuple[int, ...], fast: tuple[int, ...], *jobs: Job) -> SimulatedCluster:
    """Eight slow GPUs and eight fast ones, and sizes that all jobs may have on each kind."""
    tables = with_gpu_types(linear_tables(gpus=16), {"slow": (1.0, 8), "fast": (3.0, 8)})
    nodes = (Node(8, gpu="slow"), Node(8, gpu="fast"))
    floor_size = np.stack([largest_sizes((slow, fast)[gpu_type], tables.max_gpus) for gpu_type in tables.gpu_type])
    return SimulatedCluster(nodes, list(jobs), replace(tables, floor_size=floor_size), SimulatorSettings())


def test_wishes_are_cut_to_the_largest_size_of_the_kind() -> None:
    jobs = [job(i, epochs=1000.0, gpus=4, max_gpus=16) for i in range(2)]
    assert admit(cluster_with((4, 8), (2, 6), *jobs), [7, 7]).placement.tolist() == [[0, 6], [4, 0]]
    none_fast = admit(cluster_with((4, 8), (), *jobs), [7, 7])
    assert none_fast.placement.tolist() == [[4, 0], [4, 0]], "they do not fit on fast GPUs"


def test_limits_of_a_job_become_sizes() -> None:
    store = cluster_with((4, 8), (6,), job(0, gpus=1, max_gpus=7), job(1, gpus=7, min_gpus=1, max_gpus=9)).store
    assert store.min_gpus.tolist() == [4, 4]
    assert store.requested_gpus.tolist() == [4, 6]
    assert store.max_gpus.tolist() == [6, 8]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [((), r"model m0 fits on no GPU type here \(slow, fast\)"), ((8,), "may have 1 to 4 GPUs.*runs on 8 only")],
)
def test_a_job_that_fits_nowhere_is_refused_in_one_line(sizes: tuple[int, ...], said: str) -> None:
    with pytest.raises(JobError, match=f"job j0: {said}|job .*0.*: {said}") as error:
        cluster_with(sizes, sizes, job(0, gpus=1, max_gpus=4))
    assert "\n" not in str(error.value)


def test_a_kind_with_fewer_gpus_than_the_smallest_size_counts_as_none() -> None:
    """mpt-70b runs on 32 H100 or more and not on A40: on 16 H100 it would wait for ever."""
    content = {
        "cluster": {"nodes": [{"count": 2, "gpus": 8, "gpu": "h100"}, {"count": 8, "gpus": 8, "gpu": "a40"}]},
        "workload": {"source": "jobs", "jobs": [{"model": "mpt-70b", "gpus": 32, "max_gpus": 64}]},
        "profiles": {"folder": "llm"},
    }
    found = Experiment(Config.model_validate(content))
    with pytest.raises(JobError, match=r"mpt-70b fits on no GPU type here \(h100, a40\)"):
        found.check()


@cache
def experiment(mix: tuple[int, ...], knowledge: int) -> Experiment:
    """Jobs of large models on 32 GPUs of each of two kinds, on the second of which some do not fit."""
    jobs = [
        {"model": MODELS[model], "name": f"job-{i}", "submit": 500.0 * i, "gpus": 12, "max_gpus": 32, "epochs": 0.05}
        for i, model in enumerate(mix)
    ]
    content = {
        "cluster": {"nodes": [{"count": 4, "gpus": 8, "cpus": 8, "gpu": gpu_type} for gpu_type in ("a100", "h200")]},
        "workload": {"source": "jobs", "jobs": jobs},
        "profiles": {"folder": "llm"},
        "simulator": {"interval": 300},
        "knowledge": KNOWLEDGE[knowledge],
    }
    return prepare(Config.model_validate(content))


def watched(policy: Policy) -> Scripted:
    """The policy, where it is looked before each decision at what jobs hold since the last one."""

    def decide(state: ClusterState) -> Allocation:
        held, jobs = state.held_nodes, state.jobs
        floor_size, gpus = jobs.floor_size_on(state.shape.gpu_types), held.sum(axis=1)
        allowed = floor_size[gpu_types_of(held, state.shape), np.arange(len(jobs)), gpus]
        assert (allowed == gpus).all(), "a job runs on a size that is not allowed, or a kind on which it does not fit"
        return policy(state)

    policy.reset(0)
    return Scripted(decide)


@pytest.mark.parametrize("policy", few(POLICIES, *TYPICAL))
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(MIXES), st.integers(0, len(KNOWLEDGE) - 1), st.integers(0, 3))
def test_no_policy_breaks_an_allowed_size(policy: str, mix: tuple[int, ...], knowledge: int, seed: int) -> None:
    found = experiment(mix, knowledge)
    record = found.run_policy(watched(found.policy(policy)), "jobs", seed)
    assert np.isfinite(record.jobs.finish_time).all()
    assert (record.decisions.held <= record.capacity).all()
