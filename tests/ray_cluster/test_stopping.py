"""Real jobs that stop early: by what they have measured, once, also after restarts of controller and scheduler."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlpto.core.cluster import Allocation
from rlpto.core.loop import job_records
from rlpto.core.stopping import StopRule, has_flattened
from rlpto.ray_cluster.controllers import find_controllers
from rlpto.ray_cluster.job.reporting import MAX_CHUNKS_IN_FLIGHT
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.worker.training import Trainer
from rlpto.store.checkpoints import read_newest
from tests.builders import job as make_job
from tests.ray_cluster.fakes import FakeBackend, FakeTime, events_of
from tests.ray_cluster.running import KILL, SESSION, Running, make_spec
from tests.ray_cluster.sessions import make_cluster, specs

RULE = StopRule(gain=0.01, over=0.1, after=0.5)
EPOCHS = 60.0


def test_a_worker_evaluates_as_often_as_the_rule_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if that takes a large share of its time."""
    monkeypatch.setattr("rlpto.ray_cluster.worker.training.EVALUATION_SHARE", 1e-9)
    looked = {}
    for rule in (None, RULE):
        trainer = Trainer(make_spec(tmp_path, epochs=EPOCHS, stop=rule, pace=None, batch_size=101))
        seen = []
        while not trainer.finished:
            chunk = trainer.run(trainer.position.step + 1)
            if not np.isnan(chunk.accuracy):
                seen.append(chunk.evaluated_at)
        looked[rule] = seen
    assert looked[None] == [1.0, EPOCHS]
    # Windows are of 6 epochs, the first one begins after 24: one evaluation in 1.2 epochs, at ends of epochs.
    assert looked[RULE] == [1.0, *np.arange(24.0, EPOCHS + 1, 2.0)]


@pytest.mark.slow
def test_a_training_that_flattens_stops_early_and_stays_finished(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    a, b, *_ = ray_cluster.node_ids
    spec = make_spec(tmp_path, id="flattens", epochs=EPOCHS, stop=RULE, checkpoint_interval=0.2)
    with Running(ray_cluster, spec) as job:
        job.command([a])
        before = job.until(lambda now: now.checkpoint is not None and len(now.accuracy_curve) > 2)
        os.kill(before.pid, KILL)  # what it has measured is in its record
        job.command([a, b], wait=False)  # whether the other joins in time or not
        report = job.until(lambda now: now.state == "finished" and not now.holding)
        assert RULE.after * EPOCHS <= report.progress < EPOCHS
        assert report.note == f"stopped early at epoch {report.progress:.6g} of 60"
        assert report.interruptions.recoveries == 1
        epochs, accuracy = np.array(report.accuracy_curve).T
        fired = [n for n in range(1, len(epochs) + 1) if has_flattened(RULE, EPOCHS, epochs[:n], accuracy[:n])]
        assert len(epochs) - fired[0] < MAX_CHUNKS_IN_FLIGHT  # it ends with the steps that were handed out by then
        found = read_newest(Path(spec.folder))
        assert found is not None
        assert found[0].step == report.step  # the checkpoint is of where it ended
        job.stop()
    with Running(ray_cluster, spec, resume=True) as again:
        after = again.until(lambda now: now.state == "finished")
        assert (after.note, after.progress, after.step) == (report.note, report.progress, report.step)
    assert "flattens" not in find_controllers(SESSION)


def test_the_scheduler_keeps_how_far_a_stopped_job_came(tmp_path: Path) -> None:
    jobs = [make_job(0, epochs=40.0, stop=StopRule()), make_job(1, epochs=40.0)]
    given = [replace(spec, stop=job.stop) for spec, job in zip(specs(jobs), jobs, strict=True)]
    backend, path = FakeBackend(FakeTime(), {"m": 2}, rate=0.2), tmp_path / "state.sqlite"
    with SessionDatabase(path) as database:
        first = make_cluster(backend, jobs, database, given=given)
        first.apply(first.state(), Allocation(np.array([1, 1])))
        while first.active_jobs == 2:
            first.advance()
        check(first, database)
        first.close(keep=True)
    with SessionDatabase(path) as database:  # a scheduler that comes back still knows
        check(make_cluster(backend, jobs, database, given=given), database)


def check(cluster: RayCluster, database: SessionDatabase) -> None:
    """Job 0 has finished after some 28 of 40 epochs, job 1 has not."""
    records = job_records(cluster)
    assert 28.0 <= records.trained_epochs[0] < 31.0
    assert records.epochs[0] == 40.0
    assert np.isfinite(records.finish_time).tolist() == [True, False]
    assert records.final_accuracy[0] == 0.9
    assert np.isnan(records.full_accuracy).tolist() == [False, True]
    assert cluster.state().jobs.index.tolist() == [1]
    notes = [event[5] for event in events_of(database) if event[1] == "finished"]
    assert notes == [f"stopped early at epoch {records.trained_epochs[0]:g}"]
