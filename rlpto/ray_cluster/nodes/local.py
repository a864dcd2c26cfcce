"""A Ray cluster of several nodes inside one process: for tests, and for evaluations that are given no address."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rlpto.errors import ClusterError
from rlpto.ray_cluster.nodes.driver import Attachment, refuse_second
from rlpto.ray_cluster.nodes.environment import restore_environment, use_ray_environment
from rlpto.ray_cluster.nodes.folders import make_folder, remove_dead_folders, unused_folder
from rlpto.ray_cluster.nodes.processes import TITLE, children_titled, end_cluster

if TYPE_CHECKING:
    from rlpto.ray_cluster.nodes.ray_node import RayNode


class LocalCluster:
    """Starts a head without GPUs and one raylet for every entry of `gpus`, and connects this process to it.

    gpus: logical GPUs of each node. cpus: CPU slots of each, None: as many as need be. forking: nodes have fork
    servers. on_progress: is told what comes next. Nobody from another machine reaches the cluster, and nobody connects
    without its token. To be used with `with`, or ended by `close`: every process it has started is then gone, and so
    is its folder. Raises ClusterError if this process is connected to Ray already, or a node does not start.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        cpus: int | None = None,
        forking: bool = True,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        refuse_second()
        remove_dead_folders()
        self._options: dict[str, Any] = {"forking": forking} | ({} if cpus is None else {"cpus": cpus})
        self._head: RayNode | None = None
        self._nodes: dict[str, RayNode] = {}
        self._attachment: Attachment | None = None
        self._folder = unused_folder()
        make_folder(self._folder)
        self._before = use_ray_environment(self._folder)
        try:
            self._start(gpus, on_progress)
        except BaseException:
            self.close()
            raise

    def _start(self, gpus: Sequence[int], on_progress: Callable[[str], None]) -> None:
        from rlpto.ray_cluster.nodes.ray_node import start_node

        try:
            on_progress("starting the head of a local Ray cluster")
            self._head = start_node(**self._options)
            for number, count in enumerate(gpus, 1):
                on_progress(f"starting node {number} of {len(gpus)}")
                self.add_node(count)
            on_progress("connecting")
            self._attachment = Attachment(self.address)
        except Exception as error:  # Ray raises nothing more special where a node does not come up
            raise ClusterError(f"the local Ray cluster does not start: {_line(error)}") from error

    @property
    def address(self) -> str:
        """HOST:PORT that other drivers connect to."""
        assert self._head is not None, "closed"
        return str(self._head.gcs_address)

    @property
    def folder(self) -> Path:
        """Folder of the token, and of Ray's sockets and logs."""
        return self._folder

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Ray's ids of the nodes with GPUs that have not been taken away, in order of their start."""
        return tuple(self._nodes)

    def add_node(self, gpus: int) -> str:
        """Start another node; returns its id once Ray knows it."""
        from rlpto.ray_cluster.nodes.ray_node import start_node

        node = start_node(self.address, gpus=gpus, **self._options)
        node_id = str(node.node_id)
        self._nodes[node_id] = node
        return node_id

    def remove_node(self, node_id: str) -> None:
        """Take a node away in an orderly way."""
        self._nodes.pop(node_id).kill_all_processes(check_alive=False, allow_graceful=True, wait=True)

    def kill_node(self, node_id: str) -> None:
        """Let a node die as if its machine lost power: SIGKILL to its raylet, and its zombie reaped."""
        process = self._nodes.pop(node_id).raylet
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def raylet_pid(self, node_id: str) -> int:
        """Process id of a node's raylet."""
        return int(self._nodes[node_id].raylet.pid)

    def worker_pids(self, node_id: str) -> list[int]:
        """Process ids of the jobs' workers on a node."""
        return children_titled(self.raylet_pid(node_id), TITLE)

    def close(self) -> None:
        """Disconnect, end every process that was started, and remove the folder."""
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None
        try:
            for node_id in self.node_ids:
                self.remove_node(node_id)
            if self._head is not None:
                self._head.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
                self._head = None
        finally:
            # Ray's own shutdown knows no processes of a node whose raylet was killed, and on a busy machine leaves
            # agents behind.
            end_cluster(str(self._folder))
            shutil.rmtree(self._folder, ignore_errors=True)
            restore_environment(self._before)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
