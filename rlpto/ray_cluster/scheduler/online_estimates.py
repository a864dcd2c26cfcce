"""Speed estimates of all jobs of a session that have no profile, by their controllers' reports."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from rlpto.core.jobs import Job
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.knowledge.estimated_profiles import EstimatedJob, EstimatedProfiles, Guess, Ratio, SharedEvidence
from rlpto.knowledge.evidence import Evidence, Step
from rlpto.knowledge.known import FitMethod
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.ray_cluster.messages import JobReport, JobSpec
from rlpto.ray_cluster.settings import ProgramSettings

POOLED_PROGRAMS = 1000
"""Most programs, with options and batch size, whose evidence is kept while no job has them."""
ENOUGH_STEPS = 5
"""Steps of a size before its speed counts as measured."""


class OnlineEstimates:
    """Estimates of all jobs of a session. Job i has type `type_of[i]` [M] of `tables`.

    jobs, specs: in the same order. programs: settings by model. profiles: speed tables of the jobs' profiles, used for
    the samples of an epoch, for the most GPUs of a job, and in place of `tables` while there are no jobs. gpu_types:
    size of the largest node by GPU type. method: fit method (`rlpto.knowledge.known`). pooled: jobs of one program with
    equal options and batch size share evidence on speed and noise; the waiting ones, possibly thousands, then have one
    type. most_epochs: epochs in a job's table, whose last one stands for all later ones. Default: all epochs.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        specs: Sequence[JobSpec],
        programs: Mapping[str, ProgramSettings],
        profiles: SpeedTables,
        gpu_types: Mapping[str, int],
        ratio: Ratio = lambda *_: 1.0,
        *,
        method: FitMethod = "bayes",
        pooled: bool = False,
        most_epochs: int | None = None,
    ) -> None:
        self._programs, self._method, self._pooled = programs, method, pooled
        self._gpu_types, self._source = dict(gpu_types), EstimatedProfiles(gpu_types, ratio)
        self._most_epochs = most_epochs or math.inf
        self._shared: dict[str, SharedEvidence] = {}
        self._jobs: list[EstimatedJob] = []
        self._news: dict[EstimatedJob, None] = {}  # in the order of their reports
        self._keys: dict[tuple[object, ...], int] = {}
        self._numbers, self._made = count(), count(1)
        self._names: dict[tuple[object, ...], str] = {}
        self.append(jobs, specs, profiles)

    def append(self, jobs: Sequence[Job], specs: Sequence[JobSpec], profiles: SpeedTables) -> None:
        """Add jobs. profiles: tables of the profiles of all jobs."""
        self._profiles = profiles
        for job, spec in zip(jobs, specs, strict=True):
            program = self._programs[job.model].model_copy(update={"batch_size": spec.batch_size})
            alike = json.dumps([spec.training, dict(spec.options), spec.batch_size, spec.float64], sort_keys=True)
            samples, like = float(profiles.samples[profiles.type_index(job.type)]), alike if self._pooled else spec.id
            epochs = max(math.ceil(min(job.epochs, self._most_epochs)), 1)
            limits = job.metric, job.max_gpus, job.gpu_types
            same = (like, program.model_dump_json(), job.model, *limits, epochs, samples)
            guess = guess_of(job, program, samples, epochs)
            if like not in self._shared:  # its jobs may have other limits of GPUs
                batch = program.batch_limits(profiles.max_gpus)
                anyone = replace(guess, profile=replace(guess.profile, batch=batch))
                self._shared[like] = SharedEvidence(anyone, profiles.max_gpus, self._method)
            key = self._keys.setdefault(same, next(self._numbers))
            self._jobs.append(EstimatedJob(key, guess, self._shared[like]))
        self._compile()

    def keep(self, index: IntArray) -> None:
        """Keep only the jobs at `index` [n], and renumber them from 0."""
        self._jobs = [self._jobs[job] for job in index.tolist()]
        used, keys = {id(job.shared) for job in self._jobs}, {job.key for job in self._jobs}
        present = set(self._jobs)
        self._keys = {same: key for same, key in self._keys.items() if key in keys}
        self._news = {job: None for job in self._news if job in present}
        spare = [like for like, shared in self._shared.items() if id(shared) not in used]
        for like in spare[: max(len(spare) - POOLED_PROGRAMS * self._pooled, 0)]:
            del self._shared[like]
        self._compile()

    def take_report(self, job: int, report: JobReport) -> None:
        """Collect the evidence of a report on job number `job`."""
        one = self._jobs[job]
        known = math.isfinite(report.noise_scale) and report.noise_scale > 0
        one.shared.add(Evidence(self._steps(one, report), report.noise_scale if known else math.nan))
        one.points = report.accuracy_curve
        self._news[one] = None

    def _steps(self, job: EstimatedJob, report: JobReport) -> tuple[Step, ...]:
        """Steps of all sizes with enough of them, on the cluster's GPU types."""
        sizes = [size for size in report.throughput if size.count >= ENOUGH_STEPS and size.samples_per_second > 0]
        if len(self._gpu_types) == 1:  # every GPU counts as this type, even if its node names it differently
            sizes = [replace(size, gpu=next(iter(self._gpu_types))) for size in sizes]
        batch, fixed = job.guess.profile.batch.base, job.guess.job_type.batch_size is not None
        return tuple(size.step(batch, fixed=fixed) for size in sizes if size.gpu in self._gpu_types)

    @property
    def unseen(self) -> IntArray:
        """Jobs whose speed is neither measured nor guessed [n]."""
        return np.flatnonzero(np.array([job.unseen for job in self._jobs], dtype=np.bool_))

    def show_unseen(self, rates: FloatArray) -> None:
        """Show jobs `unseen` [n] with these rates [n] at every size, in epochs per second of their profiles."""
        for job, rate in zip(self.unseen.tolist(), rates.tolist(), strict=True):
            self._jobs[job].rate = rate
        self._compile()

    def learn(self) -> bool:
        """Process reports until one job needs a new fit, which may take some tenths of a second. True if anything
        changed. The remaining reports wait for the next call."""
        while self._news:
            job = next(iter(self._news))
            del self._news[job]
            if job.learn():
                self._compile()
                return True
        return False

    def is_measured(self, job: int) -> bool:
        """Whether the speed of a job, or of similar ones, was measured."""
        return bool(self._jobs[job].shared.laws)

    def _compile(self) -> None:
        """Update `tables` and `type_of`: jobs with equal estimates have one type."""
        keys = [job.type_key for job in self._jobs]
        first = dict(zip(reversed(keys), reversed(self._jobs), strict=True))
        kept = {key: self._names.get(key) or str(next(self._made)) for key in dict.fromkeys(keys)}
        if not kept:
            self.tables = self._profiles
        elif [*kept] != [*self._names]:
            self.tables = self._source.compile(
                {name: first[key] for key, name in kept.items()}, self._profiles.max_gpus
            )
        numbers = {job_type: number for number, job_type in reversed([*enumerate(self.tables.types)])}
        types = {key: numbers[first[key].guess.job_type._replace(model=name)] for key, name in kept.items()}
        self.type_of: IntArray = np.array([types[key] for key in keys], dtype=np.int64)
        self._names = kept


