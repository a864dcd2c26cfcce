"""Interface of the scheduler to Ray: nodes, job controllers, reports. No call waits longer than its timeout."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlpto.core.cluster import Node
from rlpto.performance.tables import ANY_GPU
from rlpto.ray_cluster.controllers import (
    HEARTBEAT_TIMEOUT_S,
    KILL_TIMEOUT_S,
    START_TIMEOUT_S,
    Stopping,
    alive_nodes,
    control_node,
    controller_exists,
    find_controllers,
    gpu_type_of,
    is_alive,
    kill_controller,
)
from rlpto.ray_cluster.health import NodeHealth
from rlpto.ray_cluster.messages import MARKET_LABEL, Command, JobReport, JobSpec, reason_of
from rlpto.ray_cluster.nodes.environment import AUTH_MODE, LOOPBACK
from rlpto.ray_cluster.scheduler.notices import watch_node


@dataclass(frozen=True)
class NodeInfo:
    """A node that is alive. id: Ray's node id. gpus, cpus: GPUs of type `gpu`, and CPU slots, that it offers to jobs.
    address, host: IP address and host name of its machine. spot: its owner may take it away."""

    id: str
    gpus: int
    address: str = ""
    cpus: int = 0
    gpu: str = ANY_GPU
    host: str = ""
    spot: bool = False

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> NodeInfo:
        """Build from Ray's entry for the node."""
        resources, labels = entry["Resources"], entry["Labels"]
        return cls(
            entry["NodeID"],
            int(resources.get("GPU", 0)),
            entry["NodeManagerAddress"],
            int(resources.get("CPU", 0)),
            gpu_type_of(entry),
            entry["NodeManagerHostname"],
            labels.get(MARKET_LABEL) == "spot",
        )

    @property
    def offered(self) -> Node:
        """The node as policies see it."""
        return Node(self.gpus, self.cpus, self.gpu)


@dataclass
class _Call:
    """A call waiting for its answer. job: job of the controller. number: number of the call over all controllers; each
    controller handles its calls in order. first: when the call was made [s, monotonic]. since: start of the wait that
    counts towards the heartbeat timeout [s, monotonic]."""

    job: str
    number: int
    first: float
    since: float


@dataclass
class _Ending:
    """A controller that is ending. stopping: None if it was not asked to stop. answer: pending answer to `stop`, or to
    the kill if `killed`; None if there is nothing to wait for. by: when it is killed in any case, or is given up if
    `killed` [s, monotonic]. reason: why it had to end."""

    handle: Any
    stopping: Stopping | None
    answer: Any
    by: float
    reason: str = ""
    killed: bool = False


