"""What a node has in reserve: an actor on it that counts processes which nobody has used yet, and has more started.

A raylet is asked by the call that Ray itself starts processes ahead with; it has no name in Python yet.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpto.ray_cluster.forkserver import UNUSED
from rlpto.ray_cluster.messages import NAMESPACE
from rlpto.ray_cluster.processes import IDLE, STARTING, children_titled, kill_titled, name_of
from rlpto.ray_cluster.warming import WARMING, asked_for

KEEP_SECONDS = 24 * 3600
"""So long Ray keeps a process that nobody uses."""
ANSWER_SECONDS = 10.0
"""Longest wait for the raylet."""
LASTING = "UNIMPLEMENTED", "UNAUTHENTICATED", "PERMISSION_DENIED"
"""Answers of a raylet that will be the same the next time."""


@dataclass(frozen=True)
class Stock:
    """Processes of a node that wait for whoever starts there. warming: of them not warm yet."""

    spares: int
    warming: int


class Reserve:
    """Actor on a node. Ray gives processes to those alone that the driver has started who had them started, so that it
    counts those of its own driver."""

    def stock(self) -> Stock:
        """How many processes wait for whoever starts here."""
        raylet = int(os.environ["RAY_RAYLET_PID"])
        # In this order: one that gets its title meanwhile is found twice rather than not at all.
        starting = children_titled(raylet, *STARTING)
        idle = [pid for pid in children_titled(raylet, IDLE) if unused(pid)]
        job = ray.get_runtime_context().get_job_id()
        own = [pid for pid in {*starting, *idle} if driver_of(pid) == job]
        return Stock(len(own), sum(pid in starting or is_warming(pid) for pid in own))

    def start(self, raylet: str, count: int) -> str:
        """Have the node's raylet (HOST:PORT) start so many more. Why it never will; empty if it may."""
        return start_processes(raylet, ray.get_runtime_context().get_job_id(), count)

    @ray.method(concurrency_group="control")
    def kill(self, pid: int, title: str) -> None:
        """Kill a process of this node if its command line has `title` in it. A task would take a spare for that."""
        kill_titled(pid, title)


def unused(pid: int) -> bool:
    """False for a process that has served tasks, and serves no actor any more. That can be told where processes import
    `rlpto.ray_cluster.preload`; elsewhere it is true."""
    if not asked_for():
        return True
    return name_of(pid).startswith(UNUSED)


def is_warming(pid: int) -> bool:
    """True for a process that is about to import what workers need, or does."""
    return any(name_of(pid, int(entry.name)) == WARMING for entry in Path(f"/proc/{pid}/task").glob("*"))


def driver_of(pid: int) -> str:
    """Ray's id of the driver that a process is meant for which has served nobody yet; empty if it has ended."""
    name = name_of(pid)
    if name.startswith(UNUSED):
        return name.removeprefix(UNUSED)
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((entry[11:].decode() for entry in entries if entry.startswith(b"RAY_JOB_ID=")), "")


def start_processes(raylet: str, job: str, count: int) -> str:
    """Have a raylet (HOST:PORT) start processes for what driver `job` will start there. Returns as `Reserve.start`."""
    import grpc
    from ray._private import grpc_utils, ray_constants

    try:
        from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc
    except ImportError as missing:
        return str(missing)
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
    try:
        with grpc_utils.init_grpc_channel(raylet, options=ray_constants.GLOBAL_GRPC_OPTIONS) as channel:
            service.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=ANSWER_SECONDS)
    except grpc.RpcError as refused:
        code = refused.code().name
        return f"{code} {refused.details()}".strip() if code in LASTING else ""
    return ""


def start_reserve(node: str) -> Any:
    """The actor on a node, which ends with this driver; the one that is there if this driver has one there."""
    remote: Any = ray.remote  # its types do not know concurrency groups
    actor = remote(num_cpus=0, max_restarts=0, concurrency_groups={"control": 1})(Reserve)
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    return actor.options(name=_name(node), namespace=NAMESPACE, get_if_exists=True, scheduling_strategy=here).remote()


def find_reserve(node: str) -> Any | None:
    """The actor on a node of the driver to which this process belongs; None if there is none, or nobody can say."""
    try:
        return ray.get_actor(_name(node), namespace=NAMESPACE)
    except (ValueError, RayError):
        return None


def _name(node: str) -> str:
    return f"rlpto-reserve:{ray.get_runtime_context().get_job_id()}:{node}"
