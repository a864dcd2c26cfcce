"""An actor on every node that knows which processes of Ray nobody has used yet there, and has the raylet start more.

A raylet is asked by the call that Ray itself starts processes ahead with; it has no name in Python yet.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rlpto.ray_cluster.messages import NAMESPACE
from rlpto.ray_cluster.processes import children_titled, kill_titled

KEEP_SECONDS = 24 * 3600
"""So long Ray keeps a process that nobody uses."""
ANSWER_SECONDS = 10.0
"""Longest wait for the raylet."""
IDLE = "ray::IDLE"
"""In the title of a process that no actor is in."""
STARTING = "default_worker.py"
"""In the command line of a process that has no title yet."""


class Lookout:
    """raylet: HOST:PORT of the node's own.

    Ray gives processes to those alone that the driver has started who had them started; so do we count. Processes that
    are idle when this one comes have served tasks, and serve no actor any more.
    """

    def __init__(self, raylet: str) -> None:
        import ray

        self._raylet = raylet
        self._job = ray.get_runtime_context().get_job_id()
        self._strangers = self._idle()

    def spares(self) -> int:
        """How many processes wait for whoever starts here."""
        return len(self._idle() - self._strangers)

    def start(self, count: int) -> None:
        """Start so many more. Raises grpc.RpcError if the raylet refuses."""
        start_processes(self._raylet, self._job, count)

    def kill(self, pid: int, title: str) -> None:
        """Kill a process of this node if its command line has `title` in it. A task would take a spare for that."""
        kill_titled(pid, title)

    def _idle(self) -> set[int]:
        """Processes of this node and this driver that serve nobody, or are about to start."""
        raylet = os.getppid()
        found = {*children_titled(raylet, IDLE), *children_titled(raylet, STARTING)} - {os.getpid()}
        return {pid for pid in found if _driver_of(pid) == self._job}


def _driver_of(pid: int) -> str:
    """Ray's id of the driver that a process is meant for; empty if it has ended, or is for anybody."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((entry[11:].decode() for entry in entries if entry.startswith(b"RAY_JOB_ID=")), "")


def start_processes(raylet: str, job: str, count: int) -> None:
    """Have a raylet (HOST:PORT) start processes for what driver `job` will start there. Raises grpc.RpcError."""
    from ray._private import grpc_utils
    from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc

    messages: Any = node_manager_pb2  # their types do not know what is in them
    service: Any = node_manager_pb2_grpc
    language: Any = common_pb2
    request = messages.PrestartWorkersRequest(
        language=language.PYTHON,
        job_id=bytes.fromhex(job),
        keep_alive_duration_secs=KEEP_SECONDS,
        num_workers=count,
    )
    request.runtime_env_info.serialized_runtime_env = "{}"
    with grpc_utils.init_grpc_channel(raylet) as channel:
        service.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=ANSWER_SECONDS)


def start_lookout(node: str, raylet: str) -> Any:
    """A lookout on a node, which ends with this driver."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor: Any = ray.remote(Lookout)
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    named = {"name": _name(node), "namespace": NAMESPACE, "get_if_exists": True}
    return actor.options(num_cpus=0, max_restarts=0, scheduling_strategy=here, **named).remote(raylet)


def find_lookout(node: str) -> Any | None:
    """The lookout on a node of the driver to which this process belongs; None if there is none."""
    import ray

    try:
        return ray.get_actor(_name(node), namespace=NAMESPACE)
    except ValueError:
        return None


def _name(node: str) -> str:
    import ray

    return f"rlpto-lookout:{ray.get_runtime_context().get_job_id()}:{node}"
