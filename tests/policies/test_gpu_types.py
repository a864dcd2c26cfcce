"""Jobs of a trace that ask for GPU types, on a cluster of two types."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.gpu_types import gpu_types_of
from rlpto.core.job_store import JobStore
from rlpto.core.jobs import Job
from rlpto.core.policy import Policy
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment
from rlpto.io.errors import JobError
from rlpto.performance.solo import requested_seconds
from rlpto.policies.registry import is_complete, own_policies
from rlpto.workloads.trace import lacking_types, make_trace, write_trace
from tests.slow import TYPICAL, few

from ..builders import Scripted

POLICIES = [name for name, policy in own_policies().items() if is_complete(policy)]
KNOWLEDGE = (
    {"mode": "exact"},
    {"mode": "noisy", "speed_sigma": 0.2, "remaining_sigma": 0.2, "scaling_sigma": 0.2},
    {"mode": "online", "fits": "shared", "remaining": "learnt"},
)
ASKED = ("NVIDIA A100-SXM4-80GB", "T4", "", "a100|V100", "T4|A100", "P100", "", "Tesla T4")
ALLOWED = (("a100",), ("t4",), (), ("a100",), (), (), (), ("t4",))


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[..., Experiment]:
    """Make an experiment of eight jobs; nodes by GPU type, and settings on top."""

    def make(nodes: dict[str, int], mapping: object = None, **more: object) -> Experiment:
        count = len(ASKED)
        columns = {
            "submit_time": 60.0 * np.arange(count),
            "duration": np.full(count, 900.0),
            "name": [f"j{number}" for number in range(count)],
            "gpus": np.array([2, 1, 4, 1, 2, 1, 1, 3]),
            "gpu_type": list(ASKED),
        }
        write_trace(make_trace(columns, "test"), tmp_path / "jobs.parquet")
        content = {
            "cluster": {"nodes": [{"count": n, "gpus": 4, "cpus": 8, "gpu": gpu} for gpu, n in nodes.items()]},
            "workload": {"source": "files", "path": str(tmp_path / "jobs.parquet"), "mapping": mapping or {}},
            "simulator": {"interval": 300},
        }
        return Experiment(Config.model_validate(content | more))

    return make


def watched(policy: Policy, jobs: list[Job]) -> Scripted:
    """The policy, where each decision checks the GPU types that jobs hold since the last one."""

    def decide(state: ClusterState) -> Allocation:
        held_types = gpu_types_of(state.held_nodes, state.shape)
        for number, own in zip(state.jobs.index.tolist(), held_types.tolist(), strict=True):
            names = jobs[number].gpu_types
            assert own < 0 or not names or state.shape.gpu_types[own] in names, f"{jobs[number].name}: wrong type"
        return policy(state)

    policy.reset(0)
    return Scripted(decide)


@pytest.mark.parametrize("policy", few(POLICIES, *TYPICAL))
def test_no_policy_gives_a_job_gpus_of_a_type_that_it_did_not_ask_for(policy: str, experiment) -> None:
    for nodes in ({"t4": 1, "a100": 1}, {"a100": 1, "t4": 2}):
        for knowledge in KNOWLEDGE:
            found = experiment(nodes, knowledge=knowledge)
            window = found.windows()[0]
            jobs = found.jobs(window, 0)
            assert [job.gpu_types for job in jobs] == list(ALLOWED)
            record = found.run_policy(watched(found.policy(policy), jobs), window, 0)
            assert np.isfinite(record.jobs.finish_time).all()


def test_a_cluster_of_one_type_ignores_what_jobs_ask_for(experiment) -> None:
    found = experiment({"t4": 2})
    jobs = found.jobs(found.windows()[0], 0)
    assert {job.gpu_types for job in jobs} == {()}
    assert not found.tables().floor_size.size
    assert lacking_types([found.workload.trace("jobs")], found.shape.gpu_types) == []


def test_jobs_too_large_for_the_types_that_they_ask_for(experiment) -> None:
    """The job of 3 GPUs asks for T4, of which there are 2."""
    small = {"cluster": {"nodes": [{"gpus": 2, "gpu": "t4"}, {"gpus": 4, "gpu": "a100"}]}}
    with pytest.raises(JobError, match=r"job j7: wants 3 GPUs, expected at most the 2 the cluster has of t4 \(mapping"):
        experiment({}, **small).check()
    for rule, gpus in (("skip", 7), ("clip", 8)):
        found = experiment({}, **small, mapping={"oversized": rule})
        jobs = found.jobs("jobs", 0)
        assert len(jobs) == gpus
        assert all(job.max_gpus <= 2 for job in jobs if job.gpu_types == ("t4",))


def test_restricted_jobs_take_their_recorded_time_on_their_type(experiment) -> None:
    found = experiment({"t4": 1, "a100": 1})
    store = JobStore.from_jobs(found.jobs("jobs", 0), found.tables())
    columns = (store.type_index, store.scale, store.epochs, store.requested_gpus)
    requested = requested_seconds(found.tables(), *columns, found.shape.gpus_per_node)
    assert requested[[0, 1, 3, 7]] == pytest.approx(900)


def test_jobs_that_may_use_some_types_learn_from_those_that_may_use_all(experiment) -> None:
    found = experiment({"t4": 1, "a100": 1})
    tables = found.tables()
    limited = [at for at, job_type in enumerate(tables.types) if job_type.gpu_types]
    assert limited
    assert all(not tables.types[at].gpu_types for at in tables.pooled[limited].tolist())
    assert all(tables.types[at].model == tables.types[tables.pooled[at]].model for at in limited)
    whole = tables.by_gpu_type[tables.pooled[limited], tables.gpu_type[limited]]
    assert all(tables.unit(at) == 0 for at in whole.tolist()), "their models have no allowed sizes"


def test_the_results_name_the_types_that_the_cluster_lacks(experiment) -> None:
    found = experiment({"t4": 1, "a100": 1})
    said = lacking_types([found.workload.trace("jobs")], found.shape.gpu_types)
    assert said == ["1 of 8 jobs ask for GPU types that the cluster lacks and may use any: P100 (1)."]
