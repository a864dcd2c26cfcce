"""Jobs that really train, on the shared cluster: growing, shrinking, finishing, and their reports."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from rlpto.core.cluster import Node
from rlpto.io.errors import ClusterError, JobError
from rlpto.ray_cluster import controllers
from rlpto.ray_cluster.controllers import alive_nodes, control_node, find_controllers
from rlpto.ray_cluster.job.controller import start_controller
from rlpto.ray_cluster.measuring import CommandedJob
from rlpto.ray_cluster.messages import JobSpec, Plan
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.worker.training import Trainer
from rlpto.store.checkpoints import read_newest
from rlpto.store.logs import LOG
from rlpto.store.program_keys import SCRIPTS
from tests.ray_cluster.conftest import NODES
from tests.ray_cluster.programs import weights_of
from tests.ray_cluster.running import FREEZE, KILL, SESSION, Running, make_spec

LOOP: dict[str, Any] = {
    "training": SCRIPTS,
    "options": {"source": (Path(__file__).parents[1] / "elastic" / "plain_script.py").read_text()},
}


def distance_to_one_process(spec: JobSpec) -> tuple[int, float]:
    """Step of the newest checkpoint, and its weights' relative distance to those of one undisturbed process."""
    found = read_newest(Path(spec.folder))
    assert found is not None
    checkpoint, state, wrong = found
    assert wrong == []
    main, arguments = sys.modules["__main__"], sys.argv
    alone = Trainer(replace(spec, pace=None))
    sys.modules["__main__"], sys.argv = main, arguments  # a script has taken their places
    alone.run(checkpoint.step)
    expected = weights_of(alone.network)
    alone.load(state)
    reached = weights_of(alone.network)
    return checkpoint.step, float((reached - expected).norm() / expected.norm())


@pytest.mark.parametrize("more", [{}, pytest.param(LOOP, marks=pytest.mark.slow)], ids=["program", "script"])
def test_any_schedule_of_rescales_and_faults_ends_where_one_process_does(
    ray_cluster: LocalCluster, tmp_path: Path, more: dict[str, Any]
) -> None:
    a, b, c, _ = ray_cluster.node_ids
    spec = make_spec(tmp_path, **more)
    with Running(ray_cluster, spec) as job:
        job.command([a])
        job.steps(10)
        job.command([a, b, c])
        before = job.steps(10)
        found = before.interruptions
        assert found.recoveries == 0, before.failure
        assert 1 <= found.rescales == len(found.pauses) <= 2  # on a busy machine they may join one by one
        job.signal_worker(c, KILL)
        recovered = job.until(lambda now: now.interruptions.recoveries == 1 and {*now.training_on} == {a, b, c})
        # Survivors hold the newest state: the worker that was killed cost no step.
        assert recovered.step >= before.step
        assert "died" in recovered.failure
        job.command([b, c])
        job.steps(10)
        job.command([a])  # no worker stays: the state moves to another node
        job.steps(10)
        job.command([])
        last = job.stop()
    step, distance = distance_to_one_process(spec)
    assert step == last.step
    assert distance <= 1e-12


@pytest.mark.slow
def test_a_script_whose_loop_a_fault_has_left_trains_on_in_new_processes(
    ray_cluster: LocalCluster, tmp_path: Path
) -> None:
    """On several workers, although it leaves out weights."""
    a, b, c, _ = ray_cluster.node_ids
    # Buffers of batch normalisation are exchanged in forward passes, inside the user's loop.
    given = {**LOOP["options"], "arguments": ["--batch-norm", "--spare"]}
    with Running(ray_cluster, make_spec(tmp_path, training=SCRIPTS, options=given, batch_size=51)) as job:
        job.command([a, b, c])
        job.until(lambda now: now.checkpoint is not None and len(now.training_on) == 3)
        assert job.steps(10).interruptions.recoveries == 0
        job.signal_worker(c, KILL)
        recovered = job.until(lambda now: now.interruptions.recoveries == 1 and {*now.training_on} == {a, b, c})
        assert recovered.state == "running"
        job.steps(10)
        job.stop()


