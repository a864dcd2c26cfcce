"""One Ray node of this machine: its raylet and agents, which cannot be reached from another machine.

Ray's own command line cannot do this: it replaces the loopback address by an external one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.compat import Node, RayParams, has_joined
from rlpto.ray_cluster.nodes.environment import LOOPBACK
from rlpto.ray_cluster.nodes.processes import agent_ports, load_factor, started_for

OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Shared memory of a node: for weights of small jobs, in the moment in which new workers fetch them."""
CPU_SLOTS = 4
"""CPU slots of a node. Workers take none: slots only decide how many tasks and processes start at once."""
REGISTER_TIMEOUT_S = 60.0
"""Longest wait, on an idle machine, for a node to join its cluster."""
START_ATTEMPTS = 3
"""Attempts to start a node."""


WORKER_PROGRAM = "RLPTO_WORKER_PROGRAM"
"""Environment variable: path of a program that nodes run for each of their processes, with the arguments of Ray's own
`default_worker.py`, in its place."""


class RayNode(Node):
    """A node that listens on the loopback interface only.

    head_address: of the head (HOST:PORT) that it joins; None: it is one. port: of a head; 0: any. stays: its processes
    outlive this one. Raises ClusterError if it does not join in time; it is gone then.
    """

    def __init__(
        self,
        head_address: str | None = None,
        *,
        gpus: int = 0,
        cpus: int = CPU_SLOTS,
        resources: Mapping[str, float] | None = None,
        port: int = 0,
        stays: bool = False,
    ) -> None:
        parameters: dict[str, Any] = {
            "gcs_address": head_address,
            "node_ip_address": LOOPBACK,
            "num_cpus": cpus,
            "num_gpus": gpus,
            "resources": dict(resources or {}),
            "object_store_memory": OBJECT_STORE_BYTES,
            # Several nodes of one machine must not share a range of ports; 0 lets the system choose.
            "min_worker_port": 0,
            "max_worker_port": 0,
            "node_manager_port": 0,
            "include_dashboard": False,
            "no_monitor": True,  # that of an autoscaler
            "include_log_monitor": False,  # the monitor of printed output, which no driver of ours shows
            **agent_ports(),
        }
        if port:
            parameters["gcs_server_port"] = port
        if program := os.environ.get(WORKER_PROGRAM):
            parameters["worker_path"] = program
        try:
            with started_for(os.environ["RAY_TMPDIR"]):
                super().__init__(
                    RayParams(**parameters),
                    head=head_address is None,
                    shutdown_at_exit=not stays,
                    spawn_reaper=not stays,
                )
        except BaseException:
            self.kill_all_processes(check_alive=False, wait=True)
            raise

    @property
    def raylet(self) -> Any:
        """The process of its raylet."""
        return self.all_processes["raylet"][0].process

    def start_ray_processes(self) -> None:
        """Start the raylet, and wait until it has joined: Ray's own wait, which follows, is too short."""
        super().start_ray_processes()  # type: ignore[no-untyped-call]
        began = time.monotonic()
        while not has_joined(str(self.gcs_address), str(self.node_id)):
            if self.raylet.poll() is not None:
                raise ClusterError(f"a node's raylet has ended with exit code {self.raylet.poll()}")
            waited = time.monotonic() - began
            if waited > REGISTER_TIMEOUT_S * load_factor():
                raise ClusterError(f"a node has not joined its cluster within {waited:.0f} s")
            time.sleep(0.1)


def start_node(head_address: str | None = None, **options: Any) -> RayNode:
    """A `RayNode`. One that does not come up is started afresh, with other ports."""
    for _ in range(START_ATTEMPTS - 1):
        try:
            return RayNode(head_address, **options)
        except Exception:  # Ray raises nothing more specific
            time.sleep(1.0)
    return RayNode(head_address, **options)
