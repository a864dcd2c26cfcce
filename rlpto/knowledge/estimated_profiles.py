"""Estimated profiles of programs that have none: guesses until steps are observed, then fits, compiled to speed tables.

A size that was seen has its measured speed. Other sizes get the speed of a fit, either with the same prior as for
simulated jobs (`rlpto.knowledge.bayes_fit`), or by Pollux's rules (Qiao et al., OSDI 2021, section 4.1): perfect
scaling until a job has trained with several numbers of workers, then a fit without a prior.

Measurements on one GPU type say nothing about scaling on another, so each GPU type has its own fit. A GPU type without
steps is projected from the first one with steps, by the ratio of single-GPU throughputs, like for simulated jobs
(`rlpto.knowledge.job_estimates`) and in Sia (Jayaram Subramanya et al., SOSP 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rlpto.io.arrays import FloatArray
from rlpto.knowledge.estimates import ThroughputFit
from rlpto.knowledge.evidence import NOISE_CHANGE, Evidence, Step, by_gpu_type, columns, nearly, same_speeds
from rlpto.knowledge.known import FitMethod
from rlpto.knowledge.online_fit import fit_whole_steps
from rlpto.knowledge.prior import LEVEL_SIGMA, coordinates, prior_without
from rlpto.performance.accuracy import AccuracyCurve, Metric, Points, by_epoch, fit_accuracy
from rlpto.performance.compile import compile_tables
from rlpto.performance.efficiency import NoiseCurve, efficiency
from rlpto.performance.fitted import SPANS, FittedProfiles
from rlpto.performance.metrics import METRICS
from rlpto.performance.parameter_server import PARAMETERS, Probes, ServerParams, fit_speed
from rlpto.performance.profiles import ModelLimits, Profile, TypeTables
from rlpto.performance.tables import ANY_GPU, JobType, SpeedTables
from rlpto.performance.throughput import ThroughputLaw, ThroughputParams

Ratio = Callable[[str, str, str], float]
"""Ratio of single-GPU speeds of two GPU types, given the model, the first type and the second."""
CURVE_CHANGE = 0.1
"""Relative change of the epochs in an accuracy curve that requires a new fit."""
SHAPE_EPOCHS = 4.0
"""Epochs from which an accuracy curve can be fitted to its points; until then the guess is used."""


@dataclass(frozen=True)
class Guess:
    """The estimate of a job before it, or a similar job, has trained.

    profile: guessed profile under the model's name, which scales perfectly. job_type: its job type. timed: whether the
    time of a step is known. paced: whether steps take exactly the profile's time.
    """

    profile: Profile
    job_type: JobType
    timed: bool = False
    paced: bool = False


class SharedEvidence:
    """Evidence of a job, or of similar jobs that share it, and the laws fitted to it.

    guess: the guess of one of the jobs. most: largest number of GPUs. method: fit method.
    laws: throughput law by GPU type; the first GPU type with steps comes first. sigma: [SPANS, most + 1] standard
    deviation of the logarithm of the speed by the first law with 0 to `most` GPUs, on one node and on several.
    """

    def __init__(self, guess: Guess, most: int, method: FitMethod) -> None:
        self._guess, self._most, self._method = guess, most, method
        self._newest = self.fitted = Evidence()
        self.laws: dict[str, ThroughputLaw] = {}
        self.sigma = np.full((SPANS, most + 1), LEVEL_SIGMA)
        self.version = 0

    def add(self, newer: Evidence) -> None:
        """Collect newer evidence, until `learn`."""
        self._newest = self._newest.updated(newer)

    def learn(self) -> bool:
        """Fit the evidence, which may take some tenths of a second. False if it has hardly changed since."""
        before, newest, noise = self.fitted, self._newest, self._newest.noise_scale
        if not same_speeds(before.steps, newest.steps):
            fitted = by_gpu_type(before.steps)
            for gpu_type, steps in by_gpu_type(newest.steps).items():
                if not same_speeds(fitted.get(gpu_type, ()), steps):
                    self._fit(gpu_type, steps)
            self.fitted = replace(self.fitted, steps=newest.steps)
        if not math.isnan(noise) and not nearly(before.noise_scale, noise, NOISE_CHANGE):
            self.fitted = replace(self.fitted, noise_scale=noise)
        self.version += self.fitted is not before
        return self.fitted is not before

    def _fit(self, gpu_type: str, steps: tuple[Step, ...]) -> None:
        """Fit the law of a GPU type to its steps."""
        profile, batch = self._guess.profile, self._guess.profile.batch
        law, sigma = profile.throughput, np.zeros((SPANS, self._most))
        if isinstance(law, ServerParams):
            self.laws[gpu_type] = server_law(law, self._guess.job_type.batch_size, steps)
        elif self._method == "pollux":
            self.laws[gpu_type] = fit_whole_steps(columns(steps))
        else:
            assert isinstance(law, ThroughputParams)
            prior = prior_without(profile.name)
            if self._guess.paced:
                prior = replace(prior, mean=coordinates(law, batch.base))
            fit = ThroughputFit(batch, self._guess.job_type.batch_size, self._most, prior=prior)
            for step in steps:
                fit.observe(step)
            fit.fit()
            assert fit.params is not None
            self.laws[gpu_type], sigma = fit.params, fit.score(1.0, 0.0).sigma
        if gpu_type == next(iter(self.laws)):
            self.sigma = np.concatenate([np.zeros((SPANS, 1)), sigma], axis=1)


def server_law(guess: ServerParams, batch: int | None, steps: tuple[Step, ...]) -> ServerParams:
    """Fit Optimus's law to steps at one total batch, or None; perfect scaling if they do not determine it."""
    smallest = min(steps, key=lambda step: (step.gpus, step.nodes))
    perfect = replace(guess, a=smallest.gpus / smallest.samples_per_second, b=0.0, c=0.0, d=0.0, e=0.0)
    served = [step for step in steps if step.servers]
    if batch is None or len(served) < PARAMETERS["sync"]:
        return perfect
    workers, servers = np.array([(step.gpus, step.servers) for step in served], dtype=np.int64).T
    fit = fit_speed("sync", Probes(workers, servers, np.array([1 / step.seconds for step in served])))
    a, b, c, d, e = fit.parameters
    return replace(guess, a=a / batch, b=b, c=c, d=d, e=e) if fit.determined and a > 0 else perfect


