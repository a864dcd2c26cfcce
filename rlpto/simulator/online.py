"""Simulated jobs that choose their batch sizes by their own fits, and learn from the steps they train.

The true speeds are a row of the tables for each job, rewritten whenever its batch may have changed. The speeds that
policies see come from `rlpto.knowledge.job_estimates.JobEstimates`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlpto.core.job_store import JobStore
from rlpto.core.jobs import Job
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import copy_rows, kernel
from rlpto.knowledge.estimates import ChoiceRule, choose, follow_choices, powers
from rlpto.knowledge.evidence import Statistics, Step
from rlpto.knowledge.job_estimates import JobEstimates, Observed
from rlpto.knowledge.known import BatchCache, EstimateRules
from rlpto.performance.efficiency import BatchPerformance
from rlpto.performance.tables import SpeedTables, elapsed_from_rates

ROWS_PER_JOB = 2
"""Rows for the present placement, and for the placement for which new workers are starting."""

NOT_ESTIMATED = np.zeros(0)


WATCHED = np.dtype(
    [
        ("progress", "f8"),
        ("epochs", "i8"),
        ("seen_in", "i8"),
        ("chosen_in", "i8"),
        ("version", "i8"),
        ("joining", "i8"),
    ],
    align=True,
)
"""State of a running job after its last observation, by which the next one is known to be new or the same. progress,
epochs: its progress then, and epochs of its tables. seen_in: epoch of the observation; -1: the next one is new.
chosen_in, version: epoch and `Observed.version` at its last choice of a batch. joining: 1 while new workers start."""


@dataclass
class _Running:
    """State of a running job: number of its GPU type, its placement and its performance there, [C] base batches of its
    candidates, [P] the candidate it takes in each epoch, [P] the resulting epochs per second, and progress at its last
    observation.

    estimated, basis: inputs of the choices: [C] estimated samples per second; epoch, candidate and slope.
    inputs: arguments with which the basis was found. noted: epoch and candidate of the last observation.
    """

    gpu_type: int
    placement: tuple[int, ...]
    performance: BatchPerformance
    scales: FloatArray
    choices: IntArray
    rates: FloatArray
    observed_progress: float
    estimated: FloatArray | None = None
    basis: tuple[int, int, float] | None = None
    inputs: tuple[int, int | None, float, tuple[float, float] | None] | None = None
    noted: tuple[int, int] | None = None

    @property
    def epoch(self) -> int:
        """Epoch in which the job was last observed to train; the ending one at the end of an epoch."""
        return max(min(int(np.ceil(self.observed_progress)), len(self.choices)) - 1, 0)


def group_sizes(nodes: IntArray) -> tuple[int, ...]:
    """GPUs on each node of a job whose GPUs are on `nodes`, grouped by node."""
    starts = np.flatnonzero(np.diff(nodes, prepend=-1))
    return tuple(np.diff(starts, append=len(nodes)).tolist())


def with_own_rows(tables: SpeedTables, jobs: int) -> SpeedTables:
    """Add rows at the end of the tables for jobs to write: job j's rows start at `ROWS_PER_JOB` x j there."""
    rates = np.concatenate([tables.rates, np.ones((ROWS_PER_JOB * jobs, tables.rates.shape[1]))])
    return replace(tables, rates=rates, elapsed=elapsed_from_rates(rates))


