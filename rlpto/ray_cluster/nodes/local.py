"""Local Ray nodes, which other machines cannot reach, and clusters of them that one process owns."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from rlpto.core.cluster import Node
from rlpto.io.errors import ClusterError
from rlpto.performance.tables import ANY_GPU
from rlpto.ray_cluster import compat
from rlpto.ray_cluster.compat import RayParams, actor_states, has_joined
from rlpto.ray_cluster.messages import GPU_TYPE_RESOURCE
from rlpto.ray_cluster.nodes.environment import LOOPBACK, driver, ray_environment
from rlpto.ray_cluster.nodes.processes import (
    TITLE,
    free_ports,
    load_factor,
    make_folder,
    remove_cluster,
    remove_dead_folders,
    started_for,
    unused_folder,
)

OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Shared memory of a node, for the weights of small jobs while new workers fetch them."""
CPU_SLOTS = 4
"""CPU slots of a node. A parameter server takes one, a worker none; slots also limit how many processes start."""
REGISTER_TIMEOUT_S = 60.0
"""Longest wait, on an idle machine, for a node to join its cluster."""
START_ATTEMPTS = 3
"""Attempts to start a node."""
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
"""Ray's parameters for the ports of a node's agents. They are set in advance: otherwise a raylet waits for its agents
to report them and aborts after 15 s, which is too short on a busy machine."""
WORKER_PROGRAM = "RLPTO_WORKER_PROGRAM"
"""Environment variable with the path of a program that nodes run for each worker process, with the same arguments as
Ray's `default_worker.py`, which it replaces."""
Progress = Callable[[str], None]
"""Callback that receives a description of each step before the step begins."""


class RayNode(compat.Node):
    """A node that listens on the loopback interface only, which Ray's own command line cannot do.

    head_address: address of the head to join (HOST:PORT). Default: the node is a head. port: port of a head; 0 picks
    any. stays: if true, the node's processes outlive this process. If the node does not join in time, its processes are
    ended and ClusterError is raised.
    """

    def __init__(
        self,
        head_address: str | None = None,
        *,
        gpus: int = 0,
        cpus: int = CPU_SLOTS,
        resources: dict[str, float] | None = None,
        labels: dict[str, str] | None = None,
        port: int = 0,
        stays: bool = False,
    ) -> None:
        parameters: dict[str, Any] = {
            "gcs_address": head_address,
            "node_ip_address": LOOPBACK,
            "num_cpus": cpus,
            "num_gpus": gpus,
            "resources": resources or {},
            "labels": labels or {},
            "object_store_memory": OBJECT_STORE_BYTES,
            # Several nodes of one machine must not share a range of ports; 0 lets the system choose.
            "min_worker_port": 0,
            "max_worker_port": 0,
            "node_manager_port": 0,
            "include_dashboard": False,
            "no_monitor": True,  # the autoscaler's monitor
            "include_log_monitor": False,  # the monitor of printed output, which no driver of ours shows
            "gcs_server_port": port or None,
            "worker_path": os.environ.get(WORKER_PROGRAM) or None,
            **dict(zip(AGENT_PORTS, free_ports(len(AGENT_PORTS)), strict=True)),
        }
        try:
            with started_for(os.environ["RAY_TMPDIR"]):
                ray, head = RayParams(**parameters), head_address is None
                # With shutdown_at_exit Ray installs a SIGTERM handler, which only the main thread may do.
                # Nodes started in other threads need none: the head's handler is enough.
                at_exit = not stays and threading.current_thread() is threading.main_thread()
                super().__init__(ray, head=head, shutdown_at_exit=at_exit, spawn_reaper=not stays)
        except BaseException:
            self.kill_all_processes(check_alive=False, wait=True)
            raise

    @property
    def raylet(self) -> Any:
        """The process of the node's raylet."""
        return self.all_processes["raylet"][0].process

    def start_ray_processes(self) -> None:
        """Start the raylet and wait until it has joined, because Ray's own wait, which follows, is too short."""
        compat.note_agent_port(self)
        super().start_ray_processes()  # type: ignore[no-untyped-call]
        began = time.monotonic()
        while not has_joined(str(self.gcs_address), str(self.node_id)):
            if self.raylet.poll() is not None:
                reason = compat.last_error(self.raylet) or f"exit code {self.raylet.poll()}"
                raise ClusterError(f"a node's raylet has ended: {reason}")
            waited = time.monotonic() - began
            if waited > REGISTER_TIMEOUT_S * load_factor():
                raise ClusterError(f"a node has not joined its cluster within {waited:.0f} s")
            time.sleep(0.1)


