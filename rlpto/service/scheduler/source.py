"""Jobs and requests from the database as a source for a cluster (`rlpto.ray_cluster.scheduler.cluster.JobSource`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from rlpto.core.jobs import PRIORITY_CLASSES, Job
from rlpto.io.errors import JobError, RlptoError
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.scheduler.job_tracker import JobTracker
from rlpto.ray_cluster.scheduler.session_rules import Clock
from rlpto.service.scheduler.catalogue import Catalogue
from rlpto.service.scheduler.session import Environment
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import JobRow, State, change_job, get_job, jobs_to_take_in, out_of_time, still_expected
from rlpto.store.requests import Request, answer, ask, open_requests
from rlpto.store.status import is_drained, set_drained

MOST_AT_ONCE = 1000
"""Most submitted jobs examined at once."""


class JobQueueSource:
    """Source of users' submissions and requests in the database.

    given: ids of jobs that the cluster has already. clock: clock of the cluster. since: submit time of its last job.
    arrived: called with jobs handed to the cluster. can_switch: whether the policy of a name is ready to decide.

    leaving: unanswered requests to drain nodes. drained: whether jobs are kept from starting. closed: whether nothing
    more is taken from the database.
    """

    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        given: Iterable[str],
        environment: Environment,
        clock: Clock,
        since: float,
        arrived: Callable[[list[Job]], None],
        can_switch: Callable[[str], bool],
    ) -> None:
        self._store, self._catalogue = store, catalogue
        self._given, self._wall, self._clock = set(given), environment.wall, clock
        self._stopping, self._arrived, self._can_switch = environment.stopping, arrived, can_switch
        self._latest = since
        self._ordered: set[int] = set()
        self._switches: deque[Request] = deque()
        self.leaving: deque[Request] = deque()
        self.closed = False
        self.drained = is_drained(store)

    def poll(self) -> list[tuple[Job, JobSpec]]:
        """Return jobs that may run from now on. Invalid jobs are rejected; others wait until their program has been
        checked."""
        if self.closed:
            return []
        rows, jobs = jobs_to_take_in(self._store, MOST_AT_ONCE), []
        new = [row for row in rows if row.id not in self._given]
        self._given = still_expected(self._store, self._given)
        for row in new:
            problem = self._unmet(row) or self._catalogue.problem(row)
            if problem is None:
                if row.state == "submitted":
                    self._set(row, "checking", "its program is being checked")
                continue
            # The machine's clock may have been changed since.
            submitted = max(self._latest, min(self._clock.of(row.submitted), self._clock.now()))
            try:
                if problem:
                    raise JobError(problem)
                job = self._catalogue.job(row, submitted)
                self._catalogue.check(job)
                jobs.append((job, self._catalogue.spec(row)))
            except RlptoError as wrong:
                self._set(row, "rejected", str(wrong))
            else:
                self._latest = submitted
                self._given.add(row.id)
        self._arrived([job for job, _ in jobs])
        return jobs

    def _unmet(self, row: JobRow) -> str:
        """Name a preceding job that has ended without finishing, all having ended; empty if there is none."""
        for job in row.after:
            found = get_job(self._store, job)
            state = "removed" if found is None else found.state
            if state != "finished":
                return f"it comes after job {job}, which is {state}"
        return ""

    def _set(self, row: JobRow, state: State, reason: str) -> None:
        at = self._wall()
        over = {"ended": at} if state in ("rejected", "cancelled") else {}
        with self._store.transaction():
            change_job(self._store, row.id, at, state=state, reason=reason, **over)
            add_event(self._store, "job", at, row.id, row.owner, {"state": state, "reason": reason})

    def switches(self) -> Iterator[Request]:
        """Take requests to switch to a policy that is ready to decide, in order."""
        while self._switches:
            yield self._switches.popleft()

    def direct(self, tracker: JobTracker) -> None:
        """Carry out new orders from requests and time limits on the jobs. After any of them a decision is due."""
        if self.closed:
            return
        # By the session's clock, which starts are recorded by; the machine's clock may have been changed since.
        for job in out_of_time(self._store, self._clock.began + self._clock.now()):
            ask(self._store, "cancel", "its time limit", self._wall(), job)
        tracker.changed |= self._stopping()
        waits, requests = False, open_requests(self._store)
        self._ordered.intersection_update(request.seq for request in requests)
        for request in requests:
            if request.kind == "policy":  # switches are handled in order, each once its policy is ready
                waits = waits or not self._can_switch(str(request.body.get("policy", "")))
                if waits:
                    continue
            if request.seq not in self._ordered and self._carry_out(request, tracker):
                self._ordered.add(request.seq)
                tracker.changed = True

    def _carry_out(self, request: Request, tracker: JobTracker) -> bool:
        """Carry out a request; False if it is in vain, or needs no decision. Most are answered here; a job to cancel
        answers once it has ended."""
        if request.kind in ("policy", "leave"):
            (self._switches if request.kind == "policy" else self.leaving).append(request)
            return True
        if request.kind == "drain":
            self._drain(request)
            return True
        row = None if request.job is None else get_job(self._store, request.job)
        if row is None or row.is_over:
            answer(self._store, request.seq, self._wall(), "it has ended" if row else "there is no such job")
            return False
        if request.kind == "hold":
            answer(self._store, request.seq, self._wall())
            return True
        if request.kind == "priority":
            priority = PRIORITY_CLASSES.index(str(request.body["priority"]))
            answer(self._store, request.seq, self._wall())
            tracker.set_priority(row.id, priority)
            return True
        if row.state in ("submitted", "checking") and row.id not in self._given:
            with self._store.transaction():
                self._set(row, "cancelled", f"cancelled by {request.by}")
                answer(self._store, request.seq, self._wall())
            return False
        tracker.cancel(row.id)
        return True

    def _drain(self, request: Request) -> None:
        self.drained, at = bool(request.body.get("on", True)), self._wall()
        with self._store.transaction():
            set_drained(self._store, self.drained)
            add_event(self._store, "drain", at, body={"on": self.drained})
            answer(self._store, request.seq, at)
