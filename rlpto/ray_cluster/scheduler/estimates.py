"""Speed, noise and accuracy estimates of jobs without a profile: fits to reports of the job and of similar jobs.

A size that was seen has its measured speed. Other sizes get the speed of a fit, either with the same prior as for
simulated jobs (`rlpto.knowledge.bayes_fit`), or by Pollux's rules (Qiao et al., OSDI 2021, section 4.1): perfect
scaling until a job has trained with several numbers of workers, then a fit without a prior. Real jobs report whole
steps, by number of nodes and of parameter servers; the synchronisation time within a step is not known.

Before a job has trained, the `guess` in its program's settings is used. If it gives no step time, the job looks short,
like simulated jobs (`rlpto.knowledge.known.UNSEEN_HOURS`).

Measurements on one GPU type say nothing about scaling on another, so each GPU type has its own fit. A GPU type on which
a job has not trained is projected from the first one on which it has, by the ratio of single-GPU throughputs. Simulated
jobs (`rlpto.simulator.online`) and Sia (Jayaram Subramanya et al., SOSP 2023) do the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from rlpto.core.jobs import Job
from rlpto.io.arrays import FloatArray
from rlpto.knowledge.bayes_fit import fill_log_speeds, fit_with_prior
from rlpto.knowledge.prior import LEVEL_SIGMA, ThroughputPrior, coordinates, law_at, prior_without
from rlpto.performance.accuracy import AccuracyCurve, Metric, fit_accuracy
from rlpto.performance.efficiency import NoiseCurve, efficiency
from rlpto.performance.fitted import SPANS, FittedProfiles
from rlpto.performance.metrics import METRICS
from rlpto.performance.parameter_server import PARAMETERS, Probes, ServerParams, fit_speed
from rlpto.performance.profiles import ModelLimits, Profile, TypeTables
from rlpto.performance.tables import ONE_KIND, JobType
from rlpto.performance.throughput import StepMeasurements, ThroughputLaw, ThroughputParams, fit_throughput
from rlpto.ray_cluster.measuring import batch_limits, by_epoch, steps_of
from rlpto.ray_cluster.messages import JobReport, JobSpec, Measured
from rlpto.ray_cluster.settings import ProgramSettings

Ratio = Callable[[str, str, str], float]
"""Ratio of single-GPU speeds of two GPU types, given the model, the first type and the second."""
ENOUGH_STEPS = 5
"""Steps of a size before its speed counts as measured."""
SPEED_CHANGE, NOISE_CHANGE, CURVE_CHANGE = 0.05, 0.2, 0.1
"""Relative changes of a speed, of the noise scale and of the epochs in the accuracy curve that require a new fit."""
SHAPE_EPOCHS = 4.0
"""Epochs from which an accuracy curve can be fitted to its points; until then the guess is used."""


class SpeedFit(NamedTuple):
    """A throughput law, and the standard deviation of the logarithm of its speed with 1 to K workers on one node and on
    several [SPANS, K], or None if unknown."""

    law: ThroughputLaw
    sigma: FloatArray | None = None


Fit = Callable[[ProgramSettings, tuple[Measured, ...]], SpeedFit]
"""Signature of `estimated_throughput` for a given model."""


@dataclass(frozen=True)
class Evidence:
    """Evidence reported by a job so far. speeds: speed of each size with enough steps, on each GPU type. noise_scale:
    samples, NaN if unknown. accuracy: (epochs, accuracy) pairs."""

    speeds: tuple[Measured, ...] = ()
    noise_scale: float = math.nan
    accuracy: tuple[tuple[float, float], ...] = ()


def evidence_of(report: JobReport) -> Evidence:
    """Extract speeds, noise scale and accuracies from a report."""
    speeds = tuple(size for size in report.throughput if size.count >= ENOUGH_STEPS and size.samples_per_second > 0)
    known = math.isfinite(report.noise_scale) and report.noise_scale > 0
    return Evidence(speeds, report.noise_scale if known else math.nan, report.accuracy_curve)


@dataclass(frozen=True)
class Estimate:
    """Estimate of one job, or of several similar ones, and the evidence behind it.

    model: the job's model. like: key shared by jobs that share evidence. program: settings with the job's own batch
    size. profile: profile whose throughput is for the first GPU type on which the job has trained. metric: metric of
    the speeds. fits: speed fit by GPU type; the first GPU type on which the job has trained comes first. rate: epochs
    per second of the profile shown at any size while nothing is measured. Default: the profile's speed.
    """

    model: str
    like: str
    program: ProgramSettings
    profile: Profile
    ratio: Ratio
    metric: str
    evidence: Evidence = Evidence()
    fits: Mapping[str, SpeedFit] = field(default_factory=dict)
    rate: float | None = None

    def after(self, newer: Evidence, fit: Fit) -> Estimate:
        """Return the estimate after newer evidence, or this same object if the evidence has not changed notably."""
        kept, profile, fits = self.evidence, self.profile, dict(self.fits)
        if newer.speeds and not same_speeds(kept.speeds, newer.speeds):
            for gpu, speeds in _by_kind(newer.speeds).items():
                if gpu not in fits or not same_speeds(_by_kind(kept.speeds).get(gpu, ()), speeds):
                    fits[gpu] = fit(self.program, speeds)
            kept = replace(kept, speeds=newer.speeds)
            profile = replace(profile, throughput=next(iter(fits.values())).law)
        if not math.isnan(newer.noise_scale) and not _near(kept.noise_scale, newer.noise_scale, NOISE_CHANGE):
            kept = replace(kept, noise_scale=newer.noise_scale)
            profile = replace(profile, noise=NoiseCurve((0.0,), (newer.noise_scale,)))
        trained = _trained(newer)
        if trained >= SHAPE_EPOCHS and not _near(_trained(kept), trained, CURVE_CHANGE):
            kept = replace(kept, accuracy=newer.accuracy)
            profile = replace(profile, accuracy=estimated_curve(self.program, newer.accuracy))
        return self if kept is self.evidence else replace(self, profile=profile, evidence=kept, fits=fits)

    @property
    def sizes(self) -> int:
        """Number of distinct worker counts behind the speeds."""
        return len({size.workers for size in self.evidence.speeds})

    def sigma(self, most: int) -> FloatArray:
        """Standard deviation of the logarithm of the speed with 0 to `most` workers [SPANS, most + 1]."""
        first = next(iter(self.fits.values()), None)
        found = np.full((SPANS, most + 1), LEVEL_SIGMA if first is None else 0.0)
        if first is not None and first.sigma is not None:
            count = min(most, first.sigma.shape[1])
            found[:, 1 : count + 1], found[:, count + 1 :] = first.sigma[:, :count], first.sigma[:, -1:]
        return found

    @property
    def type(self) -> JobType:
        """The job type of the estimate."""
        # With a fixed batch per worker, a job behaves like one that adapts its batch.
        batch = self.program.batch_size if self.program.batch_rule == "fixed" else None
        return JobType(self.profile.name, batch, self.metric)

    def type_tables(self, kind: JobType, gpu: str, max_gpus: int, kinds: Mapping[str, int]) -> TypeTables:
        """Return the speed of each size: measured if available, else fitted, or projected if this GPU type has no
        fit."""
        seen = gpu if gpu in self.fits else next(iter(self.fits), gpu)
        profile = replace(self.profile, throughput=self.fits[seen].law) if self.fits else self.profile
        source = FittedProfiles({profile.name: profile})
        found, there = (source.type_tables(kind, max_gpus, kinds[of]) for of in (gpu, seen))
        if self.rate is not None and not self.fits:
            return replace(found, rates=np.full_like(found.rates, self.rate), score=None)
        servers = kind.servers or found.facts.servers
        rates, score = found.rates.copy(), None if found.score is None else found.score.copy()
        for size in self.evidence.speeds:
            if size.workers <= max_gpus and size.servers == servers and size.gpu == seen:
                row = there.row[min(size.nodes, len(there.row)) - 1, size.workers - 1]
                rates[row] = self._measured_rate(size, 1.0)
                if score is not None:
                    score[row] = self._measured_rate(size, METRICS[self.metric].exponent)
        factor = 1.0 if seen == gpu else self.ratio(self.model, gpu, seen)
        return replace(found, rates=factor * rates, score=None if score is None else factor * score)

    def _measured_rate(self, size: Measured, exponent: float) -> FloatArray:
        """Epochs per second at a measured size [epochs]. exponent: exponent of the efficiency (`JobMetric`)."""
        base = self.program.batch_size
        batch = base * size.workers if self.program.batch_rule == "per_worker" else base
        useful = efficiency(self.profile.noise(np.arange(self.profile.epochs)), batch, base)
        return size.samples_per_second * useful**exponent / self.profile.samples


@dataclass
class EstimateTables:
    """Speed tables of estimates by profile name, each compiled once; usable as a source of profiles. kinds: size of the
    largest node by GPU type."""

    kinds: Mapping[str, int]
    estimates: dict[str, Estimate] = field(default_factory=dict)
    _made: dict[tuple[JobType, str], TypeTables] = field(default_factory=dict)

    def take(self, estimates: Iterable[Estimate]) -> None:
        """Replace the estimates, and drop the tables of removed ones."""
        self.estimates = {estimate.profile.name: estimate for estimate in estimates}
        self._made = {key: made for key, made in self._made.items() if key[0].model in self.estimates}

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the estimates, sorted."""
        return tuple(sorted(self.estimates))

    def facts(self, model: str) -> ModelLimits:
        """Size and limits of an estimate's profile."""
        return FittedProfiles({model: self.estimates[model].profile}).facts(model)

    def type_tables(self, job_type: JobType, max_gpus: int, gpus_per_node: int, gpu: str = ONE_KIND) -> TypeTables:  # noqa: ARG002
        """Return the tables of an estimate's job type on a GPU type."""
        key = job_type, gpu
        if key not in self._made:
            self._made[key] = self.estimates[job_type.model].type_tables(job_type, gpu, max_gpus, self.kinds)
        return self._made[key]