def estimated_curve(guess: AccuracyCurve, points: Points) -> AccuracyCurve:
    """Fit a saturating curve to evaluated accuracies; it may still rise to 1."""
    metric = Metric("validation accuracy", "share", guess.untrained)
    return fit_accuracy(by_epoch("accuracy", points)[None], metric, headroom=1.0)[0]


@dataclass(eq=False)
class EstimatedJob:
    """Estimate of one job. key: equal for jobs whose estimates differ by evidence only. shared: its evidence on speed
    and noise. curve: accuracy by its own evaluations up to epoch `covered`. Default: the guess. rate: epochs per second
    shown at any size while the time of a step is not known."""

    key: int
    guess: Guess
    shared: SharedEvidence
    points: Points = ()
    covered: float = 0.0
    curve: AccuracyCurve | None = None
    rate: float | None = None

    @property
    def unseen(self) -> bool:
        """True if the time of a step is neither measured nor known before."""
        return not (self.shared.laws or self.guess.timed)

    @property
    def type_key(self) -> tuple[object, ...]:
        """Equal for jobs with the same estimate."""
        return self.key, self.shared.version, self.curve, self.rate if self.unseen else None

    def learn(self) -> bool:
        """Update the estimate with the newest evidence. False if it has hardly changed."""
        changed, trained = self.shared.learn(), self.points[-1][0] if self.points else 0.0
        if trained >= SHAPE_EPOCHS and not nearly(self.covered, trained, CURVE_CHANGE):
            self.covered, self.curve = trained, estimated_curve(self.guess.profile.accuracy, self.points)
            return True
        return changed

    def profile(self, name: str) -> Profile:
        """The estimate as a profile, on the first GPU type with steps."""
        guess, noise = self.guess.profile, self.shared.fitted.noise_scale
        return replace(
            guess,
            name=name,
            throughput=next(iter(self.shared.laws.values()), guess.throughput),
            noise=guess.noise if math.isnan(noise) else NoiseCurve((0.0,), (noise,)),
            accuracy=self.curve or guess.accuracy,
        )

    def type_tables(
        self, job_type: JobType, gpu: str, max_gpus: int, gpu_types: Mapping[str, int], ratio: Ratio
    ) -> TypeTables:
        """Return the speed of each size: measured if available, else fitted, or projected if this GPU type has no
        fit. gpu_types: size of the largest node by GPU type."""
        laws, steps, name = self.shared.laws, self.shared.fitted.steps, job_type.model
        seen, profile = gpu if gpu in laws else next(iter(laws), gpu), self.profile(name)
        source = FittedProfiles({name: replace(profile, throughput=laws.get(seen, profile.throughput))})
        found, there = (source.type_tables(job_type, max_gpus, gpu_types[of]) for of in (gpu, seen))
        if self.rate is not None and not laws:
            return replace(found, rates=np.full_like(found.rates, self.rate), score=None)
        servers, exponent = job_type.servers or found.facts.servers, METRICS[job_type.metric].exponent
        factor = 1.0 if seen == gpu else ratio(self.guess.profile.name, gpu, seen)
        rates, score = factor * found.rates, None if found.score is None else factor * found.score
        noise = profile.noise(np.arange(profile.epochs))
        for step in steps:
            if step.gpus <= max_gpus and step.servers == servers and step.gpu_type == seen:
                row = there.row[min(step.nodes, len(there.row)) - 1, step.gpus - 1]
                useful = efficiency(noise, step.gpus * step.local_batch, profile.batch.base)
                speed = factor * step.samples_per_second / profile.samples
                rates[row] = speed * useful
                if score is not None:
                    score[row] = speed * useful**exponent
        return replace(found, rates=rates, score=score)