@pytest.mark.slow
def test_a_batch_size_that_the_scheduler_chooses_is_trained_with_at_once(
    ray_cluster: LocalCluster, tmp_path: Path
) -> None:
    a, b, *_ = ray_cluster.node_ids
    with Running(ray_cluster, make_spec(tmp_path, lr_rule="adascale")) as job:
        job.command([a, b])
        own = job.steps(20)
        assert own.batch_size == 16
        chosen = job.command([a, b], batch_size=64)
        later = job.until(lambda now: now.batch_size == 64)
        assert later.step - own.step < 200  # no more than the chunks that were under way
        more = job.steps(20)
        assert more.progress > later.progress
        assert chosen.interruptions.rescales == own.interruptions.rescales
        assert len(more.interruptions.pauses) == len(own.interruptions.pauses)
        job.signal_worker(b, KILL)
        job.until(lambda now: now.interruptions.recoveries == 1 and now.batch_size == 64)
        job.command([a])
        assert job.until(lambda now: now.batch_size == 16).training_on == (a,)


def test_a_job_trains_every_sample_once_an_epoch_and_keeps_a_log(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    a, b, *_ = ray_cluster.node_ids
    (tmp_path / "samples").mkdir()
    options = {"folder": str(tmp_path / "samples")}
    training = "tests.ray_cluster.programs:Recorded"
    spec = make_spec(tmp_path / "job", training=training, options=options, epochs=8.0, pace=0.1, logs=True)
    with Running(ray_cluster, spec) as job:
        job.command([a, b])
        job.steps(20)
        job.command([b])
        report = job.until(lambda now: now.state == "finished" and not now.holding)
    assert report.progress == 8.0
    assert report.step == 8 * 7
    assert 0.5 < report.accuracy <= 1.0
    assert report.accuracy_curve[-1] == (8.0, report.accuracy)
    assert {measured.workers for measured in report.throughput} == {1, 2}
    # Each of the two processes warms up with two batches (and one more for its group) that train nothing.
    lines = [path.read_text().splitlines() for path in (tmp_path / "samples").iterdir()]
    assert len(lines) == 2
    used = Counter(sample for process in lines for line in process[3:] for sample in line.split())
    assert used == {str(sample): 8 for sample in range(101)}
    texts = [json.loads(line)["text"] for line in (tmp_path / "job" / LOG).read_text().splitlines()]
    assert {"training on 2 GPUs of 2 nodes", "training on 1 GPU of 1 node", "a batch of 8", "a batch of 16"} <= {*texts}
    assert texts[-1] == "finished after 8 epochs"
    assert any(text.startswith("epoch 8 of 8: loss") for text in texts)


def test_older_commands_are_ignored_and_a_name_is_taken_once(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    a = ray_cluster.node_ids[0]
    spec = make_spec(tmp_path, id="once")
    with Running(ray_cluster, spec) as job:
        assert ray.get(job.controller.command.remote(7, Plan())).generation == 7
        assert ray.get(job.controller.command.remote(6, Plan((a,)))).generation == 7
        assert job.until(lambda now: now.applied == 7).holding == ()
        assert find_controllers(SESSION).keys() == {"once"}
        with pytest.raises(JobError, match=r"job once: session tests-.* has a controller"):
            start_controller(spec, control_node(), resume=False)
    assert find_controllers(SESSION) == {}


@pytest.mark.usefixtures("ray_cluster")
def test_a_second_cluster_in_the_same_process_is_refused_and_harms_nothing() -> None:
    with pytest.raises(ClusterError, match="connected to a Ray cluster already"):
        LocalCluster([Node(1)])
    assert ray.is_initialized()
    assert len(alive_nodes()) == NODES + 1


@pytest.mark.slow
@pytest.mark.parametrize("answers", [True, False])
def test_a_controller_has_time_to_write_its_last_checkpoint_as_long_as_it_answers(
    ray_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(controllers, "STOP_TIMEOUT_S", 1.0)
    slow: dict[str, Any] = {"training": "tests.ray_cluster.programs:Slow", "options": {"seconds": 5.0}}
    with Running(ray_cluster, make_spec(tmp_path, checkpoint_interval=1000.0, **slow)) as job:
        job.command([ray_cluster.node_ids[0]])
        step = job.steps(10).step
        if not answers:
            os.kill(job.report().pid, FREEZE)
        last = CommandedJob.stop(job)
    found = read_newest(tmp_path)
    assert (last is not None) == answers
    assert (found is not None and found[0].step >= step) == answers
