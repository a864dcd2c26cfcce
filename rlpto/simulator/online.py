"""Simulated jobs that know themselves: each knows nothing of its speed at first, and fits what it observes.

The truth is a row of speeds for each job, rewritten whenever its batch may have changed; what policies are shown are
speed tables in which every active job is a type of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlpto.core.job_store import JobStore
from rlpto.core.jobs import Job
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.knowledge.beliefs import ThroughputBelief, choose, choose_again, follow_choices
from rlpto.knowledge.job_types import COPIED, with_job_types
from rlpto.performance.efficiency import BatchPerformance
from rlpto.performance.metrics import METRICS
from rlpto.performance.profiles import BatchPerformanceSource
from rlpto.performance.tables import JobType, SpeedTables, elapsed_from_rates

ROWS_PER_JOB = 2
"""Speeds of the present placement, and of the one that new workers are starting for."""
STAGES = 8
"""Parts of what a job has left, in each of which it is expected to see other gradient statistics."""
FIRST_SLOTS = 32
"""Active jobs that the shown tables have room for at first; twice as many whenever they run out."""


@dataclass
class _Running:
    """How a job trains: number of its kind of GPU, facts of its placement, [P] candidate it takes in each epoch, and
    how far it had observed."""

    kind: int
    placement: tuple[int, ...]
    facts: BatchPerformance
    choices: IntArray
    observed_progress: float


def _epoch_of(running: _Running) -> int:
    """The epoch in which a job was last seen to train; at its end, that one."""
    return max(min(int(np.ceil(running.observed_progress)), len(running.choices)) - 1, 0)


def group_sizes(nodes: IntArray) -> tuple[int, ...]:
    """GPUs on each node of a job that has its GPUs on `nodes`, those of one node together."""
    starts = np.flatnonzero(np.diff(nodes, prepend=-1))
    return tuple(np.diff(starts, append=len(nodes)).tolist())


def with_own_rows(tables: SpeedTables, jobs: int) -> SpeedTables:
    """The tables with rows at their end that jobs may write: number `ROWS_PER_JOB` x j from there on are job j's."""
    rates = np.concatenate([tables.rates, np.ones((ROWS_PER_JOB * jobs, tables.rates.shape[1]))])
    return replace(tables, rates=rates, elapsed=elapsed_from_rates(rates))


class FactsCache:
    """Facts of batches, kept: a placement comes back often, in every run of an experiment."""

    def __init__(self, source: BatchPerformanceSource) -> None:
        self.source = source
        self._facts: dict[tuple[JobType, tuple[int, ...], str], BatchPerformance] = {}

    def __call__(self, job_type: JobType, placement: tuple[int, ...], gpu: str) -> BatchPerformance:
        """See `BatchPerformanceSource.batch_performance`."""
        key = (job_type, placement, gpu)
        if key not in self._facts:
            self._facts[key] = self.source.batch_performance(job_type, placement, gpu)
        return self._facts[key]


