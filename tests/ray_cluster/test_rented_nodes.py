"""Rented nodes that are Ray's: started and ended by RLPTO while jobs train."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rlpto.core.records import RunRecord
from rlpto.evaluation.metrics import measure
from rlpto.evaluation.runner import Cell
from rlpto.experiments import nodes_on_ray
from rlpto.experiments.on_ray import RealCells, session_folder
from rlpto.ray_cluster.controllers import alive_nodes
from rlpto.ray_cluster.scheduler.renting import RealNodes
from rlpto.ray_cluster.scheduler.session_folder import DATABASE, read_table
from tests.ray_cluster.test_real import STEPS, config

CELL = Cell("fifo@reactive", "jobs", 0)
TICK_S = 2.0


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, jobs: list[dict[str, object]], most: int) -> RunRecord:
    """A session on rented nodes with two GPUs, which are decided on every two seconds."""
    monkeypatch.setattr(nodes_on_ray, "RealNodes", partial(RealNodes, tick=TICK_S))
    rented = {"most": most, "boot": 3.0, "idle": 0, "minimum": 0}
    settings = config(
        [{"gpus": 1, "max_gpus": 1, **job} for job in jobs],
        pace=0.05,
        cluster={"nodes": [{"gpus": 2, "price": 1.0, "rented": rented}]},
        policies=[CELL.policy],
        evaluation={"reference": CELL.policy},
    )
    return RealCells(settings, folder)(CELL)


@pytest.mark.usefixtures("ray_cluster")
def test_a_job_trains_on_a_node_that_is_started_for_it_and_ended_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {node["NodeID"] for node in alive_nodes()}
    record = run(tmp_path, monkeypatch, [{"name": "a", "epochs": 2}], most=1)
    assert {node["NodeID"] for node in alive_nodes()} == before
    assert np.isfinite(record.jobs.finish_time).all()
    assert record.jobs.start_time[0] >= 3.0, "it boots before"
    rented = record.rented
    assert rented.wanted.max() == 2
    assert rented.booting.max() == 2
    assert rented.ready.max() == 2
    assert rented.used.max() == 1
    paid = float(rented.cost.sum())
    assert 0.5 * 2 * (record.wall_seconds - TICK_S) / 3600 <= paid <= 2 * (record.wall_seconds + TICK_S) / 3600
    assert measure(record)["cost"] == pytest.approx(paid)
    facts = dict(row[:2] for row in read_table(session_folder(tmp_path, CELL) / DATABASE, "facts")[1])
    assert '"provisioner": "reactive"' in facts["provisioning"]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_jobs_move_off_a_node_that_is_given_back_and_lose_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {node["NodeID"] for node in alive_nodes()}
    jobs = [{"name": name, "epochs": epochs} for name, epochs in (("a", 20), ("b", 200), ("c", 20), ("d", 200))]
    record = run(tmp_path, monkeypatch, jobs, most=2)
    assert {node["NodeID"] for node in alive_nodes()} == before
    assert record.jobs.rescales.sum() == 1
    assert record.rented.ready.max() == 4
    assert record.rented.wanted[-2] == 2
    columns, rows = read_table(session_folder(tmp_path, CELL) / DATABASE, "jobs")
    steps = [dict(zip(columns, row, strict=True))["step"] for row in rows]
    assert steps == [STEPS * 20, STEPS * 200, STEPS * 20, STEPS * 200], "none twice"
    assert not record.jobs.lost_gpu_seconds.any()