def start_node(head_address: str | None = None, **options: Any) -> RayNode:
    """Start a `RayNode`. If it does not come up, try again with other ports, `START_ATTEMPTS` times in all. Turns the
    last exception, of whatever type, into ClusterError."""
    for _ in range(START_ATTEMPTS - 1):
        with suppress(Exception):  # Ray raises nothing more specific
            return RayNode(head_address, **options)
        time.sleep(1.0)
    try:
        return RayNode(head_address, **options)
    except Exception as error:
        raise ClusterError(f"the local Ray cluster does not start: {str(error) or type(error).__name__}") from error


def node_options(node: Node, cpus: int = CPU_SLOTS) -> dict[str, Any]:
    """Return the `RayNode` options for a node of a configuration. cpus: CPU slots if the node sets none."""
    resources = {} if node.gpu == ANY_GPU else {f"{GPU_TYPE_RESOURCE}{node.gpu}": 1.0}
    return {"gpus": node.gpus, "cpus": node.cpus or cpus, "resources": resources}


def start_nodes(
    nodes: Sequence[dict[str, Any]], on_progress: Progress, *, cpus: int = CPU_SLOTS, port: int = 0, stays: bool = False
) -> Iterator[RayNode]:
    """Start a head without GPUs, then the nodes that join it, and yield each. Needs the cluster's `ray_environment`.

    nodes: `RayNode` options of each node. cpus, port: options of the head. stays: the nodes outlive this process.
    """
    on_progress("starting the head of a local Ray cluster")
    head = start_node(cpus=cpus, port=port, stays=stays)
    yield head
    for number, options in enumerate(nodes, 1):
        on_progress(f"starting node {number} of {len(nodes)}")
        yield start_node(str(head.gcs_address), stays=stays, **options)


class LocalCluster(ExitStack):
    """Starts a head without GPUs and one raylet for each of `nodes`, and connects this process to it.

    nodes: nodes with logical GPUs. cpus: CPU slots of the head, and of nodes that set none. folder: folder of the token
    and of Ray's sockets and logs. address: HOST:PORT of the head. The cluster cannot be reached from another machine,
    or without its token. `close` ends all its processes and removes its folder. Raises ClusterError if this process is
    connected to Ray already, or a node does not start.
    """

    def __init__(self, nodes: Iterable[Node], cpus: int = CPU_SLOTS, on_progress: Progress = lambda _: None) -> None:
        super().__init__()
        self._cpus = cpus
        self._nodes: dict[str, RayNode] = {}
        self.folder = unused_folder()
        options = [node_options(node, cpus) for node in nodes]
        try:
            self.enter_context(ray_environment(self.folder))
            remove_dead_folders()
            make_folder(self.folder)
            self.callback(remove_cluster, self.folder)
            head, *_ = [self._keep(node) for node in start_nodes(options, on_progress, cpus=cpus)]
            del self._nodes[str(head.node_id)]
            self.address = str(head.gcs_address)
            on_progress("connecting")
            self.enter_context(driver(self.address, lambda: remove_cluster(self.folder)))
        except BaseException:
            self.close()
            raise

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Ray's ids of the nodes with GPUs that have not been killed, in order of their start."""
        return tuple(self._nodes)

    def _keep(self, node: RayNode) -> RayNode:
        """Register a node; it is shut down in an orderly way with the cluster."""
        self.callback(node.kill_all_processes, check_alive=False, allow_graceful=True, wait=True)
        self._nodes[str(node.node_id)] = node
        return node

    def add_node(self, gpus: int, **labels: str) -> str:
        """Start another node, and return its id once Ray knows it. labels: Ray labels by name."""
        return str(self._keep(start_node(self.address, **node_options(Node(gpus), self._cpus), labels=labels)).node_id)

    def kill_node(self, node_id: str) -> None:
        """Kill a node as if its machine lost power: send SIGKILL to its raylet, and reap the process."""
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
