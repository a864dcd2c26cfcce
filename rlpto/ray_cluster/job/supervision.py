"""Supervision of one job's workers: which ones train, start or leave, which have failed or hang, and when to retry."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from rlpto.ray_cluster.health import is_cut_off
from rlpto.ray_cluster.job import worker_actors
from rlpto.ray_cluster.job.worker_actors import Worker, WorkerLostError, result_of, settle
from rlpto.ray_cluster.messages import JobSpec, Nodes
from rlpto.ray_cluster.worker.actor import Failure, Ready, WorkerHeartbeat

JOIN_WAIT_S = 5.0
"""Longest time that a warm worker waits for others that are still starting."""

STARTUP_HEARTBEAT_TIMEOUTS = 4.0
"""Heartbeat timeouts for which a starting worker may be silent, because imports often keep it from answering."""

FAULT_GATHER_S = 0.5
"""Time for the other workers to notice a fault too, before they are aborted."""

HEARTBEAT_INTERVAL_S = 0.5
"""Time between heartbeats asked of workers that are silent."""

CUT_OFF_S = 60.0
"""Time for which silent workers are not given up after no other machine has answered. By then Ray has declared the
nodes dead, or all connections carry data again."""


class FaultError(Exception):
    """A fault in the group. lost: workers that are gone or hang, with the reason. failures: exceptions of other
    workers. unreached: reasons of calls that the network has lost; their workers may be well."""

    def __init__(self, lost: dict[Worker, str], failures: Iterable[Failure], unreached: Sequence[str] = ()) -> None:
        self.lost, self.failures, self.unreached = lost, list(failures), unreached
        super().__init__(self.text)

    @property
    def missed(self) -> list[str]:
        """Reasons why workers did not answer."""
        return [*self.lost.values(), *self.unreached]

    @property
    def text(self) -> str:
        """The reason why a worker did not answer, else the first exception, as later ones only follow from it."""
        if self.missed:
            return self.missed[0]
        return min(self.failures, key=lambda failure: failure.when).text


async def collect(workers: Sequence[Worker], calls: Sequence[Any], heartbeat: float, limit: float) -> list[Any]:
    """Wait for the results of one call to each worker.

    heartbeat: time after which a silent worker is given up [s], unless no other machine answers. limit: time after
    which a responding worker without progress is given up [s]. Raises FaultError if a worker is lost, hangs or raised.
    """
    tasks = [asyncio.ensure_future(result_of(call)) for call in calls]
    heartbeats: asyncio.Task[list[Any]] | None = None
    apart: asyncio.Task[bool] | None = None
    pending, fault_at, asked_at, patient_until = set(tasks), float("inf"), 0.0, 0.0
    hung: dict[Worker, str] = {}
    try:
        while pending and not hung and time.monotonic() - fault_at < FAULT_GATHER_S:
            done, pending = await asyncio.wait(
                pending, timeout=HEARTBEAT_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
            )
            if any(task.exception() is not None or isinstance(task.result(), Failure) for task in done):
                fault_at = min(fault_at, time.monotonic())
            if heartbeats is not None and heartbeats.done():
                hung = hanging(workers, heartbeats.result(), limit)
                heartbeats = None
                if apart is not None and apart.done() and apart.exception() is None and apart.result():
                    patient_until = time.monotonic() + CUT_OFF_S
                apart = None
                if time.monotonic() < patient_until:
                    hung = {}  # they may still train; once Ray declares their nodes dead, the calls fail
            elif heartbeats is not None and apart is None and time.monotonic() - asked_at > heartbeat / 2:
                apart = asyncio.ensure_future(asyncio.to_thread(is_cut_off))
            if not done and heartbeats is None:
                asked = (result_of(worker.handle.heartbeat.remote(), heartbeat) for worker in workers)
                heartbeats, asked_at = asyncio.ensure_future(settle(asked)), time.monotonic()
    finally:
        for task in filter(None, [*pending, heartbeats, apart]):
            task.cancel()
    ended = [(worker, task) for worker, task in zip(workers, tasks, strict=True) if task not in pending]
    errors = {worker: task.exception() for worker, task in ended if task.exception() is not None}
    lost = {worker: str(error) for worker, error in errors.items() if not _is_unreached(error)}
    results = [task.result() for _, task in ended if task.exception() is None]
    failures = [result for result in results if isinstance(result, Failure)]
    if pending or errors or failures:
        raise FaultError(lost | hung, failures, [str(error) for error in errors.values() if _is_unreached(error)])
    return results


def _is_unreached(error: object) -> bool:
    return isinstance(error, WorkerLostError) and error.unreached


def hanging(
    workers: Sequence[Worker], heartbeats: Sequence[WorkerHeartbeat | BaseException], limit: float
) -> dict[Worker, str]:
    """Return workers to give up, with reasons: silent workers; else, if no busy worker made progress for `limit`
    seconds, the workers for which others wait, or all busy ones if these are unknown."""
    pairs = list(zip(workers, heartbeats, strict=True))
    answers = [(worker, heartbeat) for worker, heartbeat in pairs if isinstance(heartbeat, WorkerHeartbeat)]
    if len(answers) < len(workers):
        silent = [(w, error) for w, error in pairs if not (isinstance(error, WorkerHeartbeat) or _is_unreached(error))]
        return {worker: f"the worker on node {worker.node[:8]} does not answer: {error}" for worker, error in silent}
    busy = [(worker, heartbeat) for worker, heartbeat in answers if heartbeat.busy]
    if not busy or any(heartbeat.stalled <= limit for _, heartbeat in busy):
        return {}
    guilty = [worker for worker, heartbeat in busy if heartbeat.phase == "own"] or [worker for worker, _ in busy]
    return {worker: f"the worker on node {worker.node[:8]} hangs: no step within {limit:.1f} s" for worker in guilty}


async def prepared(worker: Worker, heartbeat: float) -> Ready | Failure | WorkerLostError:
    """Prepare a worker, without a time limit as long as it responds. Returns the failure if it does not get ready.

    heartbeat: time after which a silent worker is given up [s].
    """
    try:
        # Its process id comes first, because it may have to be killed if it stops in the middle.
        worker.pid = (await result_of(worker.handle.heartbeat.remote())).pid
        (ready,) = await collect([worker], [worker.handle.prepare.remote()], heartbeat, math.inf)
    except WorkerLostError as lost:
        return lost
    except FaultError as fault:
        return fault.failures[0] if fault.failures else WorkerLostError(fault.text)
    said: Ready = ready
    return said


class WorkerRoster:
    """Workers of one job. changed: called when a released worker is gone.

    training: workers of the present group by rank. starting: requested workers that are not yet in a group. leaving:
    released workers, with the task that waits for their end.
    """

    def __init__(self, spec: JobSpec, changed: Callable[[], None]) -> None:
        self._spec, self._changed = spec, changed
        self.training: list[Worker] = []
        self.starting: list[Worker] = []
        self.leaving: dict[Worker, asyncio.Task[None]] = {}

    @property
    def holding(self) -> Nodes:
        """Node of each worker that may have a GPU, including leaving ones until they are gone."""
        return tuple(worker.node for worker in [*self.training, *self.starting, *self.leaving])

    @property
    def training_on(self) -> Nodes:
        """Node of each worker that trains."""
        return tuple(worker.node for worker in self.training)

    def misplaced(self, nodes: Iterable[str]) -> list[Worker]:
        """Workers without a place on `nodes` (one entry per worker); training workers have precedence."""
        _, without, _ = worker_actors.matched([*self.training, *self.starting], nodes)
        return without

    def start_missing(self, nodes: Iterable[str]) -> None:
        """Start missing workers. No node gets more than in `nodes`, including leaving workers."""
        *_, missing = worker_actors.matched([*self.training, *self.starting, *self.leaving], nodes)
        for node in missing:
            worker = worker_actors.start_worker(self._spec, node)
            worker.preparing = asyncio.ensure_future(
                prepared(worker, STARTUP_HEARTBEAT_TIMEOUTS * self._spec.faults.heartbeat_timeout)
            )
            self.starting.append(worker)

    def failed_starts(self) -> list[tuple[Worker, Failure | WorkerLostError]]:
        """Mark workers that are warm now. Returns and releases workers that failed, with reasons."""
        failed: list[tuple[Worker, Failure | WorkerLostError]] = []
        for worker in [worker for worker in self.starting if worker.ready is None and worker.preparing.done()]:
            said = worker.preparing.result()
            if isinstance(said, Ready):
                worker.ready, worker.warm_since = said, time.monotonic()
            else:
                failed.append((worker, said))
                self.release(worker)
        return failed

    def ready_to_join(self) -> list[Worker]:
        """Workers to take in now: all warm ones, once none is starting or they have waited long enough."""
        warm = [worker for worker in self.starting if worker.ready is not None]
        if not warm:
            return []
        waited = time.monotonic() - min(worker.warm_since for worker in warm)
        return warm if len(warm) == len(self.starting) or waited > JOIN_WAIT_S else []

    def add_to_group(self, arrived: list[Worker]) -> None:
        """Add new workers to the group, ranked after the present ones."""
        self.starting = [worker for worker in self.starting if worker not in arrived]
        self.training = [*self.training, *arrived]

    def release(self, worker: Worker) -> None:
        """End a worker in the background. It counts as holding its GPU until it is gone."""
        for group in (self.training, self.starting):
            if worker in group:
                group.remove(worker)

        async def leave() -> None:
            await worker_actors.release(worker)
            del self.leaving[worker]
            self._changed()

        self.leaving[worker] = asyncio.ensure_future(leave())

    async def released(self) -> None:
        """Wait until all released workers are gone."""
        if self.leaving:
            await asyncio.wait(self.leaving.values())


NODE_GONE_RETRY_S = 2.0
"""Time between attempts to start a worker on a node that is gone."""

FailureKind = Literal["raised", "died", "start"]
"""raised: training code raised. died: a worker or server that took part is gone or hangs. start: a worker or server did
not come up."""


class RetryPolicy:
    """Failures of one job since it last made progress. gave_up: it keeps its workers and starts no others.

    The definition of progress depends on the failure. Code that raised must pass the step at which it did. The death of
    a worker is not evidence against the code, so any later step counts, even if the job has gone back by more. Failed
    starts count until all workers train, because workers already training do not make a start more likely.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._must_pass = -1
        self._progress = False
        self.reset()

    def reset(self) -> None:
        """Reset the count of failures, for a new command."""
        self._count, self._start_after, self.gave_up = 0, 0.0, False

    def may_start_workers(self) -> bool:
        """True if workers may be started now."""
        return not self.gave_up and time.monotonic() >= self._start_after

    def node_gone(self) -> None:
        """Delay the next start because a node is gone; this does not count as a failure of the job."""
        self._start_after = time.monotonic() + NODE_GONE_RETRY_S

    def failed(self, kind: FailureKind, step: int, lasting: bool, trains: bool) -> bool:
        """Count a failure at `step`. lasting: whether a retry would fail too. trains: whether some workers still train.

        Returns whether the job has failed.
        """
        if kind != "start":
            if self._progress:
                self._count, self.gave_up = 0, False
            self._must_pass, self._progress = step if kind == "raised" else -1, False
        self._count += 1
        if lasting or self._count > self._spec.faults.retries:
            self.gave_up = trains
            return not trains
        if self._count > 1 or not trains:
            self._start_after = time.monotonic() + self._spec.faults.backoff * 2 ** (self._count - 1)
        return False

    def stepped(self, step: int, whole: bool) -> None:
        """Record a completed step. whole: whether all of the job's planned workers took part."""
        if step > self._must_pass:
            self._progress = True
            if whole:
                self._count = 0
