"""Estimated speeds of jobs from their own observations, fitted for each job or shared by jobs of a type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rlpto.core.job_store import JobStore
from rlpto.core.jobs import Job
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.knowledge.bayes_fit import prior_for
from rlpto.knowledge.estimates import Score, ThroughputFit
from rlpto.knowledge.evidence import Statistics, Step
from rlpto.knowledge.job_types import JobTypes
from rlpto.knowledge.known import EstimateRules
from rlpto.performance.fitted import SPANS
from rlpto.performance.metrics import METRICS
from rlpto.performance.profiles import BatchPerformanceSource
from rlpto.performance.tables import JobType, SpeedTables

STAGES = 8
"""Parts into which a job's remaining epochs are divided; each has its own expected gradient statistics."""
PRIOR_WEIGHT = 0.5
"""Weight of the prior of a slope: it counts like observations with this sum of squared deviations of log batch."""


class NoiseSlopes:
    """Growth of the gradient noise scale with the batch size: an exponent per job type, learnt from jobs of the type.

    The noise scale changes much more from epoch to epoch than with the batch, so only observations in the same epoch
    with different batches show it. prior: exponent of a type without observations; learn: whether observations change
    it.
    """

    def __init__(self, prior: float, *, learn: bool) -> None:
        self._prior, self._learn = prior, learn
        self._sums: dict[int, dict[int, FloatArray]] = {}
        self._noted: dict[int, int] = {}
        self._slopes: dict[int, float] = {}

    def of(self, job_type: int) -> float:
        """Return the exponent of a type, given by its number."""
        return self._slopes.get(job_type, self._prior)

    def learn(self, job_type: int, job: int, epoch: int, sqr: float, var: float, scale: float) -> bool:
        """Record gradient statistics of job number `job` at `scale` base batches; only the first of an epoch count.

        True if the exponent has changed.
        """
        if not self._learn or self._noted.get(job) == epoch:
            return False
        self._noted[job] = epoch
        x, y = np.log(scale), np.log(var / sqr)
        sums = self._sums.setdefault(job_type, {}).setdefault(epoch, np.zeros(5))
        sums += (1.0, x, y, x * x, x * y)
        count, x, y, xx, xy = np.array(list(self._sums[job_type].values())).T
        spread, common = (xx - x * x / count).sum(), (xy - x * y / count).sum()
        before = self.of(job_type)
        self._slopes[job_type] = float((common + PRIOR_WEIGHT * self._prior) / (spread + PRIOR_WEIGHT))
        return self._slopes[job_type] != before


class Observed(NamedTuple):
    """Latest observations of M jobs of T types. Compiled code also updates them when no fit is due.

    job_type: [M] number of each job's type. by_job, by_type: [M, 3], [T, 3] last observed `Statistics`; by_epoch:
    [T, P, 3] the last of each epoch; zeros if there are none. group: [M] jobs of one group share fits, and version: [M]
    changes of each group's fits and noise slope so far.
    """

    job_type: IntArray
    by_job: FloatArray
    by_type: FloatArray
    by_epoch: FloatArray
    group: IntArray
    version: IntArray


