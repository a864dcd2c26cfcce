"""A Ray cluster of several nodes inside one process: for tests, and for evaluations that are given no address."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rlpto.errors import ClusterError
from rlpto.ray_cluster.nodes.driver import Attachment, refuse_second
from rlpto.ray_cluster.nodes.environment import restore_environment, use_ray_environment
from rlpto.ray_cluster.nodes.fork_server import program
from rlpto.ray_cluster.nodes.processes import TITLE, agent_ports, children_titled, end_processes, family_of

OBJECT_STORE = 80 * 1024 * 1024
"""Bytes of shared memory of a node: weights of small jobs, for the moment in which newcomers fetch them."""
CPUS = 4
"""CPU slots of a node. Workers take none: slots only decide how many tasks and processes start at once."""
STARTS = 4
"""Attempts to start a node."""
START_SECONDS = 120.0
"""A node that has not come up by then will not come."""


class LocalCluster:
    """Starts a head without GPUs and one raylet for every entry of `gpus`, and connects this process to it.

    gpus: logical GPUs of each node. forking: nodes have fork servers. To be used with `with`, or ended by `close`:
    every process it has started is then gone, and so is its folder. Raises ClusterError if this process is connected to
    Ray already, or a node does not start.
    """

    def __init__(self, gpus: Sequence[int], cpus: int = CPUS, forking: bool = True) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rl"))
        self._before = use_ray_environment(self._folder)
        self._cpus = cpus
        self._program = {"worker_path": program()} if forking else {}
        self._cluster: Any = None
        self._nodes: dict[str, Any] = {}
        self._attachment: Attachment | None = None
        try:
            self._start(gpus)
        except BaseException:
            self.close()
            raise

    def _start(self, gpus: Sequence[int]) -> None:
        from ray.cluster_utils import Cluster

        refuse_second()
        try:
            self._cluster = Cluster()
            _patiently(lambda: self._cluster.add_node(**self._arguments(0)))
            for count in gpus:
                self._add(count, wait=False)
            self._cluster.wait_for_nodes(timeout=START_SECONDS)
            self._attachment = Attachment(self._cluster.address)
        except Exception as error:  # Ray raises nothing more special where a node does not come up
            raise ClusterError(f"the local Ray cluster does not start: {_line(error)}") from error

    def _arguments(self, gpus: int) -> dict[str, Any]:
        return {
            "num_cpus": self._cpus,
            "num_gpus": gpus,
            "object_store_memory": OBJECT_STORE,
            "include_dashboard": False,
            "no_monitor": True,  # that of an autoscaler, and that of what is printed, which no driver of ours shows
            "include_log_monitor": False,
            **self._program,
            **agent_ports(),
        }

    def _add(self, gpus: int, wait: bool) -> str:
        node = _patiently(lambda: self._cluster.add_node(wait=wait, **self._arguments(gpus)))
        node_id = str(node.node_id)
        self._nodes[node_id] = node
        return node_id

    @property
    def address(self) -> str:
        """HOST:PORT that other drivers connect to."""
        return str(self._cluster.address)

    @property
    def folder(self) -> Path:
        """Folder of Ray's sockets and logs."""
        return self._folder

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Ray's ids of the nodes with GPUs that have not been taken away, in order of their start."""
        return tuple(self._nodes)

    def add_node(self, gpus: int) -> str:
        """Start another node; returns its id once Ray knows it."""
        return self._add(gpus, wait=True)

    def remove_node(self, node_id: str) -> None:
        """Take a node away in an orderly way."""
        self._cluster.remove_node(self._nodes.pop(node_id))

    def kill_node(self, node_id: str) -> None:
        """Let a node die as if its machine lost power: SIGKILL to its raylet, and its zombie reaped."""
        node = self._nodes.pop(node_id)
        process = self.raylet(node)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        self._cluster.worker_nodes.discard(node)

    def raylet_pid(self, node_id: str) -> int:
        """Process id of a node's raylet."""
        return int(self.raylet(self._nodes[node_id]).pid)

    def worker_pids(self, node_id: str) -> list[int]:
        """Process ids of the jobs' workers on a node."""
        return children_titled(self.raylet_pid(node_id), TITLE)

    @staticmethod
    def raylet(node: Any) -> Any:
        """The raylet of a node of Ray's `Cluster`, as the process that it is."""
        return node.all_processes["raylet"][0].process

    def close(self) -> None:
        """Disconnect, end every process that was started, and remove the folder."""
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None
        # Agents of a node cannot be found any more once their raylet is gone.
        family = family_of(str(self._folder))
        try:
            if self._cluster is not None:
                self._cluster.shutdown()
                self._cluster = None
        finally:
            # Ray's own shutdown knows no processes of a node whose raylet was killed, fails over one that did not come
            # up, and on a busy machine leaves agents behind.
            end_processes({**family, **family_of(str(self._folder))})
            shutil.rmtree(self._folder, ignore_errors=True)
            restore_environment(self._before)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _patiently(start: Callable[[], Any]) -> Any:
    """Start a node; more than once where the machine is too busy for the 30 s that Ray gives it."""
    for _ in range(STARTS - 1):
        try:
            return start()
        except Exception as error:  # Ray raises nothing more special
            if "timed out during startup" not in str(error):
                raise
    return start()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
