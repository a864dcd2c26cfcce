"""Ray nodes of this machine, which other machines cannot reach, and clusters of them that one process owns."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rlpto.io.errors import ClusterError
from rlpto.performance.tables import ONE_KIND
from rlpto.ray_cluster.compat import Node, RayParams, actor_states, has_joined
from rlpto.ray_cluster.messages import KIND_RESOURCE
from rlpto.ray_cluster.nodes.environment import LOOPBACK, driver, ray_environment
from rlpto.ray_cluster.nodes.processes import (
    TITLE,
    agent_ports,
    end_cluster,
    load_factor,
    make_folder,
    remove_dead_folders,
    started_for,
    unused_folder,
)

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
    """A node that listens on the loopback interface only, which Ray's own command line cannot do.

    head_address: of the head (HOST:PORT) that it joins; None: it is one. port: of a head; 0: any. stays: its processes
    outlive this one. Raises ClusterError if it does not join in time; it is gone then.
    """

    def __init__(
        self,
        head_address: str | None = None,
        *,
        gpus: int = 0,
        cpus: int = CPU_SLOTS,
        resources: dict[str, float] | None = None,
        port: int = 0,
        stays: bool = False,
    ) -> None:
        parameters: dict[str, Any] = {
            "gcs_address": head_address,
            "node_ip_address": LOOPBACK,
            "num_cpus": cpus,
            "num_gpus": gpus,
            "resources": resources or {},
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


@contextmanager
def starting() -> Iterator[None]:
    """Inside, any exception of Ray while a cluster starts is a ClusterError in one line."""
    try:
        yield
    except Exception as error:  # Ray raises nothing more specific
        raise ClusterError(f"the local Ray cluster does not start: {str(error) or type(error).__name__}") from error


class LocalCluster(ExitStack):
    """Starts a head without GPUs and one raylet for every entry of `gpus`, and connects this process to it.

    gpus: logical GPUs of each node. cpus: CPU slots of each. slots: CPU slots of each node of `gpus` that replace
    `cpus` unless 0: the number that parameter servers may take. kinds: kind of each node's GPUs, None: all alike.
    on_progress: called with each next step. The cluster cannot be reached from another machine, or without its token.
    Use it with `with`, or end it by `close`: all its processes and its folder are then gone. Raises ClusterError if
    this process is connected to Ray already, or a node does not start.

    folder: of the token, and of Ray's sockets and logs. address: HOST:PORT that other drivers connect to.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        cpus: int = CPU_SLOTS,
        on_progress: Callable[[str], None] = lambda _: None,
        slots: Sequence[int] = (),
        kinds: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._cpus = cpus
        self._nodes: dict[str, RayNode] = {}
        self.folder = unused_folder()
        slots = slots or [0] * len(gpus)
        try:
            self.enter_context(ray_environment(self.folder))
            remove_dead_folders()
            make_folder(self.folder)
            self.callback(self._remove)
            with starting():
                on_progress("starting the head of a local Ray cluster")
                head = start_node(cpus=cpus)
                self.callback(_end, head)
                self.callback(self._remove_nodes)
                self.address = str(head.gcs_address)
                for number, count in enumerate(gpus):
                    on_progress(f"starting node {number + 1} of {len(gpus)}")
                    self.add_node(count, slots[number], ONE_KIND if kinds is None else kinds[number])
                on_progress("connecting")
                self.enter_context(driver(self.address, self._remove))
        except BaseException:
            self.close()
            raise

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Ray's ids of the nodes with GPUs that have not been taken away, in order of their start."""
        return tuple(self._nodes)

    def add_node(self, gpus: int, slots: int = 0, kind: str = ONE_KIND) -> str:
        """Start another node; returns its id once Ray knows it. slots: its CPU slots; 0: as of other nodes. kind: that
        its logical GPUs are taken for."""
        resources = {} if kind == ONE_KIND else {f"{KIND_RESOURCE}{kind}": 1.0}
        node = start_node(self.address, gpus=gpus, cpus=slots or self._cpus, resources=resources)
        self._nodes[str(node.node_id)] = node
        return str(node.node_id)

    def remove_node(self, node_id: str) -> None:
        """Take a node away in an orderly way."""
        _end(self._nodes.pop(node_id))

    def _remove_nodes(self) -> None:
        for node_id in self.node_ids:
            self.remove_node(node_id)

    def _remove(self) -> None:
        """End all processes and remove the folder, without Ray's help.

        Ray's own shutdown knows no processes of a node whose raylet was killed, and on a busy machine leaves agents
        behind; and the head may be gone.
        """
        end_cluster(str(self.folder))
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill_node(self, node_id: str) -> None:
        """Kill a node as if its machine lost power: SIGKILL to its raylet, whose zombie is reaped."""
        process = self._nodes.pop(node_id).raylet
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def raylet_pid(self, node_id: str) -> int:
        """Process id of a node's raylet."""
        return int(self._nodes[node_id].raylet.pid)

    def worker_pids(self, node_id: str) -> list[int]:
        """Process ids of the jobs' workers on a node."""
        workers = [one for one in actor_states().values() if one["ActorClassName"] == TITLE and one["State"] == "ALIVE"]
        return sorted(int(one["Pid"]) for one in workers if one["Address"]["NodeID"] == node_id)


def _end(node: RayNode) -> None:
    """End a node in an orderly way."""
    node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
