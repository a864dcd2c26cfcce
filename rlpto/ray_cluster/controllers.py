"""Job controllers from outside: their node, finding them by name, calling them, and ending them reliably.

Used by the scheduler, by measurements and by anything else that commands jobs. It needs neither torch nor the
controller's code.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from rlpto.io.errors import ClusterError, JobError
from rlpto.performance.tables import ANY_GPU
from rlpto.ray_cluster.messages import (
    GPU_TYPE_LABEL,
    GPU_TYPE_RESOURCE,
    NAMESPACE,
    JobReport,
    controller_name,
    reason_of,
)
from rlpto.ray_cluster.nodes.environment import CONTROL
from rlpto.ray_cluster.nodes.processes import kill_titled

HEARTBEAT_TIMEOUT_S = 30.0
"""Longest time that a job controller may leave a call unanswered before it counts as hanging and is replaced."""
START_TIMEOUT_S = 120.0
"""Longest time for a job controller to start, or to be restarted by Ray, before it is given up."""
STOP_TIMEOUT_S, LONGEST_STOP_S = 20.0, 300.0
"""Longest time that a stopping job controller may not answer, and longest time for it to write a checkpoint and release
its workers, before it is killed."""
KILL_TIMEOUT_S = 10.0
"""Longest wait until a killed job controller is gone."""

CONTROLLER_TITLE = "JobController"
"""Text in the command line of a controller's process: Ray writes the actor's class there."""


def alive_nodes() -> list[dict[str, Any]]:
    """Ray's entry for each node that is alive."""
    import ray

    return [entry for entry in ray.nodes() if entry["Alive"]]  # type: ignore[no-untyped-call]


def gpu_type_of(node: Mapping[str, Any]) -> str:
    """GPU type of a node's entry in Ray, in lower case: name of the resource `gpu_type:NAME`, else the label
    `ray.io/accelerator-type`, else the name of the resource `accelerator_type:NAME`."""

    def of(prefix: str) -> list[str]:
        return [name.removeprefix(prefix) for name in node["Resources"] if name.startswith(prefix)]

    label = str(node["Labels"].get(GPU_TYPE_LABEL, ""))
    return next(name for name in (*of(GPU_TYPE_RESOURCE), label, *of("accelerator_type:"), ANY_GPU) if name).lower()


@cache
def gpu_type_at(node: str) -> str:
    """GPU type of the node with this Ray id; it never changes."""
    return next((gpu_type_of(entry) for entry in alive_nodes() if entry["NodeID"] == node), ANY_GPU)


def control_node() -> str:
    """Ray's id of the node for controllers: a node reserved for them, else the head, else a node without GPUs.

    Raises ClusterError if no node is alive.
    """
    alive = alive_nodes()
    if not alive:
        raise ClusterError("the Ray cluster has no node that is alive")
    kept = [entry for entry in alive if CONTROL in entry["Resources"]]
    heads = [entry for entry in alive if "node:__internal_head__" in entry["Resources"]]
    without = [entry for entry in alive if not entry["Resources"].get("GPU")]
    return str(next(iter((*kept, *heads, *without, *alive)))["NodeID"])


def controller_exists(session: str, job: str) -> bool:
    """True if Ray still knows a job's controller: it answers, or is being restarted."""
    import ray

    try:
        ray.get_actor(controller_name(session, job), namespace=NAMESPACE)
    except ValueError:
        return False
    return True


def all_controllers(sessions: str = "") -> dict[tuple[str, str], Any]:
    """Handles of existing controllers of sessions whose names begin with `sessions`, by session and job."""
    import ray
    from ray.util import list_named_actors

    prefix, found = controller_name("", "").partition(":")[0], {}
    for actor in list_named_actors(all_namespaces=True):
        kind, _, of = actor["name"].partition(":")
        session, _, job = of.partition(":")
        if actor["namespace"] == NAMESPACE and kind == prefix and session.startswith(sessions):
            with suppress(ValueError):  # ended since it was listed
                found[session, job] = ray.get_actor(actor["name"], namespace=NAMESPACE)
    return found