def first_estimate(
    like: str, job: Job, spec: JobSpec, program: ProgramSettings, samples: float, epochs: int, ratio: Ratio
) -> Estimate:
    """Return the estimate of a job that has not trained: its guess, with perfect scaling."""
    own = program.model_copy(update={"batch_size": spec.batch_size})
    alone = own.law((own.guess.step_seconds if own.pace is None else own.pace) / own.batch_size)
    guess, batch = own.guessed_profile(job.name), batch_limits(own, job.max_gpus)
    profile = replace(guess, samples=samples, epochs=epochs, batch=batch, throughput=alone)
    return Estimate(job.model, like, own, profile, ratio, job.metric)


def _by_kind(speeds: Iterable[Measured]) -> dict[str, tuple[Measured, ...]]:
    """Group speeds by GPU type; the type with most steps comes first."""
    found: dict[str, tuple[Measured, ...]] = {}
    for size in speeds:
        found[size.gpu] = (*found.get(size.gpu, ()), size)
    return dict(sorted(found.items(), key=lambda item: -sum(size.count for size in item[1])))


def same_speeds(old: tuple[Measured, ...], new: tuple[Measured, ...]) -> bool:
    """True if the same sizes have about the same speeds."""
    before, after = (
        {(size.gpu, size.workers, size.nodes, size.servers): size.samples_per_second for size in speeds}
        for speeds in (old, new)
    )
    return before.keys() == after.keys() and all(_near(before[key], after[key], SPEED_CHANGE) for key in after)