@dataclass
class EstimatedProfiles:
    """Estimates by name, as a source of profiles; the tables of each are compiled once.

    gpu_types: size of the largest node by GPU type. ratio: `Ratio` of the cluster's GPU types.
    """

    gpu_types: Mapping[str, int]
    ratio: Ratio
    jobs: dict[str, EstimatedJob] = field(default_factory=dict)
    _made: dict[tuple[JobType, str], TypeTables] = field(default_factory=dict)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the estimates, sorted."""
        return tuple(sorted(self.jobs))

    def facts(self, model: str) -> ModelLimits:
        """Size and limits of an estimate's profile."""
        return FittedProfiles({model: self.jobs[model].profile(model)}).facts(model)

    def type_tables(self, job_type: JobType, max_gpus: int, gpus_per_node: int, gpu: str = ANY_GPU) -> TypeTables:  # noqa: ARG002
        """Return the tables of an estimate's job type on a GPU type."""
        key = job_type, gpu
        if key not in self._made:
            self._made[key] = self.jobs[job_type.model].type_tables(job_type, gpu, max_gpus, self.gpu_types, self.ratio)
        return self._made[key]

    def compile(self, jobs: dict[str, EstimatedJob], max_gpus: int) -> SpeedTables:
        """Compile speed tables of these estimates, with a variant for each GPU type and number of servers."""
        self.jobs = jobs
        self._made = {key: made for key, made in self._made.items() if key[0].model in jobs}
        types = [job.guess.job_type._replace(model=name) for name, job in jobs.items()]
        most = max(self.gpu_types.values())
        tables = compile_tables(self, types, max_gpus, most, choose_servers=True, gpu_types=self.gpu_types)
        sizes = [float(len({step.gpus for step in job.shared.fitted.steps})) for job in jobs.values()]
        sigma = np.stack([_widened(job.shared.sigma, max_gpus) for job in jobs.values()])
        numbers = {name: number for number, name in enumerate(jobs)}
        of = [numbers[job_type.model] for job_type in tables.types]
        return replace(tables, sizes_seen=np.array(sizes)[of], speed_sigma=sigma[of])


def _widened(sigma: FloatArray, max_gpus: int) -> FloatArray:
    """[SPANS, max_gpus + 1] deviations; the last one holds for all larger sizes."""
    return sigma[:, np.minimum(np.arange(max_gpus + 1), sigma.shape[1] - 1)]
