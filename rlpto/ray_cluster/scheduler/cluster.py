"""A cluster in real time, as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from rlpto.arrays import FloatArray, IntArray
from rlpto.cluster import Allocation, ClusterShape, ClusterState, Node, Progress
from rlpto.errors import ClusterError, JobError, RlptoError
from rlpto.jobs import EstimateNoise, Job, JobTable
from rlpto.performance.tables import SpeedTables
from rlpto.ray_cluster.messages import JobReport, JobSpec
from rlpto.ray_cluster.scheduler.backend import Backend
from rlpto.ray_cluster.scheduler.clock import Clock
from rlpto.ray_cluster.scheduler.command_log import Conductor
from rlpto.ray_cluster.scheduler.events import last_line, note_events
from rlpto.ray_cluster.scheduler.gpu_claims import Nodes
from rlpto.ray_cluster.scheduler.job_columns import Accounts
from rlpto.ray_cluster.scheduler.online_estimates import Beliefs
from rlpto.ray_cluster.scheduler.placement import place
from rlpto.ray_cluster.scheduler.rules import Rules
from rlpto.ray_cluster.scheduler.schema import Decision
from rlpto.ray_cluster.scheduler.session_database import Store
from rlpto.ray_cluster.scheduler.workload import check_jobs_fit
from rlpto.records import AllocationChanges

WRITE_SECONDS = 1.0
"""How often what runners say is written to the books, and observers are told, if nothing happens in between."""
ATTACH_SECONDS = 5.0
"""Longest wait of a restarted scheduler for the first word of the runners it has found."""


class RayCluster:
    """Runs `jobs` on the nodes that `backend` finds; the same `Cluster` as the simulator's, in wall-clock time.

    jobs: sorted by submit time [s since the session's start]. specs: what the runner of each job needs, in the same
    order. tables: what policies are told about speed. books: what the session has come to so far; if they are not
    empty, the session goes on: its runners are taken over, and jobs whose runner is gone go on from their checkpoints.
    noise: errors of what policies are told, or None. beliefs: what policies are told instead of `tables`, learned from
    what jobs report; None: the tables.
    observers: called about once a second, and after every event and decision.

    held_gpus: those that the decision in force gives to jobs; some may still be on their way. active_jobs: submitted,
    and neither finished nor failed.

    Placement: whoever keeps GPUs keeps them where they are; others span few nodes. A job that is given fewer GPUs gives
    them up before another is told to take them (`rlpto.ray_cluster.scheduler.gpu_claims`).

    Raises ClusterError if no node has GPUs, JobError for a job that wants more than all nodes have together; later
    ClusterError if all nodes are gone for too long, JobError once all jobs have failed.
    """

    def __init__(
        self,
        backend: Backend,
        jobs: Sequence[Job],
        specs: Sequence[JobSpec],
        tables: SpeedTables,
        books: Store,
        rules: Rules,
        noise: EstimateNoise | None = None,
        observers: Iterable[Callable[[RayCluster], None]] = (),
        clock: Callable[[float | None, float], Clock] = Clock,
        beliefs: Beliefs | None = None,
    ) -> None:
        nodes = {node.id: node.gpus for node in backend.nodes()}
        check_jobs_fit(jobs, sum(nodes.values()))
        self.jobs = tuple(jobs)
        self.tables = tables
        self.books = books
        self.accounts = Accounts(jobs, tables)
        self.store = self.accounts.store
        self.reports: dict[str, JobReport] = {}
        self._backend = backend
        self._specs = {job.name: spec for job, spec in zip(jobs, specs, strict=True)}
        self._number = {job.name: i for i, job in enumerate(jobs)}
        self._conductor = Conductor(backend, books, self._specs, nodes)
        self._rules = rules
        self._noise = noise
        self.beliefs = beliefs
        if beliefs is not None:
            self.accounts.delay = beliefs.tables.rescale_delay
            self.store.told_type[:] = np.arange(len(self.store))  # what is believed of each job has a type of its own
        self._observers = tuple(observers)
        self._losses: dict[str, tuple[float, int]] = {}
        self._node_numbers: dict[str, int] = {}
        self._policy = ("", 0.0)
        self._written = -np.inf
        self._hopeless: RlptoError | None = None
        self.changed = True
        self.shape = ClusterShape()
        self.up_gpus = self.held_gpus = self.active_jobs = 0
        books.expect([(job.name, self._specs[job.name].to_json(), job.submit_time) for job in jobs])
        runners = backend.find()
        began, left = books.fact("began"), float(books.fact("beat") or 0.0)
        # While nobody trained no time passed: without runners the session goes on from where it was left.
        self._clock = clock(float(began), left) if began is not None and runners else clock(None, left)
        books.set_fact("began", repr(self._clock.began))
        self.time = self._gpus_seen = left
        for node, gpus in nodes.items():
            self._node_up(node, gpus)
        self._reopen(sorted(runners))

    # what the scheduler sees

    @property
    def done(self) -> bool:
        """True once every job has finished or failed, or the time limit is reached."""
        over = self._next == len(self.jobs) and not self.accounts.active.any()
        return over or self.time >= self._rules.limit

    @property
    def rescale_delay(self) -> FloatArray:
        """[M] seconds without progress that a change of each job's GPUs is expected to cost."""
        delay: FloatArray = self.tables.rescale_delay[self.store.type_index]
        return delay

    def state(self) -> ClusterState:
        """The table of active jobs as it stands now, in order of submission."""
        active = np.flatnonzero(self.accounts.active)
        return ClusterState(self.time, self.table_of(active), self.shape, self._rules.interval)

    def table_of(self, index: IntArray) -> JobTable:
        """The table of any jobs of the workload, finished ones too. Accuracies are measured ones where there are any."""
        told = self.tables if self.beliefs is None else self.beliefs.tables
        return JobTable(self.store, told, index, self.store.priority[index], self.shape.gpus_per_node, self._noise)

    def changes(self) -> AllocationChanges:
        """Every change of the GPUs that a job's runner has reported to hold, restarts of the scheduler included."""
        rows = self.books.changes()
        return AllocationChanges(
            time=np.array([row[0] for row in rows], dtype=np.float64),
            job=np.array([self._number[row[1]] for row in rows], dtype=np.int64),
            gpus=np.array([row[2] for row in rows], dtype=np.int64),
            accuracy=np.array([row[3] for row in rows], dtype=np.float64),
        )

    def nodes_of(self, job: str) -> Nodes:
        """Ray's node id of each GPU that the plan gives to a job."""
        return self._conductor.ledger.entry(job).planned

    # what the scheduler does

    def deciding(self, policy: str, latency: float) -> None:
        """Name of the policy whose allocation comes next, and the seconds it took, for the books."""
        self._policy = (policy, latency)

    def apply(self, state: ClusterState, allocation: Allocation) -> None:
        """Carry out an allocation that `rlpto.queues.Queue.admit` has let through for the present state.

        It is in the books before any runner is told. Those who give GPUs up are told now, those who take them as soon
        as there is room.
        """
        ledger = self._conductor.ledger
        names = [self.jobs[index].name for index in state.jobs.index.tolist()]
        present = {name: ledger.entry(name).planned for name in names}
        after = dict(zip(names, allocation.gpus.tolist(), strict=True))
        with self.books.together():
            placed = place(ledger.capacity, present, after)
            self._give({name: tuple(nodes) for name, nodes in placed.items()})
            self._count()
            policy, latency = self._policy
            self.books.decision(
                Decision(
                    time=self.time,
                    policy=policy,
                    latency=latency,
                    capacity=self.up_gpus,
                    held=self.held_gpus,
                    active=self.active_jobs,
                    waiting=sum(gpus == 0 for gpus in after.values()),
                    observation={name: len(nodes) for name, nodes in present.items()},
                    action=after,
                )
            )
        self._conductor.send_due(self.time)
        self._tell()

    def advance(self) -> Progress:
        """Wait until the next decision is due: at the end of the interval, or when something happens."""
        rules, start = self._rules, self.time
        due = rules.due(self.time)
        on_events = rules.decide_on == "events"
        self.changed = False
        while not self.done and self.time < due and not (self.changed and on_events):
            now = self._clock.now()
            ahead = [due - now, rules.poll, rules.limit - now]
            if on_events and self._next < len(self.jobs):
                ahead.append(self.jobs[self._next].submit_time - now)
            self._look(self._backend.reports(max(min(ahead), 0.0)), until=np.inf if on_events else due)
        progress = self.accounts.take(start, self.time)
        self.books.followed(
            progress.accuracy_gain.tolist(), progress.unfinished, progress.gpu_seconds, progress.rescale_seconds
        )
        return progress

    def close(self, keep: bool = False) -> None:
        """Leave the session. keep: its runners go on training; otherwise they write a checkpoint and end."""
        with self.books.together():
            self._write_all()
            self.books.event(self.time, "scheduler_left", detail="its runners go on" if keep else "")
        if not keep:
            self._backend.end_all()

    # looking at the cluster

    def _look(self, heard: Iterable[JobReport], until: float) -> None:
        """Take in everything that has happened since the last look.

        until: new jobs join only once it is that late; infinity: whenever they are submitted.
        """
        now = max(self._clock.now(), self.time)
        self.accounts.pass_time(now - self.time)
        self.time = now
        with self.books.together():
            self._look_at_nodes()
            for report in heard:
                self._hear(report)
            for job in self._backend.gone():
                self._runner_gone(job)
            if now >= until or until == np.inf:
                self._let_in()
            self._count()
            if self.changed or now >= self._written + WRITE_SECONDS:
                self._write_all()
        self._conductor.send_due(now)
        if self.beliefs is not None:
            self.beliefs.learn()
        if self._written == now:
            self._tell()
        if self._hopeless is not None:
            raise self._hopeless

    def _look_at_nodes(self) -> None:
        ledger = self._conductor.ledger
        alive = {node.id: node.gpus for node in self._backend.nodes()}
        if dead := [node for node in ledger.capacity if node not in alive]:
            self._nodes_down(dead)
        for node, gpus in alive.items():
            if node not in ledger.capacity:
                ledger.add_node(node, gpus)
                self._node_up(node, gpus)
                self.changed = True
        if self.up_gpus:
            self._gpus_seen = self.time
        elif self.active_jobs and self.time - self._gpus_seen > self._rules.without_gpus:
            self._hopeless = ClusterError(
                f"no node with GPUs has been alive for {self._rules.without_gpus:.0f} s while {self.active_jobs} jobs "
                "wait: expected one to come back"
            )

    def _node_up(self, node: str, gpus: int) -> None:
        number = self._node_numbers.setdefault(node, len(self._node_numbers))
        self._nodes_changed()
        self.books.node(node, number, gpus, True, self.time)
        self.books.event(self.time, "node_up", node=node, value=gpus)

    def _nodes_changed(self) -> None:
        """Take over which nodes are up. Capacity is the most that has been up at once: what is missing of it is down."""
        up = [Node(gpus) for gpus in self._conductor.ledger.capacity.values()]
        missing = self.shape.capacity - sum(node.gpus for node in up)
        largest = max([self.shape.gpus_per_node, *(node.gpus for node in up)], default=0)
        while missing > 0:
            up.append(Node(min(missing, largest), up=False))
            missing -= up[-1].gpus
        self.shape = ClusterShape(up)
        self.up_gpus = self.shape.up_gpus

    def _nodes_down(self, nodes: Sequence[str]) -> None:
        """Nodes are gone: their jobs go on with what is left, or wait if that is less than they need."""
        ledger = self._conductor.ledger
        for node in nodes:
            gpus = ledger.capacity.get(node, 0)
            self.books.node(node, self._node_numbers.get(node, -1), gpus, False, self.time)
            self.books.event(self.time, "node_down", node=node, value=gpus)
        left = ledger.remove_nodes(nodes)
        self._nodes_changed()
        fewest = self.store.min_gpus
        self._give({job: stay if len(stay) >= fewest[self._number[job]] else () for job, stay in left.items()})
        self.changed = True

    def _let_in(self) -> None:
        """Jobs that have been submitted by now."""
        while self._next < len(self.jobs) and self.jobs[self._next].submit_time <= self.time:
            name = self.jobs[self._next].name
            self.accounts.arrive(self._next)
            self.books.set_job(name, state="active")
            self.books.event(self.time, "submitted", name)
            self._next += 1
            self.changed = True

    def _hear(self, report: JobReport) -> None:
        """Take in what a runner says of its job."""
        job, number = report.name, self._number[report.name]
        before, ledger = self.reports.get(job), self._conductor.ledger
        if not ledger.reported(job, report.generation, report.applied, report.holding, report.time):
            return
        if not self.accounts.active[number]:  # it has ended, and lets go
            self._hold(number, report.holding)
            return
        self.reports[job] = report
        self.accounts.heard(number, report, settled=ledger.settled(job))
        if self.beliefs is not None:
            self.beliefs.heard(number, report)
        self._hold(number, report.holding)
        if before is None or report.applied > before.applied:
            self.books.applied(job, report.applied, self._clock.of(report.time))
        note_events(self.books, self._clock.of(report.time), before or JobReport(job), report)
        if report.ended:
            self._end(number, report)

    def _end(self, number: int, report: JobReport) -> None:
        """A job has finished, or will never."""
        job = self.jobs[number].name
        at = min(max(self._clock.of(report.time), self.jobs[number].submit_time), self.time)
        if report.state == "finished":
            self.accounts.finish(number, at)
            self.books.set_job(job, state="finished", finish_time=at)
        else:
            self.accounts.fail(number)
            self.books.set_job(job, state="failed", failure=report.failure)
        self._write(number, report)
        self.books.event(at, report.state, job, detail=report.failure if report.state == "failed" else "")
        self._conductor.end(job)
        self.changed = True
        if self.accounts.failed.all():
            # Raised once the books are closed on this look, so that they hold it.
            reason = last_line(report.failure)
            self._hopeless = JobError(f"all {len(self.jobs)} jobs have failed, the last one of: {reason}")

    def _runner_gone(self, job: str) -> None:
        """A runner does not exist any more, and with it its workers: as it was told, or by a fault."""
        planned = self._conductor.gone(job)
        number = self._number.get(job)
        if number is None:
            return
        self._hold(number, ())
        if not self.accounts.active[number]:
            return
        progress, losses = self._losses.get(job, (-1.0, 0))
        known = float(self.store.progress[number])
        losses = 1 if known > progress else losses + 1
        self._losses[job] = (known, losses)
        self.reports.pop(job, None)
        self.books.event(self.time, "runner_lost", job, value=losses)
        if losses > self._specs[job].retries:
            self._end(number, JobReport(job, state="failed", failure=f"its runner was lost {losses} times in a row"))
        else:
            self._conductor.plan({job: planned}, self.time)

    # what follows

    def _count(self) -> None:
        """GPUs and jobs as they stand now."""
        self.held_gpus = int(self.store.gpus.sum())
        self.active_jobs = int(np.count_nonzero(self.accounts.active))

    def _give(self, targets: dict[str, Nodes]) -> None:
        """Plan where jobs are to be from now on, and count it as a change of what they have."""
        self._conductor.plan(targets, self.time)
        for job, nodes in targets.items():
            number = self._number[job]
            if self.accounts.give(number, len(nodes), self.time):
                self.books.set_job(job, rescales=int(self.store.rescales[number]))

    def _hold(self, number: int, holding: Nodes) -> None:
        """Note what a job's runner says it holds, if that is news."""
        if not self.accounts.hold(number, len(holding), self.time):
            return
        name = self.jobs[number].name
        self.books.change(self.time, name, len(holding), self.accounts.accuracy_of(number), holding)
        self.books.set_job(name, start_time=_or_null(float(self.store.start_time[number])))

    def _write_all(self) -> None:
        """Bring the books up to date."""
        for number in np.flatnonzero(self.accounts.active).tolist():
            report = self.reports.get(self.jobs[number].name)
            if report is not None:
                self._write(number, report)
        self.books.set_fact("beat", repr(self.time))
        self._written = self.time

    def _write(self, number: int, report: JobReport) -> None:
        served = float(self.store.attained_service[number])
        self.books.note_report(report, served, int(self.store.peak_gpus[number]))

    def _tell(self) -> None:
        for observer in self._observers:
            observer(self)

    def _reopen(self, runners: Sequence[str]) -> None:
        """Take over what the books and the runners say, and look at the cluster for the first time."""
        rows, held = self.books.jobs(), self.books.held()
        for number, row in enumerate(rows):
            self.accounts.restore(number, row, held.get(row.name, 0))
        self._next = sum(row.state != "expected" for row in rows)
        left, at = self.time, self._clock.now()
        found = self._conductor.reopen(runners)
        for job in found.lost:
            self._hold(self._number[job], ())
            self.books.event(left, "runner_lost", job)
        planned = {job: entry.planned for job, entry in self._conductor.ledger.entries.items()}
        for job, nodes in planned.items():
            self.accounts.give_again(self._number[job], len(nodes))
        gone = {node for nodes in planned.values() for node in nodes} - self._conductor.ledger.capacity.keys()
        if gone:
            self._nodes_down(sorted(gone))
        heard = self._first_words(set(found.adopted))
        self._look(heard, until=np.inf if self._rules.decide_on == "events" else self._rules.due(self.time))
        if rows and any(row.state != "expected" for row in rows):
            self.books.event(
                self.time, "scheduler_returned", value=self._clock.now() - at, detail=f"left at {left:.3f}"
            )

    def _first_words(self, adopted: set[str]) -> list[JobReport]:
        """A report of every runner that was taken over, as far as they answer in time."""
        heard: dict[str, JobReport] = {}
        by = self._clock.now() + ATTACH_SECONDS
        while adopted - heard.keys() and self._clock.now() < by:
            heard.update({report.name: report for report in self._backend.reports(0.05)})
        return list(heard.values())


def _or_null(value: float) -> float | None:
    return None if np.isnan(value) else value
