"""What the scheduler asks of Ray: nodes, job controllers, reports. Nothing here waits longer than asked."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlpto.ray_cluster.controllers import alive_nodes, control_node, controller_exists, find_controllers
from rlpto.ray_cluster.messages import JobReport, JobSpec
from rlpto.ray_cluster.scheduler.gpu_claims import Command

ENDING_SECONDS = 20.0
"""A controller that has not ended by itself after so long is ended."""


@dataclass(frozen=True)
class NodeInfo:
    """A node that is alive. id: Ray's. gpus: it offers to jobs. address: of its machine."""

    id: str
    gpus: int
    address: str = ""


class Backend(Protocol):
    """Where controllers live: Ray, or a test's idea of it."""

    def nodes(self) -> list[NodeInfo]:
        """Nodes with GPUs that are alive."""

    def find(self) -> set[str]:
        """Look for controllers of this session; returns their jobs. They answer from now on."""

    def start(self, spec: JobSpec, resume: bool) -> None:
        """Start a job's controller. resume: go on from its newest checkpoint."""

    def command(self, command: Command) -> None:
        """Tell a controller."""

    def reports(self, timeout: float) -> list[JobReport]:
        """What controllers have said since, after at most `timeout` s of waiting for the first."""

    def end(self, job: str) -> None:
        """Let a controller write a checkpoint, release everything, and end; it will be among `gone`."""

    def end_all(self) -> None:
        """End all controllers, and wait until they have."""

    def gone(self) -> set[str]:
        """Jobs whose controller has gone since this was last asked, as it was told to or not."""


@dataclass
class _Ending:
    """A controller that has been told to end. answer: to `stop`. by: when patience ends, on the monotonic clock."""

    handle: Any
    answer: Any
    by: float


@dataclass
class RayBackend:
    """Controllers of one session on the Ray cluster that this process is connected to.

    period: s between two questions to the same controller.
    """

    session: str
    period: float = 0.2
    _handles: dict[str, Any] = field(default_factory=dict)
    _asked: dict[Any, str] = field(default_factory=dict)
    _asked_at: dict[str, float] = field(default_factory=dict)
    _ending: dict[str, _Ending] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)

    def nodes(self) -> list[NodeInfo]:
        """Nodes with GPUs that are alive, in an order that stays."""
        found = [
            NodeInfo(entry["NodeID"], int(entry["Resources"].get("GPU", 0)), entry["NodeManagerAddress"])
            for entry in alive_nodes()
        ]
        return sorted((node for node in found if node.gpus), key=lambda node: (node.address, node.id))

    def find(self) -> set[str]:
        """Look for controllers of this session by their names."""
        self._handles = dict(find_controllers(self.session))
        return set(self._handles)

    def start(self, spec: JobSpec, resume: bool) -> None:
        """Start a job's controller on the head, or on a node without GPUs."""
        from rlpto.ray_cluster.job.controller import start_controller

        self._handles[spec.name] = start_controller(spec, control_node(), resume)

    def command(self, command: Command) -> None:
        """Tell a controller; its answer will be among the reports."""
        handle = self._handles.get(command.job)
        if handle is not None:
            self._asked[handle.command.remote(command.generation, command.nodes)] = command.job

    def reports(self, timeout: float) -> list[JobReport]:
        """Ask every controller that has not been asked lately, and take what answers there are."""
        import ray

        now = time.monotonic()
        waiting = set(self._asked.values())
        for job, handle in self._handles.items():
            if job not in waiting and now - self._asked_at.get(job, -self.period) >= self.period:
                self._asked[handle.report.remote()] = job
                self._asked_at[job] = now
        if not self._asked:
            time.sleep(timeout)
            self._see_to_endings()
            return []
        ready, _ = ray.wait(list(self._asked), num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        heard = [self._answer(answer) for answer in ready]
        self._see_to_endings()
        return [report for report in heard if report is not None]

    def _answer(self, answer: Any) -> JobReport | None:
        """A controller's answer; None if it cannot answer now, or never will."""
        import ray
        from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError

        job = self._asked.pop(answer)
        try:
            report = ray.get(answer)
        except ActorUnavailableError:
            return None  # it is being restarted
        except ActorUnschedulableError:
            # Its node is gone: Ray would wait for it for ever.
            if (handle := self._handles.pop(job, None)) is not None:
                ray.kill(handle, no_restart=True)
                self._gone.add(job)
            return None
        except RayActorError:
            if job in self._handles and not controller_exists(self.session, job):
                del self._handles[job]
                self._gone.add(job)
            return None
        return report if isinstance(report, JobReport) else None

    def end(self, job: str) -> None:
        """Tell a controller to end."""
        handle = self._handles.pop(job, None)
        if handle is None:
            self._gone.add(job)
        else:
            self._ending[job] = _Ending(handle, handle.stop.remote(), time.monotonic() + ENDING_SECONDS)

    def _see_to_endings(self) -> None:
        """Remove controllers that have ended, or should have."""
        import ray

        for job, ending in list(self._ending.items()):
            ready, _ = ray.wait([ending.answer], timeout=0)
            if ready or time.monotonic() >= ending.by:
                ray.kill(ending.handle, no_restart=True)
                del self._ending[job]
                self._gone.add(job)

    def gone(self) -> set[str]:
        """Jobs whose controller has gone since this was last asked."""
        gone, self._gone = self._gone, set()
        return gone

    def end_all(self) -> None:
        """End all controllers, and wait until they have."""
        for job in list(self._handles):
            self.end(job)
        while self._ending:
            self._see_to_endings()
            time.sleep(0.02)