def find_controllers(session: str) -> dict[str, Any]:
    """Handles of all existing controllers of a session, by job."""
    return {job: handle for (own, job), handle in all_controllers(session).items() if own == session}


def answer_of(call: Any) -> JobReport:
    """A controller's answer to a call. Raises JobError if the controller does not answer within `START_TIMEOUT_S`, or
    is gone."""
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    try:
        report: JobReport = ray.get(call, timeout=START_TIMEOUT_S)
    except GetTimeoutError:
        raise JobError(f"a job controller has not answered within {START_TIMEOUT_S:.0f} s") from None
    except RayActorError as gone:
        raise JobError(f"a job controller is gone: {reason_of(gone)}") from None
    return report


def is_alive(handle: Any) -> bool:
    """True if, according to Ray, a controller has started and has not ended, whether or not it answers."""
    from rlpto.ray_cluster.compat import actor_state

    return actor_state(handle).get("State") == "ALIVE"


def kill_at(node: str, pid: int, title: str) -> Any:
    """Kill a process by its id, on its node, if its command line contains `title`. Returns Ray's answer to wait for.

    A suspended process would not handle Ray's own request to end.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False, _fail_on_unavailable=True)
    task: Any = ray.remote(kill_titled)
    return task.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(pid, title)


def kill_controller(handle: Any) -> Any:
    """Kill a controller and its workers; returns Ray's answer to wait for, None if it has no process."""
    import ray

    from rlpto.ray_cluster.compat import actor_state

    known = actor_state(handle)
    ray.kill(handle, no_restart=True)  # frees its name
    if known.get("State") != "ALIVE":
        return None
    return kill_at(known["Address"]["NodeID"], known["Pid"], CONTROLLER_TITLE)


def end_controllers(handles: Iterable[Any]) -> None:
    """Kill controllers and wait until they are gone, for `KILL_TIMEOUT_S` at most."""
    import ray

    killed = [call for call in map(kill_controller, handles) if call is not None]
    if killed:
        ray.wait(killed, num_returns=len(killed), timeout=KILL_TIMEOUT_S)


class Stopping:
    """A controller that was asked to stop. answer: its pending answer.

    A large checkpoint takes minutes to write. Meanwhile the controller answers other calls.
    """

    def __init__(self, handle: Any) -> None:
        self.answer, self._handle = handle.stop.remote(), handle
        self._since = time.monotonic()
        self._ask()

    def _ask(self) -> None:
        self._sign, self._asked = self._handle.__ray_ready__.remote(), time.monotonic()

    def overdue(self) -> bool:
        """True if the controller has not answered any call for `STOP_TIMEOUT_S`, or has not stopped in
        `LONGEST_STOP_S`."""
        import ray

        now = time.monotonic()
        if now - self._since > LONGEST_STOP_S:
            return True
        if now - self._asked <= STOP_TIMEOUT_S:
            return False
        if not ray.wait([self._sign], timeout=0)[0]:
            return True
        self._ask()
        return False


def stop_controller(handle: Any) -> JobReport | None:
    """Stop a controller and wait for its end. Returns its last report, or None if it was gone or did not report in
    time.

    A controller that does not answer in time is killed, and its workers end with it.
    """
    import ray
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    stopping = Stopping(handle)
    while not ray.wait([stopping.answer], timeout=0.05)[0]:
        if stopping.overdue():
            end_controllers([handle])
            return None
    try:
        report: JobReport = ray.get(stopping.answer)
    except (ActorDiedError, ActorUnavailableError):
        return None
    gone = time.monotonic() + KILL_TIMEOUT_S
    while is_alive(handle) and time.monotonic() < gone:
        time.sleep(0.05)
    return report
