"""Jobs whose model several workers hold together: they train, grow and shrink by whole teams alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rlpto.core.cluster import ClusterState
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.experiments.experiment import prepare
from rlpto.io.arrays import IntArray
from rlpto.io.errors import JobError
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.programs.base import Team
from rlpto.ray_cluster.programs.tensor_parallel import whole_of
from rlpto.ray_cluster.scheduler.job_tracker import PolicyKnowledge
from rlpto.ray_cluster.scheduler.online_estimates import OnlineEstimates
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.settings import ProgramSettings
from rlpto.ray_cluster.worker.training import Trainer
from tests.builders import Scripted
from tests.ray_cluster.fakes import FakeBackend, FakeTime
from tests.ray_cluster.programs import weights_of
from tests.ray_cluster.running import KILL, Running, make_spec
from tests.ray_cluster.test_cluster import Interrupted, make_cluster, specs
from tests.ray_cluster.test_controller import distance_to_one_process
from tests.ray_cluster.test_real import config

PAIR: dict[str, Any] = {
    "training": "rlpto.ray_cluster.programs.tensor_parallel:DigitsTensorParallel",
    "options": {"hidden": 16, "learning_rate": 0.02},  # rounding grows with the rate
    "model_parallel": 2,
    "batch_size": 64,
    "data_size": 1437,
}


def test_a_job_grows_shrinks_moves_and_survives_a_fault_by_whole_pairs(
    ray_cluster: LocalCluster, tmp_path: Path
) -> None:
    a, b, c, d = ray_cluster.node_ids
    spec = make_spec(tmp_path, **PAIR, pace=0.02)
    with Running(ray_cluster, spec) as job:
        job.command([a, b])
        job.steps(30)
        before = job.command([a, b, c, d])
        after = job.steps(10)
        assert after.step > before.step
        job.until(lambda now: now.checkpoint is not None and now.checkpoint.step > after.step)
        job.signal_worker(c, KILL)
        recovered = job.until(lambda now: now.recoveries == 1 and len(now.training_on) == 4)
        assert "died" in recovered.failure
        job.command([b, c])  # of each pair one half
        job.steps(10)
        job.command([c, d])
        job.steps(10)
        job.command([])
        last = job.stop()
    assert {size.workers for size in last.throughput} == {2, 4}, "never a part of a pair"
    assert last.accuracy > 0.5
    step, distance = distance_to_one_process(spec)
    assert step == last.step
    assert distance <= 1e-12


@pytest.mark.parametrize("workers", [2, 4])
def test_the_parts_of_a_team_make_up_the_whole_state(tmp_path: Path, workers: int) -> None:
    spec = make_spec(tmp_path, **PAIR | {"model_parallel": workers}, pace=None)
    whole, again = Trainer(spec), Trainer(spec)
    whole.run(10)
    teams = [Trainer(spec) for _ in range(workers)]
    for part, worker in enumerate(teams):
        worker.load(whole.state(), Team(part, workers))
    size = len(weights_of(whole.network))
    assert all(len(weights_of(worker.network)) < 1.2 * size / workers for worker in teams), "biases are not split"
    step, state = whole_of([(10, worker.state()) for worker in teams])
    again.load(state)
    assert (step, again.position) == (10, whole.position)
    for trainer in (whole, again):
        trainer.run(20)
    assert (weights_of(again.network) == weights_of(whole.network)).all(), "the optimizer's state is whole too"
    with pytest.raises(RuntimeError, match="different steps"):
        whole_of([(10 + part, worker.state()) for part, worker in enumerate(teams)])


def test_models_that_cannot_be_split_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        JobError, match=r"model_parallel is 2, but tests\.ray_cluster\.programs:Plain splits no weights"
    ):
        Trainer(make_spec(tmp_path, model_parallel=2))
    with pytest.raises(JobError, match="model_parallel 3: a layer has 16 units, expected a multiple of 3"):
        Trainer(make_spec(tmp_path, **PAIR)).load(b"", Team(0, 3))
    for other in ({"architecture": "parameter_server"}, {"batch_rule": "per_worker"}):
        with pytest.raises(ValidationError, match="expected 1, or architecture all_reduce and batch_rule fixed"):
            ProgramSettings.model_validate({"training": "some.module:Program", "model_parallel": 2, **other})


@pytest.mark.parametrize("online", [False, True])
def test_a_job_has_whole_pairs_whatever_a_policy_wishes_and_a_dead_node_leaves(
    database: SessionDatabase, online: bool
) -> None:
    settings = config([{"gpus": 1, "max_gpus": 5, "epochs": 10}])
    settings.ray.programs["tiny"] = settings.ray.programs["tiny"].model_copy(update={"model_parallel": 2})
    experiment = prepare(settings)
    jobs, tables, nodes = experiment.jobs("jobs", 0), experiment.tables(), {"l": 1, "m": 1, "n": 2}
    learned = OnlineEstimates(jobs, specs(list(jobs)), settings.ray.programs, tables, experiment.shape.kind_sizes)
    knowledge = PolicyKnowledge(estimates=learned if online else None)
    backend = FakeBackend(FakeTime(), nodes)
    cluster = make_cluster(backend, list(jobs), database, tables=tables, knowledge=knowledge)
    assert cluster.store.records[["min_gpus", "requested_gpus", "max_gpus"]][0].tolist() == (2, 2, 4)
    wishes = iter([3, 4])

    def decide(state: ClusterState) -> IntArray:
        return np.full(len(state.jobs), next(wishes, 2))

    harmed: Any = Interrupted(cluster, 12.0, lambda: backend.kill_node("m"))
    run(harmed, Scripted(decide), QueueSettings(), RewardWeights())
    assert [len(plan.nodes) for plan in backend.commanded[cluster.ids[0]]] == [2, 4, 2]
