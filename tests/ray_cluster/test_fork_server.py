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
    """An actor that reports on its process."""

    def process(self) -> tuple[int, int, str, bool, float]:
        """Its id, that of the server, its job, whether it was forked after the imports, a random number."""
        imported = gc.get_freeze_count() > 100_000 and gc.isenabled()
        return os.getpid(), os.getppid(), os.environ["RAY_JOB_ID"], imported, np.random.random()


@pytest.mark.skipif(fork_server.uses_gpus(), reason="processes start without it where torch uses GPUs")
def test_processes_of_a_cluster_are_forked_from_one(ray_cluster: LocalCluster) -> None:
    remote: Any = ray.remote(Forked)
    here = [NodeAffinitySchedulingStrategy(node, soft=False) for node in ray_cluster.node_ids[:2]]
    one, other = (remote.options(num_cpus=0, scheduling_strategy=node).remote() for node in here)
    first, second = ray.get([one.process.remote(), other.process.remote()], timeout=TIMEOUT_S)
    own = ray.get_runtime_context().get_job_id()
    assert first[1:4] == second[1:4] == (first[1], own, True)
    assert first[1] != ray_cluster.raylet_pid(ray_cluster.node_ids[0])
    assert first[4] != second[4]
    ray.kill(one)
    wait_until(lambda: start_time(first[0]) is None)
    assert ray.get(other.process.remote(), timeout=TIMEOUT_S)[0] == second[0], "each ends for itself"
    ray.kill(other)