def _near(old: float, new: float, tolerance: float) -> bool:
    """True if a number has hardly changed; False if the old one was unknown."""
    return abs(new - old) <= tolerance * abs(old)


def _trained(evidence: Evidence) -> float:
    """Epochs that the accuracy curve covers."""
    return evidence.accuracy[-1][0] if evidence.accuracy else 0.0


def estimated_throughput(
    program: ProgramSettings, speeds: tuple[Measured, ...], prior: ThroughputPrior | None, most: int
) -> SpeedFit:
    """Fit a law to speeds of a program on one GPU type. most: largest number of workers of a job.

    Without a prior, a single number of workers means perfect scaling from there. With parameter servers, Optimus's law
    is used once the observed numbers of workers and servers determine it; before that, scaling is perfect.
    """
    smallest = min(speeds, key=lambda size: (size.workers, size.nodes))
    alone = smallest.samples_per_second / smallest.workers
    if program.has_servers:
        return SpeedFit(_server_law(program, speeds) or program.law(1.0 / alone))
    if prior is not None:
        return _fit_with_prior(program, speeds, prior, most)
    if len({size.workers for size in speeds}) == 1:
        return SpeedFit(program.law(1.0 / alone))
    if smallest.workers > 1:  # the fit needs the step time of a single worker
        speeds = (Measured(1, 1, alone, smallest.count), *speeds)
    return SpeedFit(fit_throughput(steps_of(program, speeds)))