class JobEstimates:
    """Estimated speeds of active jobs. `tables` has types for each job: one per GPU type.

    jobs: in the order of the store; `estimated_type` of active jobs is kept up to date there. model_tables: tables of
    the jobs' models; their speeds are not used. source: limits of batch sizes, and one GPU's throughput on every GPU
    type. rules: how estimates are formed from observations. left: returns the [n] estimated remaining epochs of jobs
    number [n].
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        store: JobStore,
        model_tables: SpeedTables,
        source: BatchPerformanceSource,
        rules: EstimateRules,
        left: Callable[[IntArray], FloatArray],
    ) -> None:
        self._store, self._source, self._rules, self._left = store, source, rules, left
        self._job_types, self._sizes = [job.type._replace(gpu_types=()) for job in jobs], model_tables
        numbers = {job_type: number for number, job_type in enumerate(dict.fromkeys(self._job_types))}
        self._number = [numbers[job_type] for job_type in self._job_types]
        self._group = self._number if rules.shared else list(range(len(jobs)))
        self._gpu_types, self._gpu_type_of = model_tables.gpu_types, model_tables.gpu_type
        types, most = len(model_tables.types), model_tables.max_gpus
        unknown = replace(
            model_tables,
            rates=np.zeros_like(model_tables.rates),
            elapsed=np.zeros((0, 0)),
            known_remaining=None,
            known_speed=None,
            score_rates=None,
            sizes_seen=np.zeros(types),
            speed_sigma=np.zeros((types, SPANS, most + 1)),
            written=np.zeros(types, dtype=np.int64),
        )
        self._types = JobTypes(unknown)
        self._fits: dict[tuple[int, int], ThroughputFit] = {}
        self.observed = Observed(
            np.array(self._number, dtype=np.int64),
            np.zeros((len(jobs), 3)),
            np.zeros((len(numbers), 3)),
            np.zeros((len(numbers), model_tables.rates.shape[1], 3)),
            np.array(self._group, dtype=np.int64),
            np.zeros(len(jobs), dtype=np.int64),
        )
        self._followed = b""
        self._seeing_nothing: set[int] = set()
        self._present: defaultdict[int, set[int]] = defaultdict(set)
        self._written: dict[int, int] = {}
        self._slopes = NoiseSlopes(rules.noise_slope, learn=rules.shared and rules.noise_slope > 0)
        self._first_gpu_type: dict[int, int] = {}
        self._projections: dict[tuple[str, int, int], float] = {}
        self._unseen: dict[int, float] = {}
        self._epoch_samples: dict[str, FloatArray] = {}
        self._stale: set[int] = set()
        self._type_observed: set[int] = set()
        self._basis: dict[int, tuple[tuple[float, float] | None, float]] = {}

    @property
    def tables(self) -> SpeedTables:
        """The tables that policies see."""
        return self._types.tables

    def type_of(self, job: int) -> JobType:
        """Model of a job, and its batch size if that is fixed."""
        return self._job_types[job]

    def fit_of(self, job: int, gpu_type: int = 0) -> ThroughputFit:
        """Return the fit of a job's throughput on a GPU type, given by its number."""
        key = self._group[job], gpu_type
        if key not in self._fits:
            job_type = self.type_of(job)
            limits, exponent = (
                self._source.limits(job_type.model, self._gpu_types[gpu_type]),
                METRICS[job_type.metric].exponent,
            )
            pooled = self._sizes.pooled[self._store.records["type_index"][job]]
            unit = self._sizes.unit(int(self._sizes.by_gpu_type[pooled, gpu_type]))
            prior = prior_for(job_type.model, unit) if self._rules.method == "bayes" else None
            self._fits[key] = ThroughputFit(
                limits, job_type.batch_size, self.tables.max_gpus, exponent, prior, max(unit, 1)
            )
        return self._fits[key]

    def seen_by(self, job: int) -> tuple[float, float] | None:
        """Return the job's last observed gradient statistics, converted to the base batch. A job without observations
        gets the last ones of any job of its type if fits are shared. None if there are none."""
        seen = self.observed.by_job[job].tolist()
        if seen[2] == 0 and self._rules.shared:
            seen = self.observed.by_type[self._number[job]].tolist()
        return None if seen[2] == 0 else Statistics(*seen).at_base(self.slope_of(job))

    def slope_of(self, job: int) -> float:
        """Exponent of the growth of a job's noise scale with the batch size."""
        return self._slopes.of(self._number[job])

    def _epoch_of(self, job: int) -> int:
        """Epoch of a job in policies' views, at most the last measured one."""
        last = int(self.tables.epochs[self._types.first[job]]) - 1
        return min(int(self._store.records["progress"][job]), last)

    def follow(self, active: IntArray) -> IntArray:
        """Add types for new active jobs, drop the types of finished jobs, and return the finished jobs."""
        if (followed := active.tobytes()) == self._followed:
            return active[:0]
        self._followed = followed
        present, records = set(active.tolist()), self._store.records
        finished = [job for job in self._types.first if job not in present]
        for job in finished:
            records["estimated_type"][job] = records["type_index"][job]
            self._types.drop(job)
            self._present[self._number[job]].discard(job)
            self._unseen.pop(job, None)
            self._seeing_nothing.discard(job)
        for job in present - self._types.first.keys():
            self._types.add(job, records["type_index"][job])
            self._present[self._number[job]].add(job)
            if self.observed.by_job[job, 2] == 0:
                self._seeing_nothing.add(job)
            if self._rules.shown:
                self._write(job)
            self.show_gpu_type(job)
        return np.array(finished, dtype=np.int64)

    def show_gpu_type(self, job: int) -> None:
        """Point the job's `estimated_type` to the row of the GPU type on which it is placed."""
        records = self._store.records
        records["estimated_type"][job] = self._types.first[job] + self._gpu_type_of[records["type_index"][job]]

    def learn(self, job: int, gpu_type: int, steps: Iterable[Step], seen: Statistics, epoch: int) -> None:
        """Record a job's observed steps on a GPU type, and its gradients.

        seen: the last gradient statistics, observed in `epoch`.
        """
        fit, type_number, refitted, changed = self.fit_of(job, gpu_type), self._number[job], False, False
        for step in steps:
            refitted |= fit.observe(step)
        if refitted:
            self._first_gpu_type.setdefault(self._group[job], gpu_type)
            fit.fit()
        if self._rules.shared and min(seen) > 0:
            self.observed.by_epoch[type_number, epoch] = seen
            changed = self._slopes.learn(type_number, job, epoch, *seen)
        if refitted or seen != tuple(self.observed.by_job[job].tolist()):
            self._stale.add(job)
        self.observed.by_job[job] = self.observed.by_type[type_number] = seen
        self.observed.version[self._group[job]] += refitted or changed
        self._seeing_nothing.discard(job)
        if self._rules.shared:
            (self._stale if refitted else self._type_observed).update(self._present[type_number])

    def see_again(self, job: int, epoch: int) -> None:
        """Note that a job has observed the same steps and gradients in the same epoch again."""
        seen, type_number = self.observed.by_job[job], self._number[job]
        self.observed.by_type[type_number] = seen
        if self._rules.shared and seen.min() > 0:
            self.observed.by_epoch[type_number, epoch] = seen

    def have_trained(self, jobs: IntArray) -> None:
        """Mark jobs without observations whose type was trained by `jobs` [n]: shared estimates may have changed."""
        if self._rules.shared and self._seeing_nothing:
            for type_number in {self._number[job] for job in jobs.tolist()}:
                self._type_observed.update(self._present[type_number])

    def refresh(self) -> None:
        """Update the tables with the latest observations."""
        if not self._rules.shown:
            self._stale.clear()
            self._type_observed.clear()
            return
        if self._unseen:
            left = self._left(np.array(list(self._unseen)))
            self._stale.update(job for job, now in zip(self._unseen, left, strict=True) if now != self._unseen[job])
        if not self._rules.ahead and self._types.first:  # a job whose node has failed is in an earlier epoch again
            jobs = np.array([*self._types.first])
            last = self.tables.epochs[[*self._types.first.values()]] - 1
            epoch = np.minimum(self._store.records["progress"][jobs].astype(np.int64), last)
            self._stale.update(jobs[epoch != [self._written[job] for job in self._types.first]].tolist())
        for job in (self._type_observed & self._seeing_nothing) - self._stale:  # estimated from other jobs
            if self._rules.ahead or self._basis[job] != (self.seen_by(job), self.slope_of(job)):
                self._stale.add(job)
        for job in self._stale & self._types.first.keys():
            self._write(job)
        self._stale.clear()
        self._type_observed.clear()

    def _write(self, job: int) -> None:
        """Write a job's rows: fitted, projected from another GPU type, by `unseen_hours`, or scaling perfectly."""
        tables, seen, slope = self.tables, self.seen_by(job), self.slope_of(job)
        assert tables.sizes_seen is not None
        assert tables.speed_sigma is not None
        assert tables.written is not None
        now = self._written[job] = self._epoch_of(job)
        self._basis[job] = seen, slope
        fits = [self.fit_of(job, gpu_type) for gpu_type in range(len(self._gpu_types))]
        fitted = [gpu_type for gpu_type, fit in enumerate(fits) if fit.params is not None]
        self._unseen.pop(job, None)
        hours = None if fitted else self._rules.unseen_hours
        if hours is not None:
            self._unseen[job] = float(self._left(np.array([job]))[0])
        epochs = range(tables.rates.shape[1]) if self._rules.ahead else range(now, now + 1)
        stages, scores_on = self._stages(job, (1.0, 0.0) if seen is None else seen), dict[int, list[Score]]()
        for gpu_type, fit in enumerate(fits):
            row_type, fit_on = self._types.first[job] + gpu_type, gpu_type
            if fitted and gpu_type not in fitted:
                fit_on = self._first_gpu_type.get(self._group[job], fitted[0])
            if fit_on not in scores_on:
                scores_on[fit_on] = [fits[fit_on].score(*expected, slope) for _, expected in stages]
            scores = scores_on[fit_on]
            tables.written[row_type] += 1
            tables.sizes_seen[row_type] = fit.sizes
            tables.speed_sigma[row_type, :, 1:] = scores[0].sigma
            rates = tables.rates[tables.row[row_type, 0, 1] : tables.row[row_type, -1, -1] + 1]
            if hours is not None:
                seconds = 3600.0 * hours * self._store.records["scale"][job]
                rates[:, epochs.start : epochs.stop] = self._unseen[job] / seconds
                continue
            samples, factor = self._samples_of(job), self._projection(job, fit_on, gpu_type)
            for (first, _), score in zip(stages, scores, strict=True):
                later = range(max(first, epochs.start), epochs.stop)
                best = (score.best * factor).reshape(-1, 1)
                if len(later) == 1:
                    rates[:, later.start : later.stop] = best / samples[min(later.start, len(samples) - 1)]
                else:
                    each = samples[np.minimum(np.arange(later.start, later.stop), len(samples) - 1)]
                    rates[:, later.start : later.stop] = best / each

    def _samples_of(self, job: int) -> FloatArray:
        """[E] samples at the base batch that each epoch of a job's model takes."""
        model = self.type_of(job).model
        if model not in self._epoch_samples:
            self._epoch_samples[model] = self._source.epoch_samples(model)
        return self._epoch_samples[model]

    def _stages(self, job: int, seen: tuple[float, float]) -> list[tuple[int, tuple[float, float]]]:
        """Return (first epoch, expected gradient statistics at the base batch) of each stage of a job.

        By default there is one stage, with the last observed statistics `seen`. If fits are shared and later epochs are
        predicted, the remaining epochs are divided into STAGES parts, and `seen` is scaled by the ratio that other jobs
        of the type observed between the present epoch and the middle of the part.
        """
        stages = [(0, seen)]
        if not (self._rules.shared and self._rules.ahead):
            return stages
        path, slope = self.observed.by_epoch[self._number[job]], self.slope_of(job)
        known = np.flatnonzero(path[:, 0] > 0)
        if not len(known):
            return stages

        def seen_in(epoch: int) -> tuple[float, float]:
            return Statistics(*path[known[max(int(np.searchsorted(known, epoch, "right")) - 1, 0)]]).at_base(slope)

        last = len(self._samples_of(job)) - 1
        now = min(int(self._store.records["progress"][job]), last)
        here = seen_in(now)
        edges = np.linspace(now, last + 1, STAGES + 1).astype(int)
        for first, after in zip(edges[1:-1].tolist(), edges[2:].tolist(), strict=True):
            there = seen_in((first + after) // 2)
            if after > first > now:
                stages.append((first, (seen[0] * there[0] / here[0], seen[1] * there[1] / here[1])))
        return stages

    def _projection(self, job: int, seen_on: int, gpu_type: int) -> float:
        """Speed on one GPU type relative to another on which the job has run, by the ratio of one GPU's throughputs
        (Sia, Jayaram Subramanya et al., SOSP 2023)."""
        if gpu_type == seen_on:
            return 1.0
        key = self.type_of(job).model, seen_on, gpu_type
        if key not in self._projections:
            on_seen, on_target = (self._source.one_gpu_throughput(key[0], self._gpu_types[at]) for at in key[1:])
            self._projections[key] = on_target / on_seen
        return self._projections[key]