def guess_of(job: Job, program: ProgramSettings, samples: float, epochs: int) -> Guess:
    """Return the guess of a job that has not trained: the guess of its program, with perfect scaling. program: with the
    job's own batch size."""
    law = program.law((program.guess.step_seconds if program.pace is None else program.pace) / program.batch_size)
    profile = replace(
        program.guessed_profile(job.model),
        samples=samples,
        epochs=epochs,
        batch=program.batch_limits(job.max_gpus),
        throughput=law,
    )
    # With a fixed batch per worker, a job behaves like one that adapts its batch.
    batch = program.batch_size if program.batch_rule == "fixed" else None
    return Guess(
        profile,
        JobType(job.model, batch, job.metric, gpu_types=job.gpu_types),
        program.gives_speed,
        program.pace is not None,
    )


def compile_fits(method: FitMethod) -> None:
    """Compile fits by `method` (`knowledge.fit`) on made-up speeds, before a job's first report needs them."""
    program = ProgramSettings(training="any:Program", samples=1, epochs=1, batch_size=1)
    shared = SharedEvidence(guess_of(Job("any", 0.0, "any", 1.0, 1.0, 1), program, 1.0, 1), 2, method)
    shared.add(Evidence((Step(1, 1, 1.0, 1.0), Step(1, 2, 0.5, 0.5))))
    shared.learn()
