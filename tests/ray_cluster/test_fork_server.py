"""The tests' own program for the processes of nodes, and what is imported where that costs time."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.nodes.processes import start_time
from tests.ray_cluster import fork_server
from tests.ray_cluster.fork_server import MODULES
from tests.ray_cluster.running import TIMEOUT_S
from tests.ray_cluster.test_real import wait_until


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        # Ray's library keeps the driver's id that it finds when it is loaded.
        (MODULES, "ray"),
        # Seconds, for those who only schedule.
        (
            ("rlpto.experiments.on_ray", "rlpto.ray_cluster.scheduler.cluster", "rlpto.ray_cluster.job.controller"),
            "torch",
        ),
    ],
    ids=["fork server", "scheduler"],
)
def test_what_is_imported_does_without(modules: tuple[str, ...], unwanted: str) -> None:
    program = (
        "import sys; from importlib import import_module\n"
        "for module in sys.argv[2:]: import_module(module)\n"
        "sys.exit(sys.argv[1] in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, unwanted, *modules], check=False).returncode == 0


class Forked:
    """An actor that tells what its process is."""

    def tell(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "server": os.getppid(),
            "job": os.environ["RAY_JOB_ID"],
            "imported": gc.get_freeze_count() > 100_000,
            "looks for garbage": gc.isenabled(),
            "random": np.random.random(),
        }


def start(node: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """An actor on a node, and what it tells."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    actor: Any = ray.remote(Forked)
    handle = actor.options(num_cpus=0, scheduling_strategy=here, **options).remote()
    return handle, ray.get(handle.tell.remote(), timeout=TIMEOUT_S)


@pytest.mark.skipif(fork_server.uses_gpus(), reason="processes start by themselves where torch uses GPUs")
def test_processes_of_a_cluster_are_forked_from_one(ray_cluster: LocalCluster) -> None:
    a, b, *_ = ray_cluster.node_ids
    one, first = start(a)
    other, second = start(b)
    assert first["server"] == second["server"] != ray_cluster.raylet_pid(a)
    assert first["imported"]
    assert first["looks for garbage"]
    assert first["job"] == second["job"] == ray.get_runtime_context().get_job_id()
    assert first["random"] != second["random"]
    ray.kill(one)
    wait_until(lambda: start_time(first["pid"]) is None)
    assert ray.get(other.tell.remote(), timeout=TIMEOUT_S)["pid"] == second["pid"], "each ends for itself"
    ray.kill(other)
    _, unlike = start(a, runtime_env={"env_vars": {"MKL_NUM_THREADS": "1"}})
    assert unlike["server"] == ray_cluster.raylet_pid(a), "its imports may read that"