class OnlineJobs:
    """Training of the jobs of a simulated cluster in which each job knows its speed only from observations.

    jobs: in the order of the store. truth: speed tables of the workload. performance: true speeds of batches. rules,
    left: arguments of `JobEstimates`. change_above: `SimulatorSettings.change_batch_above`.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        store: JobStore,
        truth: SpeedTables,
        performance: BatchCache,
        rules: EstimateRules,
        left: Callable[[IntArray], FloatArray],
        change_above: float,
    ) -> None:
        self.estimates = JobEstimates(jobs, store, truth, performance.source, rules, left)
        self._store, self._truth, self._performance = store, truth, performance
        self._change_above = change_above
        self._running: dict[int, _Running] = {}
        self._joining: dict[int, _Running] = {}
        self._watched = np.zeros(len(jobs), dtype=WATCHED)
        self._trained = np.zeros(len(jobs), dtype=np.int64)

    def follow(self, active: IntArray) -> None:
        """Adapt to the jobs that have arrived or finished."""
        self.stop(self.estimates.follow(active))

    def start(self, job: int, placement: tuple[int, ...], joining: bool) -> FloatArray:
        """[P] `speeds` on a new placement, given as GPUs on each node. joining: the job trains there once its newest
        workers have joined, and until then as before."""
        progress = float(self._store.records["progress"][job])
        gpu_type = int(self._truth.gpu_type[self._store.records["type_index"][job]])
        performance = self._performance(self.estimates.type_of(job), placement, self._truth.gpu_types[gpu_type])
        epochs = performance.rates.shape[1]
        scales = performance.batches.weighed / self.estimates.fit_of(job, gpu_type).limits.base
        running = _Running(
            gpu_type, placement, performance, scales, np.zeros(epochs, dtype=np.int64), np.zeros(epochs), progress
        )
        self._joining.pop(job, None)
        (self._joining if joining else self._running)[job] = running
        self._choose(job, running, None)
        if joining:
            self._watched["joining"][job] = 1
        else:
            self._watch(job, running)
        return running.rates

    def stop(self, jobs: IntArray) -> None:
        """Forget the placements of jobs that have released their GPUs, or have none."""
        for job in self._running.keys() & jobs.tolist():
            del self._running[job]
            self._joining.pop(job, None)

    def observe(self, active: IntArray) -> tuple[IntArray, list[tuple[int, FloatArray]]]:
        """Let active jobs observe their steps and their noise, fit what is new, and choose their batches from now on.

        Returns the jobs that have trained since the last call, and those whose speeds change, each with its [P] true
        epochs per second.
        """
        records, changed, at, trained = self._store.records, list[tuple[int, FloatArray]](), 0, 0
        while True:
            state = self._watched, self.estimates.observed, self._trained
            at, trained = pass_by(records, active, at, *state, trained)
            if at == len(active):
                break
            job = int(active[at])
            if self._observe_one(job, float(records["progress"][job]), joined=records["grow_left"][job] == 0):
                running = self._running[job]
                if self._choose(job, running, int(running.choices[running.epoch])):
                    changed.append((job, running.rates))
                self._trained[trained] = job
                trained += 1
            self._watch(job, self._running[job])
            at += 1
        jobs = self._trained[:trained]
        self.estimates.have_trained(jobs)
        return jobs, changed

    def _observe_one(self, job: int, progress: float, *, joined: bool) -> bool:
        """True if a running job has trained since its last observation. joined: its newest workers train."""
        if joined and job in self._joining:
            self._running[job] = self._joining.pop(job)
        else:
            self._running[job].observed_progress = float(self._watched["progress"][job])
        running = self._running[job]
        if progress <= running.observed_progress:
            return False
        first = min(int(running.observed_progress), len(running.choices) - 1)
        running.observed_progress = progress
        now, true = running.epoch, running.performance
        choice = int(running.choices[now])
        if first == now and running.noted == (now, choice):
            self.estimates.see_again(job, now)
            return True
        steps = []
        for one in dict.fromkeys(running.choices[first : now + 1].tolist()):
            size = len(running.placement), true.batches.gpus, int(true.batches.taken[one])
            steps.append(Step(*size, float(true.step[one]), float(true.sync[one])))
        gradients = float(true.grad_sqr[choice, now]), float(true.grad_var[choice, now])
        running.noted = now, choice
        seen = Statistics(*gradients, float(running.scales[choice]))
        self.estimates.learn(job, running.gpu_type, steps, seen, now)
        return True

    def _watch(self, job: int, running: _Running) -> None:
        """Note from which state on a job learns something new."""
        noted, observed = running.noted, self.estimates.observed
        assert running.inputs is not None
        self._watched[job] = (
            running.observed_progress,
            len(running.choices),
            noted[0] if noted is not None and int(running.choices[noted[0]]) == noted[1] else -1,
            running.inputs[0],
            observed.version[observed.group[job]],
            job in self._joining,
        )

    def _choose(self, job: int, running: _Running, held: int | None) -> bool:
        """Choose the batches from now on; False if none of the inputs has changed.

        held: the candidate in use on this placement. None if there is none.
        """
        true, progress = running.performance, float(self._store.records["progress"][job])
        epoch = min(int(progress), true.rates.shape[1] - 1)
        fit, seen = self.estimates.fit_of(job, running.gpu_type), self.estimates.seen_by(job)
        scales, fitted, slope = (
            running.scales,
            fit.params is not None and seen is not None,
            self.estimates.slope_of(job),
        )
        estimated = fit.throughput(len(running.placement), true.batches.gpus) if fitted else NOT_ESTIMATED
        inputs = epoch, held, slope, seen
        if estimated is running.estimated and inputs == running.inputs:
            return False
        running.inputs, first = inputs, 0
        rule = ChoiceRule(fit.exponent, slope, self._change_above)
        if seen is not None and fitted:
            first = choose(estimated, scales, powers(scales, rule.slope), *seen, rule, -1 if held is None else held)
        basis = epoch, first, rule.slope
        if running.estimated is estimated and running.basis == basis:
            return False
        running.estimated, running.basis = estimated, basis
        truth = (true.grad_sqr, true.grad_var, true.rates)
        follow_choices(estimated, scales, *truth, epoch, first, rule, running.rates, running.choices)
        return True


@kernel()
def pass_by(
    jobs: AnyArray, active: IntArray, start: int, watched: AnyArray, observed: Observed, trained: IntArray, count: int
) -> tuple[int, int]:
    """Let the active jobs from number `start` on observe the same as before, up to the first that learns something new.

    jobs: [M] JOB. watched: [M] WATCHED. trained: the first `count` entries are jobs that have trained; more follow.
    Returns where in `active` the first job is that learns something, or its length, and the new `count`.
    """
    for at in range(start, len(active)):
        j = active[at]
        job, was = jobs[j], watched[j]
        if job.gpus == 0:
            continue
        if was.joining == 1 and job.grow_left == 0.0:
            return at, count
        if job.progress <= was.progress:
            continue
        last, seen, own = was.epochs - 1, observed.by_job[j], observed.job_type[j]
        now = max(min(int(np.ceil(job.progress)), was.epochs) - 1, 0)
        new = now != was.seen_in or min(int(was.progress), last) != now or min(int(job.progress), last) != was.chosen_in
        if new or observed.version[observed.group[j]] != was.version:
            return at, count
        was.progress = job.progress
        copy_rows(observed.by_type[own], seen)
        if seen[0] > 0.0 and seen[1] > 0.0:
            copy_rows(observed.by_epoch[own, now], seen)
        trained[count] = j
        count += 1
    return len(active), count
