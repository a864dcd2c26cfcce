"""Nodes with labels of Ray's own, and with files that say that they will be taken away, on the tests' cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.experiments.config import Config
from rlpto.ray_cluster.messages import KIND_LABEL, MARKET_LABEL, ZONE_LABEL
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.scheduler.backend import NodeInfo, RayBackend
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.store.status import nodes
from tests.builders import Scripted
from tests.ray_cluster.conftest import GPUS
from tests.ray_cluster.fakes import events_of
from tests.ray_cluster.test_real import STEPS, config, schedule, session


def with_ray(settings: Config, **more: object) -> Config:
    return settings.model_copy(update={"ray": settings.ray.model_copy(update=more)})


LABELS = {ZONE_LABEL: "oslo", MARKET_LABEL: "spot", KIND_LABEL: "T4"}


def test_a_file_on_a_node_drains_it_and_jobs_lose_no_step(
    no_controller_is_left: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job goes on with the workers that it has elsewhere, the other one moves."""
    notice, released = tmp_path / "notice", tmp_path / "released"
    with monkeypatch.context() as patch:
        patch.setenv("RLPTO_TEST_NOTICE", str(notice))
        added = no_controller_is_left.add_node(GPUS, **LABELS)
    (info,) = (node for node in RayBackend("").nodes() if node.id == added)
    assert info == NodeInfo(added, GPUS, info.address, info.cpus, "t4", info.host, "oslo", spot=True)
    jobs = [{"name": name, "gpus": gpus, "max_gpus": gpus, "epochs": 100} for name, gpus in (("a", 3), ("b", 1))]
    settings = with_ray(config(jobs, None, released), notice_file="$RLPTO_TEST_NOTICE")
    seen, steps = list[float](), list[int]()

    def on_the_node(state: ClusterState) -> Allocation:
        """A GPU of the node for each, as long as it is there."""
        seen.append(float(state.leaves_in.min()))
        gpus = state.jobs.requested_gpus
        if added not in cluster.node_ids:
            return Allocation(gpus.copy())
        rows, node = np.zeros((len(gpus), len(state.shape)), dtype=np.int64), cluster.node_ids.index(added)
        rows[:, node], rows[:, node - 1] = 1, gpus - 1
        return Allocation(gpus.copy(), placement=rows)

    def interfere(cluster: RayCluster) -> None:
        """Once both train there the file appears, and once both train elsewhere they may end."""
        reports = [cluster.reports.get(job) for job in cluster.ids]
        first, second = (report.training_on if report and report.state == "running" else () for report in reports)
        if len(first) < 3 or not second or (added in (*first, *second)) == notice.exists():
            return
        steps.append(sum(report.step for report in reports if report))
        if notice.exists():
            released.touch()
        else:
            notice.write_text("600\n")

    try:
        with session(settings, tmp_path, interfere, notice_file=settings.ray.notice_file) as cluster:
            schedule(cluster, Scripted(on_the_node))
            database = cluster.database
            assert steps == sorted(steps)
            assert [(row.step, row.recoveries) for row in database.jobs()] == [(100 * STEPS, 0)] * 2, "no step is lost"
            assert [event[1] for event in events_of(database) if event[3] == added] == ["node_up", "node_down"]
            assert seen[0] == np.inf
            assert 500.0 < min(seen) <= 600.0, "the policy sees when the node goes"
            (going,) = (node for node in nodes(database) if node.id == added)
            assert going.leaves is not None
            assert {(node.zone, node.spot) for node in nodes(database)} == {("", False), ("oslo", True)}
    finally:
        no_controller_is_left.kill_node(added)