@dataclass
class RayBackend:
    """Controllers of one session on the Ray cluster that this process is connected to.

    period: time between two report requests to the same controller [s]. heartbeat_timeout: time after which a
    controller that leaves a call unanswered is killed, and then replaced by the scheduler [s]; before its first answer,
    the start timeout applies. notice_file: file that announces the end of a node, from `RaySettings`. announced:
    draining nodes at the last call of `nodes`, by id, with the time they leave [s of `time.time`], or 0 if soon.
    silent, cut_off: as in `NodeHealth`. join: command that joins another machine; empty if none can. shown: filter of
    the nodes that are alive. Default: all count.
    """

    session: str
    period: float = 0.2
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT_S
    notice_file: str = ""
    announced: Mapping[str, float] = field(default_factory=dict)
    silent: Mapping[str, float] = field(default_factory=dict)
    cut_off: float = 0.0
    join: str = ""
    shown: Callable[[list[NodeInfo]], list[NodeInfo]] | None = None
    _health: NodeHealth = field(default_factory=NodeHealth)
    _handles: dict[str, Any] = field(default_factory=dict)
    _heard: set[str] = field(default_factory=set)
    _asked: dict[Any, _Call] = field(default_factory=dict)
    _asked_at: dict[str, float] = field(default_factory=dict)
    _ending: dict[str, _Ending] = field(default_factory=dict)
    _gone: dict[str, str] = field(default_factory=dict)
    _newest: dict[str, int] = field(default_factory=dict)
    _calls: int = 0

    def nodes(self) -> list[NodeInfo]:
        """Return the nodes with GPUs that are alive, neither draining nor silent, in a stable order.

        Jobs leave a draining node before it is gone.
        """
        import ray

        from rlpto.ray_cluster.compat import draining_nodes

        alive, head = alive_nodes(), str(ray.get_runtime_context().gcs_address)
        self._health.look(alive)
        self.silent, self.cut_off = self._health.silent, self._health.cut_off
        mode = os.environ.get(AUTH_MODE)
        self.join = f"{f'{AUTH_MODE}={mode} ' if mode else ''}ray start --address {head}" * (LOOPBACK not in head)
        self.announced = {node: at / 1000 for node, at in draining_nodes().items()}
        away = self.announced.keys() | self.silent.keys()
        found = [NodeInfo.of(entry) for entry in alive if entry["NodeID"] not in away]
        found = sorted((node for node in found if node.gpus), key=lambda node: (node.address, node.id))
        found = found if self.shown is None else self.shown(found)
        for node in found if self.notice_file else ():
            watch_node(node.id, self.notice_file)
        return found

    def drain(self, node: str, seconds: float) -> str:
        """Announce to Ray that a node leaves in `seconds`. Returns the reason if Ray refuses, else an empty string."""
        import ray

        from rlpto.ray_cluster.compat import drain_node

        try:
            return drain_node(ray.get_runtime_context().gcs_address, node, seconds)
        except Exception as error:  # Ray has no common type for them
            return f"Ray cannot drain the node: {error}"

    def request(self, gpus: int) -> None:
        """Request this number of GPUs in total from Ray's autoscaler. Without an autoscaler, nothing happens."""
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=[{"GPU": 1}] * gpus)

    def find(self) -> set[str]:
        """Find controllers of this session by their names, and return their jobs. Their reports follow."""
        self._handles = find_controllers(self.session)
        self._heard = set(self._handles)
        return set(self._handles)

    def start(self, spec: JobSpec, resume: bool) -> None:
        """Start a job's controller on the head, or on a node without GPUs.

        resume: continue from the job's newest checkpoint.
        """
        from rlpto.ray_cluster.job.controller import start_controller

        self._handles[spec.id] = start_controller(spec, control_node(), resume)
        self._heard.discard(spec.id)

    def command(self, command: Command) -> None:
        """Send a controller a command; its answer arrives as a report."""
        handle = self._handles.get(command.job)
        if handle is not None:
            self._ask(command.job, handle.command.remote(command.generation, command.plan))

    def _ask(self, job: str, answer: Any) -> None:
        now = time.monotonic()
        self._calls += 1
        self._asked[answer] = _Call(job, self._calls, now, now)

    def reports(self, timeout: float) -> list[JobReport]:
        """Request a report from every controller not asked within `period`, and return the reports that have arrived.

        The reports of a job come in order. Waits at most `timeout` s for the first one.
        """
        import ray

        now = time.monotonic()
        waiting = {call.job for call in self._asked.values()}
        for job, handle in self._handles.items():
            if job not in waiting and now - self._asked_at.get(job, -self.period) >= self.period:
                self._ask(job, handle.report.remote())
                self._asked_at[job] = now
        if not self._asked:
            time.sleep(timeout)
            self._see_to_endings()
            return []
        ready, _ = ray.wait(list(self._asked), num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        heard = [self._answer(answer) for answer in ready]
        self._end_silent()
        self._see_to_endings()
        return [report for report in heard if report is not None]

    def _answer(self, answer: Any) -> JobReport | None:
        """Return a controller's answer; None if it cannot answer now, or never will, or if the answer to a later call
        has arrived before."""
        import ray
        from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError

        if (call := self._asked.pop(answer, None)) is None:
            return None  # its controller was killed over an answer of the same round
        job = call.job
        try:
            report = ray.get(answer)
        except ActorUnavailableError:
            return None  # it is being restarted
        except ActorUnschedulableError:
            # Its node is gone: Ray would wait for it for ever.
            self._kill(job, "its node is gone")
            return None
        except RayActorError as error:
            if job in self._handles and not controller_exists(self.session, job):
                del self._handles[job]
                self._gone[job] = f"it has died: {reason_of(error)}"
            return None
        self._heard.add(job)
        if not isinstance(report, JobReport) or call.number < self._newest.get(job, 0):
            return None
        self._newest[job] = call.number
        return report

    def _end_silent(self) -> None:
        """Kill controllers that have left a call unanswered for too long. Controllers being (re)started get more time:
        on a busy machine, imports take long."""
        now = time.monotonic()
        for call in [call for call in self._asked.values() if now - call.since > self.heartbeat_timeout]:
            handle = self._handles.get(call.job)
            if handle is None:
                continue
            alive = is_alive(handle)
            if not alive:
                self._heard.discard(call.job)
            if alive and call.job in self._heard:
                self._kill(call.job, f"it left a call unanswered for {now - call.first:.0f} s")
            elif now - call.first > START_TIMEOUT_S:
                self._kill(call.job, f"it did not start within {now - call.first:.0f} s")
            else:
                call.since = now

    def _kill(self, job: str, reason: str) -> None:
        """Kill a controller; `gone` will include it."""
        handle = self._handles.pop(job, None)
        if handle is not None:
            self._ending[job] = _Ending(handle, None, None, 0.0, reason)
        self._asked = {answer: call for answer, call in self._asked.items() if call.job != job}

    def end(self, job: str) -> None:
        """Let a controller write a checkpoint, release everything, and end. `gone` will include it."""
        handle = self._handles.pop(job, None)
        if handle is not None:
            stopping = Stopping(handle)
            self._ending[job] = _Ending(handle, stopping, stopping.answer, math.inf)
        elif job not in self._ending:
            self._gone[job] = ""

    def _see_to_endings(self) -> None:
        """Remove controllers that have ended, and kill overdue ones. They are gone once their names are free."""
        import ray

        for job, ending in list(self._ending.items()):
            now = time.monotonic()
            answered = ending.answer is None or bool(ray.wait([ending.answer], timeout=0)[0])
            if answered and not ending.killed:
                # It now ends by itself; Ray would report a kill meanwhile as a fault, at length.
                ending.by = min(ending.by, now + KILL_TIMEOUT_S)
            overdue = ending.stopping is not None and not answered and ending.stopping.overdue()
            if not ending.killed and (overdue or now >= ending.by):
                ending.killed, ending.by = True, now + KILL_TIMEOUT_S
                ending.answer = kill_controller(ending.handle)
                answered = ending.answer is None
            given_up = ending.killed and now >= ending.by
            if given_up or (answered and not controller_exists(self.session, job)):
                del self._ending[job]
                self._gone[job] = ending.reason

    def gone(self) -> dict[str, str]:
        """Return jobs whose controller has gone since the last call, with the reason, empty if it was asked to end."""
        gone, self._gone = self._gone, {}
        for job in gone:
            self._newest.pop(job, None)
        return gone

    def end_all(self) -> None:
        """End all controllers, and wait until they have ended."""
        for job in list(self._handles):
            self.end(job)
        while self._ending:
            self._see_to_endings()
            time.sleep(0.02)
