"""Speed estimates of all jobs of a session that have no profile."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlpto.core.jobs import Job
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.knowledge.known import FitMethod
from rlpto.knowledge.prior import prior_without
from rlpto.performance.compile import compile_tables
from rlpto.performance.tables import SpeedTables
from rlpto.ray_cluster.messages import JobReport, JobSpec, Measured
from rlpto.ray_cluster.scheduler.estimates import (
    Estimate,
    EstimateTables,
    Evidence,
    Fit,
    Ratio,
    SpeedFit,
    estimated_throughput,
    evidence_of,
    first_estimate,
    same_speeds,
)
from rlpto.ray_cluster.settings import ProgramSettings

POOLED_PROGRAMS = 1000
"""Most programs, with options and batch size, whose evidence is kept."""


class OnlineEstimates:
    """Estimates of all jobs of a session. Job i has type `type_of[i]` [M] of `tables`.

    jobs, specs: in the same order. programs: settings by model. profiles: speed tables of the jobs' profiles, used for
    the samples of an epoch, for the most GPUs of a job, and in place of `tables` while there are no jobs. kinds: size
    of the largest node by GPU type. method: fit method (`rlpto.knowledge.known`). pooled: jobs of one program with
    equal options and batch size share evidence on speed and noise; the waiting ones, possibly thousands, then have one
    type. most_epochs: epochs in a job's table, whose last one stands for all later ones. Default: all epochs.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        specs: Sequence[JobSpec],
        programs: Mapping[str, ProgramSettings],
        profiles: SpeedTables,
        kinds: Mapping[str, int],
        ratio: Ratio = lambda *_: 1.0,
        *,
        method: FitMethod = "bayes",
        pooled: bool = False,
        most_epochs: int | None = None,
    ) -> None:
        self._programs, self._ratio, self._method, self._pooled = programs, ratio, method, pooled
        self._profiles, self._kinds = profiles, dict(kinds)
        self._most_epochs = most_epochs or math.inf
        self._pool: dict[str, Evidence] = {}
        self._fits: dict[tuple[str, str], tuple[tuple[Measured, ...], SpeedFit]] = {}
        self._shared: dict[tuple[object, ...], Estimate] = {}
        self._made = 0
        self._estimates: list[Estimate] = []
        self._source = EstimateTables(self._kinds)
        self._news: dict[int, Evidence] = {}
        self._grown: dict[str, None] = {}  # in the order in which they grew
        self.append(jobs, specs, profiles)

    def append(self, jobs: Sequence[Job], specs: Sequence[JobSpec], profiles: SpeedTables) -> None:
        """Add jobs. profiles: tables of the profiles of all jobs."""
        self._profiles = profiles
        for job, spec in zip(jobs, specs, strict=True):
            program, own = self._programs[job.model], float(profiles.samples[profiles.type_index(job.type)])
            alike = json.dumps([spec.training, dict(spec.options), spec.batch_size, spec.float64], sort_keys=True)
            like = alike if self._pooled else spec.id
            epochs = max(math.ceil(min(job.epochs, self._most_epochs)), 1)
            key = (like, job.model, id(program), job.metric, job.max_gpus, epochs, own)
            before = self._shared.get(key) or self._named(
                first_estimate(like, job, spec, program, own, epochs, self._ratio)
            )
            after = before.after(self._pool[like], self._fit_of(before)) if like in self._pool else before
            self._shared[key] = before if after is before else self._named(after)
            self._estimates.append(self._shared[key])
        self._compile()

    def keep(self, index: IntArray) -> None:
        """Keep only the jobs at `index` [n], and renumber them from 0."""
        kept = index.tolist()
        self._estimates = [self._estimates[job] for job in kept]
        self._news = {new: self._news[job] for new, job in enumerate(kept) if job in self._news}
        there = set(map(id, self._estimates))
        self._shared = {key: estimate for key, estimate in self._shared.items() if id(estimate) in there}
        self._compile()

    def _named(self, estimate: Estimate) -> Estimate:
        """Give the estimate a unique name, because several may derive from one."""
        self._made += 1
        return replace(estimate, profile=replace(estimate.profile, name=f"{self._made}"))

    def heard(self, job: int, report: JobReport) -> None:
        """Collect the evidence of a report on job number `job`."""
        found = evidence_of(report)
        if len(self._kinds) == 1:  # every GPU counts as this type, even if its node names it differently
            speeds = tuple(replace(size, gpu=next(iter(self._kinds))) for size in found.speeds)
        else:
            speeds = tuple(size for size in found.speeds if size.gpu in self._kinds)
        self._news[job] = self._with_pool(self._estimates[job].like, replace(found, speeds=speeds))

    def _with_pool(self, like: str, own: Evidence) -> Evidence:
        """Merge a job's evidence with the pool of similar jobs, and update the pool."""
        pool = self._pool.pop(like, Evidence())
        sizes = {(size.workers, size.nodes, size.servers, size.gpu): size for size in (*pool.speeds, *own.speeds)}
        noise = pool.noise_scale if math.isnan(own.noise_scale) else own.noise_scale
        speeds = tuple(sizes[size] for size in sorted(sizes))
        if self._pooled and not same_speeds(pool.speeds, speeds):
            self._grown[like] = None
        self._pool[like] = Evidence(speeds, noise)  # last in order, as the most recent
        if len(self._pool) > POOLED_PROGRAMS:
            lost = next(iter(self._pool))
            del self._pool[lost]
            self._fits = {key: kept for key, kept in self._fits.items() if key[0] != lost}
        return Evidence(speeds, noise, own.accuracy)

    def _fit_of(self, estimate: Estimate) -> Fit:
        """Return a fit function cached over similar jobs while measurements hardly change; a fit may take half a
        second."""
        prior = prior_without(estimate.model) if self._method == "bayes" else None

        def fit(program: ProgramSettings, speeds: tuple[Measured, ...]) -> SpeedFit:
            key = estimate.like, speeds[0].gpu
            if key not in self._fits or not same_speeds(self._fits[key][0], speeds):
                self._fits[key] = speeds, estimated_throughput(program, speeds, prior, self._profiles.max_gpus)
            return self._fits[key][1]

        return fit

    @property
    def unseen(self) -> IntArray:
        """Jobs whose speed is neither measured nor guessed [n]."""
        known = [bool(estimate.fits) or estimate.program.gives_speed for estimate in self._estimates]
        return np.flatnonzero(~np.array(known, dtype=np.bool_))

    def show_unseen(self, rates: FloatArray) -> None:
        """Show jobs `unseen` [n] with these rates [n] at every size, in epochs per second of their profiles."""
        for job, rate in zip(self.unseen.tolist(), rates.tolist(), strict=True):
            estimate = self._estimates[job]
            if estimate.rate != rate:
                name = f"{estimate.profile.name.split()[0]} {rate!r}"  # alike: one type
                self._estimates[job] = replace(estimate, profile=replace(estimate.profile, name=name), rate=rate)
        self._compile()

    def learn(self) -> bool:
        """Process reports until one job needs a new fit, which may take some tenths of a second. True if anything
        changed. The remaining reports wait for the next call."""
        for job in list(self._news):
            before = self._estimates[job]
            after = before.after(self._news.pop(job), self._fit_of(before))
            if after is not before:
                self._estimates[job] = self._named(after)
                self._compile()
                return True
        while self._grown:
            like = next(iter(self._grown))
            del self._grown[like]
            if self._share(like):
                self._compile()
                return True
        return False

    def _share(self, like: str) -> bool:
        """Update all similar jobs, including waiting ones, with pooled evidence. Jobs of one type keep a common
        type."""
        if like not in self._pool:
            return False
        afters: dict[int, Estimate] = {}
        for before in {id(estimate): estimate for estimate in self._estimates if estimate.like == like}.values():
            after = before.after(self._pool[like], self._fit_of(before))
            if after is not before:
                afters[id(before)] = self._named(after)
        self._shared = {key: afters.get(id(estimate), estimate) for key, estimate in self._shared.items()}
        self._estimates = [afters.get(id(estimate), estimate) for estimate in self._estimates]
        return bool(afters)

    def is_measured(self, job: int) -> bool:
        """Whether the speed of a job, or of similar ones, was measured."""
        return bool(self._estimates[job].evidence.speeds)

    def _compile(self) -> None:
        """Update `tables` and `type_of`: each estimate is a type, with a variant for each GPU type."""
        number: dict[str, int] = {}
        types = [number.setdefault(estimate.profile.name, len(number)) for estimate in self._estimates]
        self.type_of: IntArray = np.array(types, dtype=np.int64)
        if [*number] == [*self._source.estimates] and number:
            return
        self._source.take(self._estimates)
        if not number:
            self.tables = self._profiles
            return
        self.tables = compile_tables(
            self._source,
            [estimate.type for estimate in self._source.estimates.values()],
            self._profiles.max_gpus,
            max(self._kinds.values()),
            choose_servers=True,
            kinds=self._kinds,
        )
        made, own = list(self._source.estimates.values()), self.tables.own
        sizes = np.array([float(estimate.sizes) for estimate in made])
        sigma = np.stack([estimate.sigma(self.tables.max_gpus) for estimate in made])
        self.tables = replace(self.tables, sizes_seen=sizes[own], speed_sigma=sigma[own])
