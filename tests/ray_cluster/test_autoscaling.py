"""Nodes on demand: what is asked for, and Ray's autoscaler with its provider of nodes on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlpto.core.renting import RentedSettings
from rlpto.experiments.config import NodeGroup, load_config
from rlpto.experiments.on_ray import on_demand, real_nodes
from rlpto.io.errors import ConfigError, JobError
from rlpto.ray_cluster.nodes.environment import EXTERNAL_ADDRESS
from rlpto.ray_cluster.nodes.processes import free_ports
from rlpto.ray_cluster.scheduler.placement import RENEW_S, GpuRequests
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_rules import SessionRules
from rlpto.ray_cluster.settings import AutoscaleSettings, RaySettings
from tests.builders import job as make_job
from tests.ray_cluster.fakes import FakeBackend, FakeTime
from tests.ray_cluster.joined import REPOSITORY, Joined, joined
from tests.ray_cluster.sessions import make_cluster, play
from tests.ray_cluster.test_shipped_code import DIGITS
from tests.service.served import Served, write_settings

NODE_GPUS, MOST = 2, 4
SCALE = f"{{most_gpus: {MOST}, idle_seconds: 2}}"
HEAD = "f" * 51 + "00000"
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
LISTS = (
    *("setup_commands", "initialization_commands", "head_setup_commands", "worker_setup_commands"),
    *("head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files"),
)
"""What Ray wants to have in the file, and its provider does not use."""


def test_fewer_gpus_are_asked_for_once_they_were_idle() -> None:
    """At most 8, and fewer once that has held for 30 s; the same number again after a while: a head may be new."""
    asked: list[int] = []
    requests = GpuRequests(AutoscaleSettings(most_gpus=8, idle_seconds=30), asked.append)
    wanted = [(0, 3, [3]), (1, 20, [8]), (30, 2, []), (31, 2, [2]), (60, 5, [5]), (89, 1, []), (89.5, 5, [])]
    for time, gpus, expected in (*wanted, (90 + RENEW_S, 5, [5]), (125 + RENEW_S, 0, [0])):
        requests.want(gpus, time)
        assert asked == expected, time
        asked.clear()


class OnDemand(FakeBackend):
    """Has nodes as they are asked for, besides those that are held."""

    def request(self, gpus: int) -> None:
        super().request(gpus)
        held = {node for one in self.controllers.values() for node in one.holding}
        wanted = {f"n{number}" for number in range(-(-gpus // NODE_GPUS))}
        self.gpus = dict.fromkeys(sorted(held | wanted), NODE_GPUS)


@pytest.mark.slow
def test_jobs_wait_for_nodes_and_idle_ones_go(database: SessionDatabase) -> None:
    backend = OnDemand(FakeTime(), {"n0": NODE_GPUS})
    jobs = [make_job(0, 0.0, 4.0, gpus=MOST, max_gpus=MOST), make_job(1, 2000.0, 4.0, gpus=1, max_gpus=1)]
    scale = AutoscaleSettings(most_gpus=MOST, idle_seconds=30)
    with pytest.raises(JobError, match="wants 4 GPUs, but the Ray cluster has 2 in all"):
        make_cluster(backend, jobs, database)
    rules = SessionRules(10.0, ray=RaySettings(without_gpus=60.0, autoscale=scale))
    cluster = make_cluster(backend, jobs, database, rules)
    record = play(cluster, "fifo")
    assert np.isfinite(record.jobs.finish_time).all(), "no node with GPUs for long is no fault while no job wants any"
    assert list(dict.fromkeys(backend.requested)) == [MOST, 0, 1]
    assert max(backend.most.values()) <= NODE_GPUS


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (f"ray.autoscale={SCALE}", r"ray\.autoscale: a local cluster has no autoscaler"),
        ("cluster.nodes=[{gpus: 2, rented: {most: 2}}]", "rented nodes are for `evaluate` alone"),
        ("cluster.nodes=[{gpus: 2, spot: {mean_hours: 4}}]", "spot nodes are simulated only"),
        ("workload.background=[{gpus: 1, until: 9}]", r"workload\.background: simulated only"),
    ],
)
def test_what_a_local_cluster_does_not_have_is_refused(tmp_path: Path, setting: str, message: str) -> None:
    config = load_config(REPOSITORY / "configs" / "ray_smoke.yaml", [setting])
    with pytest.raises(ConfigError, match=message), real_nodes(config, None, tmp_path, print):
        pass


def test_the_largest_nodes_of_an_autoscaled_cluster_come_and_go() -> None:
    found = NodeGroup(count=3, gpus=4, cpus=8), NodeGroup(gpus=2)
    described = [NodeGroup(gpus=1), NodeGroup(gpus=8, price=2.5, rented=RentedSettings(least=1, most=9, boot=90.0))]
    first, other = on_demand(found, described)
    assert (first.count, first.gpus, first.cpus, first.price) == (0, 4, 8, 2.5)
    assert first.rented == RentedSettings(least=0, most=3, boot=90.0)
    assert other == found[1]
    assert on_demand(found, [])[0].rented == RentedSettings(most=3), "boots for 300 s where nothing is said"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    """A head without GPUs, whose autoscaler starts nodes of two GPUs here, and ends those that are idle for 3 s."""
    (port,) = free_ports(1)
    kinds = {
        "ray.head.default": {"resources": {"CPU": 4}, "node_config": {}, "max_workers": 0},
        "gpu": {
            "resources": {"CPU": 4, "GPU": NODE_GPUS, "object_store_memory": 80 * 1024 * 1024},
            "node_config": {}, "min_workers": 0, "max_workers": 3,
        },
    }  # fmt: skip
    content = {
        **{key: [] for key in LISTS},
        "cluster_name": "test", "head_node_type": "ray.head.default", "available_node_types": kinds, "max_workers": 3,
        "idle_timeout_minutes": 0.05, "upscaling_speed": 1.0, "auth": {}, "file_mounts": {}, "docker": {},
        # By its class: a provider by the name fake_multinode needs a file that Ray's wheel lacks.
        "provider": {
            "type": "external", "module": PROVIDER, "gcs_address": f"127.0.0.1:{port}", "launch_multiple": True,
            "head_node_id": HEAD, "disable_node_updaters": True,
        },
    }  # fmt: skip
    path = tmp_path_factory.mktemp("autoscaler") / "config.json"
    path.write_text(json.dumps(content))
    variables = {
        "PYTHONPATH": str(REPOSITORY), EXTERNAL_ADDRESS: "0", "RAY_FAKE_CLUSTER": "1", "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD, "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }  # fmt: skip
    with joined(0, variables=variables, options=(f"--autoscaling-config={path}",), port=port) as started:
        yield started


@pytest.mark.slow
@pytest.mark.cluster
def test_a_service_has_as_many_nodes_as_its_jobs_need(tmp_path: Path, cluster: Joined) -> None:
    programs = {"digits": {"program": DIGITS}}
    path = write_settings(tmp_path, 1, 1, scheduler={"address": cluster.address}, programs=programs)
    experiment = tmp_path / "experiment.yaml"
    experiment.write_text(experiment.read_text().replace("ray:\n", f"ray:\n  autoscale: {SCALE}\n"))
    service = Served(path)
    try:
        job, large = service.submit(1, MOST, program="digits"), service.submit(1, MOST + 1, program="digits")
        assert [row.state for row in service.over(job, large)] == ["finished", "rejected"]
        assert "the cluster has 4 for one job" in service.row(large).reason
        service.until(lambda: not any(node["alive"] for node in service.client.nodes()))
    finally:
        service.close()