class OnlineJobs:
    """Beliefs of all jobs of a simulated cluster.

    jobs: as in the store. truth: speed tables of the workload. shared: jobs of a type share one fit and what they have
    seen. change_above: as `SimulatorSettings.change_batch_above`. tables: what policies are shown; `believed_type` of
    active jobs in the store are types of it.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        store: JobStore,
        truth: SpeedTables,
        facts: FactsCache,
        *,
        shared: bool,
        change_above: float = 1.0,
    ) -> None:
        self._jobs, self._store, self._truth, self._facts = jobs, store, truth, facts
        self._shared, self._change_above = shared, change_above
        self._fits: dict[tuple[int | JobType, int], ThroughputBelief] = {}
        self._seen: dict[int, tuple[float, float]] = {}
        self._seen_by_type: dict[JobType, tuple[float, float]] = {}
        self._seen_by_epoch: dict[JobType, FloatArray] = {}
        self._running: dict[int, _Running] = {}
        self._joining: dict[int, _Running] = {}
        self._stale: set[int] = set()
        self._first_kind: dict[int | JobType, int] = {}
        self._variants = len(truth.kinds)
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self.refits = 0
        self.tables = self._with_slots(FIRST_SLOTS)

    def type_of(self, job: int) -> JobType:
        """Model of a job, and its batch size if that is fixed."""
        return self._jobs[job].type

    def fit_of(self, job: int, kind: int = 0) -> ThroughputBelief:
        """What a job believes of its throughput on the kind of GPU number `kind`."""
        key = (self.type_of(job) if self._shared else job), kind
        if key not in self._fits:
            own = self.type_of(job)
            limits = self._facts.source.limits(own.model, self._truth.kinds[kind])
            exponent = METRICS[own.metric].exponent
            self._fits[key] = ThroughputBelief(limits, own.batch_size, self._truth.max_gpus, exponent)
        return self._fits[key]

    def take_kinds(self, index: IntArray, kind: IntArray) -> IntArray:
        """[n] true types of jobs number `index` [n] on kinds of GPU numbered kind [n]; a negative one: as they are."""
        types = self._store.records["type_index"][index]
        found: IntArray = np.where(kind < 0, types, self._truth.by_kind[types, np.maximum(kind, 0)])
        return found

    def show_kinds(self, index: IntArray) -> None:
        """Jobs number `index` are shown on the kinds of their true types."""
        slots = np.array([self._slots[job] for job in index.tolist()], dtype=np.int64)
        records = self._store.records
        records["believed_type"][index] = slots + self._truth.kind[records["type_index"][index]]

    def seen_by(self, job: int) -> tuple[float, float] | None:
        """Gradient statistics (squared norm, variance) that a job saw last, or one like it; None: nobody has."""
        return self._seen.get(job, self._seen_by_type.get(self.type_of(job)) if self._shared else None)

    # as jobs come and go

    def meet(self, active: IntArray) -> None:
        """Give every active job a type in the shown tables, and take it from those that have finished."""
        present = set(active.tolist())
        for job in [job for job in self._slots if job not in present]:
            self._store.records["believed_type"][job] = self._store.records["type_index"][job]
            self._free.append(self._slots.pop(job))
            self.stop(job)
        for job in present - self._slots.keys():
            if not self._free:
                self._grow()
            slot = self._slots[job] = self._free.pop()
            kind = self._store.records["type_index"][job]
            self._store.records["believed_type"][job] = slot + self._truth.kind[kind]
            for name in COPIED:
                getattr(self.tables, name)[slot : slot + self._variants] = getattr(self._truth, name)[kind]
            self.tables.__dict__.pop("facts", None)
            self._write(job)

    def observe(self, job: int, *, joined: bool) -> bool:
        """True if a running job has trained since it was last asked. It sees its steps and their noise, and fits them
        if they are new. joined: its newest workers train.
        """
        progress = float(self._store.records["progress"][job])
        if joined and job in self._joining:
            self._running[job] = self._joining.pop(job)
        running = self._running[job]
        if progress <= running.observed_progress:
            return False
        last = len(running.choices) - 1
        first = min(int(running.observed_progress), last)
        running.observed_progress = progress
        now = _epoch_of(running)
        fit, facts = self.fit_of(job, running.kind), running.facts
        batches, nodes = facts.batches, len(running.placement)
        new = False
        for choice in dict.fromkeys(running.choices[first : now + 1].tolist()):
            key = (nodes, batches.gpus, int(batches.taken[choice]))
            new |= fit.observe(key, float(facts.step[choice]), float(facts.sync[choice]))
        if new:
            self._first_kind.setdefault(self.type_of(job) if self._shared else job, running.kind)
            fit.fit()
            self.refits += 1
        choice = running.choices[now]
        seen = float(facts.grad_sqr[choice, now]), float(facts.grad_var[choice, now])
        if self._shared and min(seen) > 0:
            path = self._seen_by_epoch.setdefault(self.type_of(job), np.zeros((len(running.choices), 2)))
            path[now] = seen
        self._note(job, seen, refitted=new)
        return True

    def _note(self, job: int, seen: tuple[float, float], *, refitted: bool) -> None:
        """A job has seen gradient statistics; jobs that believe something else by that are written again."""
        own = self.type_of(job)
        changed = seen != self._seen.get(job)
        self._seen[job] = self._seen_by_type[own] = seen
        if changed or refitted:
            self._stale.add(job)
        if self._shared:
            like = (other for other in self._slots if self.type_of(other) == own)
            self._stale.update(other for other in like if refitted or other not in self._seen)

    def start(self, job: int, placement: tuple[int, ...], joining: bool) -> FloatArray:
        """As `speeds`, on a new placement: GPUs on each node. joining: it trains there once its newest workers have
        joined, and until then as before."""
        progress = float(self._store.records["progress"][job])
        kind = int(self._truth.kind[self._store.records["type_index"][job]])
        facts = self._facts(self.type_of(job), placement, self._truth.kinds[kind])
        running = _Running(kind, placement, facts, np.zeros(facts.rates.shape[1], dtype=np.int64), progress)
        self._joining.pop(job, None)
        (self._joining if joining else self._running)[job] = running
        return self._follow(job, running, None)

    def speeds(self, job: int) -> FloatArray:
        """[P] true epochs per second of the batches that a running job chooses from now on."""
        running = self._running[job]
        return self._follow(job, running, int(running.choices[_epoch_of(running)]))

    def _follow(self, job: int, running: _Running, held: int | None) -> FloatArray:
        """held: the candidate that the job trains with here, None before it has."""
        facts, progress = running.facts, float(self._store.records["progress"][job])
        epoch = min(int(progress), facts.rates.shape[1] - 1)
        fit, seen = self.fit_of(job, running.kind), self.seen_by(job)
        scales = facts.batches.weighed / fit.limits.base
        believed, first = np.zeros(0), 0
        if fit.params is not None and seen is not None:
            believed = fit.throughput(len(running.placement), facts.batches.gpus)
            if held is None:
                first = choose(believed, scales, *seen, fit.exponent)
            else:
                first = choose_again(believed, scales, *seen, fit.exponent, held, self._change_above)
        rates, rule = np.empty(facts.rates.shape[1]), (fit.exponent, self._change_above)
        truth = (facts.grad_sqr, facts.grad_var, facts.rates)
        follow_choices(believed, scales, *truth, epoch, first, *rule, rates, running.choices)
        return rates

    def stop(self, job: int) -> None:
        """A job has no GPUs any more."""
        self._running.pop(job, None)
        self._joining.pop(job, None)

    def refresh(self) -> None:
        """Bring what policies are shown up to date."""
        for job in self._stale & self._slots.keys():
            self._write(job)
        self._stale.clear()

    # the shown tables

    def _write(self, job: int) -> None:
        """Write what a job believes into its rows."""
        seen = self.seen_by(job)
        worth = self._facts.source.epoch_samples(self.type_of(job).model)
        last = len(worth) - 1
        by_epoch = worth[np.minimum(np.arange(self.tables.rates.shape[1]), last)]
        stages = self._stages(job, (1.0, 0.0) if seen is None else seen, last)
        for kind in range(self._variants):
            rows = self.tables.row[self._slots[job] + kind, :, 1:].reshape(-1)
            rates = self.tables.rates[rows[0] : rows[-1] + 1]
            for first, expected in stages:
                rates[:, first:] = self._score(job, kind, *expected).reshape(-1, 1) / by_epoch[first:]

    def _stages(self, job: int, seen: tuple[float, float], last: int) -> list[tuple[int, tuple[float, float]]]:
        """From which epoch on a job is expected to see which gradient statistics; `last`: epoch of its profile.

        What it has seen last goes on, in proportion to what others of its type saw in the epochs ahead of it, where
        they share that; in STAGES parts of what is left.
        """
        path = self._seen_by_epoch.get(self.type_of(job)) if self._shared else None
        stages = [(0, seen)]
        if path is None:
            return stages
        known = np.flatnonzero(path[:, 0] > 0)
        now = min(int(self._store.records["progress"][job]), last)
        here = path[known[max(int(np.searchsorted(known, now, "right")) - 1, 0)]]
        edges = np.linspace(now, last + 1, STAGES + 1).astype(int)
        for first, after in zip(edges[1:-1].tolist(), edges[2:].tolist(), strict=True):
            middle = (first + after) // 2
            there = path[known[max(int(np.searchsorted(known, middle, "right")) - 1, 0)]]
            if after > first > now:
                stages.append((first, (seen[0] * there[0] / here[0], seen[1] * there[1] / here[1])))
        return stages

    def _score(self, job: int, kind: int, sqr: float, var: float) -> FloatArray:
        """As `ThroughputBelief.score`, on a kind of GPU.

        A kind that the job has not run on is projected from the first one it has: by the ratio of one GPU's
        throughputs, as Sia does (Jayaram Subramanya et al., SOSP 2023).
        """
        known = [other for other in (kind, *range(self._variants)) if self.fit_of(job, other).params is not None]
        if not known or known[0] == kind:
            return self.fit_of(job, kind).score(sqr, var)
        first = self._first_kind.get(self.type_of(job) if self._shared else job, known[0])
        model, kinds, one_gpu = self.type_of(job).model, self._truth.kinds, self._facts.source.one_gpu_throughput
        ratio = one_gpu(model, kinds[kind]) / one_gpu(model, kinds[first])
        return self.fit_of(job, first).score(sqr, var) * ratio

    def _grow(self) -> None:
        """Room for twice as many active jobs."""
        count = (len(self.tables.types) - len(self._truth.types)) // self._variants
        before = self.tables
        self.tables = self._with_slots(2 * count)
        for name in COPIED:
            old = getattr(before, name)
            getattr(self.tables, name)[: len(old)] = old
        self.tables.rates[: len(before.rates)] = before.rates

    def _with_slots(self, jobs: int) -> SpeedTables:
        """The true tables, and behind them types for so many jobs, of each one for every kind of GPU."""
        truth, taken = self._truth, set(self._slots.values())
        types, kinds, sizes = len(truth.types), np.arange(self._variants), _sizes_of(truth)
        firsts = types + self._variants * np.arange(jobs)
        self._free = [slot for slot in firsts[::-1].tolist() if slot not in taken]
        known = replace(truth, elapsed=np.zeros((0, 0)), known_remaining=None, known_speed=None, score_rates=None)
        return replace(
            with_job_types(known, jobs, self._variants),
            own=np.concatenate([np.arange(types), np.repeat(firsts, self._variants)]),
            kind=np.concatenate([truth.kind, np.tile(kinds, jobs)]),
            node_gpus=np.concatenate([truth.node_gpus, np.tile(sizes, jobs)]),
        )


def _sizes_of(tables: SpeedTables) -> IntArray:
    """[G] GPUs of the largest node of every kind."""
    return np.array([tables.node_gpus[tables.kind == kind].max() for kind in range(len(tables.kinds))])