def _fit_with_prior(
    program: ProgramSettings, speeds: tuple[Measured, ...], prior: ThroughputPrior, most: int
) -> SpeedFit:
    """Fit speeds as for simulated jobs, but from whole step times if there are several workers."""
    batch, fixed = float(program.batch_size), program.batch_rule == "fixed"
    sizes = np.array([(size.nodes, size.workers, size.samples_per_second) for size in speeds], dtype=np.float64)
    nodes, workers, speed = sizes.T
    local = batch / workers if fixed else np.full(len(workers), batch)
    if program.pace is not None:  # steps are stretched in proportion to the samples, hence known
        perfect = program.law(program.pace / batch)
        assert isinstance(perfect, ThroughputParams)
        prior = replace(prior, mean=coordinates(perfect, batch))
    rows = StepMeasurements(nodes, workers, local, workers * local / speed, np.where(workers > 1, np.nan, 0.0))
    fit = fit_with_prior(rows, prior, batch)
    each = np.ceil(batch / np.arange(1, most + 1) if fixed else np.full(most, batch)).astype(np.int64)[:, None]
    log_seconds, sigma = np.empty((2, SPANS, most, 1))
    fill_log_speeds(*fit, batch, each, np.zeros_like(each), log_seconds, sigma)
    return SpeedFit(law_at(fit.point, batch), sigma[:, :, 0])


def compile_fits(method: str) -> None:
    """Compile fits by `method` (`knowledge.fit`) on made-up speeds, before a job's first report needs them."""
    program = ProgramSettings(training="any:Program", samples=1, epochs=1, batch_size=1)
    speeds = Measured(1, 1, 1.0, ENOUGH_STEPS), Measured(2, 1, 2.0, ENOUGH_STEPS)
    estimated_throughput(program, speeds, prior_without("") if method == "bayes" else None, 2)


def estimated_curve(program: ProgramSettings, points: tuple[tuple[float, float], ...]) -> AccuracyCurve:
    """Fit a saturating curve to the evaluated accuracies; it may still rise to 1."""
    metric = Metric("validation accuracy", "share", program.guess.untrained)
    return fit_accuracy(by_epoch(program.training, points)[None], metric, headroom=1.0)[0]


def _server_law(program: ProgramSettings, speeds: tuple[Measured, ...]) -> ServerParams | None:
    """Fit Optimus's law to speeds at the program's own batch size; None if they do not determine it."""
    if program.batch_rule != "fixed":
        return None
    batch = program.batch_size
    counts = np.array([(size.workers, size.servers) for size in speeds if size.servers], dtype=np.int64).reshape(-1, 2)
    steps = np.array([size.samples_per_second / batch for size in speeds if size.servers])
    if len(counts) < PARAMETERS["sync"]:
        return None
    fit = fit_speed("sync", Probes(counts[:, 0], counts[:, 1], steps))
    a, b, c, d, e = fit.parameters
    if not fit.determined or a <= 0:
        return None
    return ServerParams(a / batch, b, c, d, e, program.servers, program.servers_at_most)
