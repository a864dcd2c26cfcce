"""A Ray cluster of several nodes owned by one process: for tests, and for evaluations without an address."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rlpto.io.errors import ClusterError
from rlpto.performance.tables import ONE_KIND
from rlpto.ray_cluster.messages import KIND_RESOURCE
from rlpto.ray_cluster.nodes.environment import driver, ray_environment
from rlpto.ray_cluster.nodes.folders import make_folder, remove_dead_folders, unused_folder
from rlpto.ray_cluster.nodes.processes import TITLE, end_cluster

if TYPE_CHECKING:
    from rlpto.ray_cluster.nodes.ray_node import RayNode


class LocalCluster(ExitStack):
    """Starts a head without GPUs and one raylet for every entry of `gpus`, and connects this process to it.

    gpus: logical GPUs of each node. cpus: CPU slots of each, None: as many as need be. slots: CPU slots of each node of
    `gpus` that replace `cpus` unless 0: the number that parameter servers may take. kinds: kind of each node's GPUs,
    None: all alike. on_progress: called with each next step. The cluster cannot be reached from another machine, or
    without its token. Use it with `with`, or end it by `close`: all its processes and its folder are then gone. Raises
    ClusterError if this process is connected to Ray already, or a node does not start.

    folder: of the token, and of Ray's sockets and logs. address: HOST:PORT that other drivers connect to.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        cpus: int | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
        slots: Sequence[int] = (),
        kinds: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._slots = [*slots, *([0] * (len(gpus) - len(slots)))]
        self._options: dict[str, Any] = {} if cpus is None else {"cpus": cpus}
        self._nodes: dict[str, RayNode] = {}
        self.folder = unused_folder()
        try:
            self.enter_context(ray_environment(self.folder))
            remove_dead_folders()
            make_folder(self.folder)
            self.callback(shutil.rmtree, self.folder, ignore_errors=True)
            # Ray's own shutdown knows no processes of a node whose raylet was killed, and on a busy machine leaves
            # agents behind.
            self.callback(end_cluster, str(self.folder))
            self._start(gpus, [ONE_KIND] * len(gpus) if kinds is None else kinds, on_progress)
        except BaseException:
            self.close()
            raise

    def _start(self, gpus: Sequence[int], kinds: Sequence[str], on_progress: Callable[[str], None]) -> None:
        from rlpto.ray_cluster.nodes.ray_node import start_node

        try:
            on_progress("starting the head of a local Ray cluster")
            head = start_node(**self._options)
            self.callback(_end, head)
            self.address = str(head.gcs_address)
            self.callback(self._remove_nodes)
            for number, (count, kind) in enumerate(zip(gpus, kinds, strict=True), 1):
                on_progress(f"starting node {number} of {len(gpus)}")
                self.add_node(count, self._slots[number - 1], kind)
            on_progress("connecting")
            self.enter_context(driver(self.address, self._remove))
        except Exception as error:  # Ray raises nothing more special where a node does not come up
            raise ClusterError(f"the local Ray cluster does not start: {str(error) or type(error).__name__}") from error

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Ray's ids of the nodes with GPUs that have not been taken away, in order of their start."""
        return tuple(self._nodes)

    def add_node(self, gpus: int, slots: int = 0, kind: str = ONE_KIND) -> str:
        """Start another node; returns its id once Ray knows it. slots: its CPU slots; 0: as of other nodes. kind: that
        its logical GPUs are taken for."""
        from rlpto.ray_cluster.nodes.ray_node import start_node

        resources = {} if kind == ONE_KIND else {f"{KIND_RESOURCE}{kind}": 1.0}
        options = self._options | ({"cpus": slots} if slots else {})
        node = start_node(self.address, gpus=gpus, resources=resources, **options)
        node_id = str(node.node_id)
        self._nodes[node_id] = node
        return node_id

    def remove_node(self, node_id: str) -> None:
        """Take a node away in an orderly way."""
        _end(self._nodes.pop(node_id))

    def _remove(self) -> None:
        """Without Ray's help, whose head is gone."""
        end_cluster(str(self.folder))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remove_nodes(self) -> None:
        for node_id in self.node_ids:
            self.remove_node(node_id)

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
        from rlpto.ray_cluster.compat import actor_states

        workers = [one for one in actor_states().values() if one["ActorClassName"] == TITLE and one["State"] == "ALIVE"]
        return sorted(int(one["Pid"]) for one in workers if one["Address"]["NodeID"] == node_id)


def _end(node: RayNode) -> None:
    """End a node in an orderly way."""
    node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
