"""What policies are told of jobs that nobody has measured before: fits of what each job has reported itself.

As in Pollux (Qiao et al., OSDI 2021, section 4.1) a job is taken to scale perfectly until it has trained with several
numbers of workers; from then on the throughput model is fitted to what was seen. Sizes that were seen have the speed
that was measured. Before a job has trained at all, the `guess` in its program's settings stands in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlpto.arrays import FloatArray
from rlpto.jobs import Job
from rlpto.performance.accuracy import AccuracyCurve, Metric, fit_accuracy
from rlpto.performance.compile import chosen_servers, compile_tables
from rlpto.performance.efficiency import efficiency
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.metrics import DEFAULT_METRIC, METRICS
from rlpto.performance.noise import NoiseCurve
from rlpto.performance.parameter_server import PARAMETERS, Probes, SyncSurface, fit_speed
from rlpto.performance.profiles import ModelFacts, Profile, TypeTables
from rlpto.performance.server_law import ServerParams
from rlpto.performance.tables import ONE_KIND, JobType, SpeedTables
from rlpto.performance.throughput import ThroughputLaw, ThroughputParams, fit_throughput
from rlpto.ray_cluster.measuring.measured_profile import batch_limits, by_epoch, steps_of
from rlpto.ray_cluster.messages import JobReport, JobSpec, Measured
from rlpto.ray_cluster.scheduler.workload import guessed_profiles, most_servers_of
from rlpto.ray_cluster.settings import ProgramSettings

ENOUGH_STEPS = 5
"""Steps of a size before its speed counts as measured."""
SPEED_CHANGE, NOISE_CHANGE, CURVE_CHANGE = 0.05, 0.2, 0.1
"""Relative changes of a speed, of the noise scale and of the epochs in the accuracy curve that call for a new fit."""
SHAPE_EPOCHS = 4.0
"""Epochs from which on an accuracy curve can be told from its points; until then the guess stands."""


@dataclass(frozen=True)
class Evidence:
    """What a job has reported so far.

    speeds: of every size with enough steps. noise_scale: samples, NaN if unknown. accuracy: (epochs, accuracy) pairs.
    """

    speeds: tuple[Measured, ...] = ()
    noise_scale: float = math.nan
    accuracy: tuple[tuple[float, float], ...] = ()


def evidence_of(report: JobReport) -> Evidence:
    """What a report says about speed, noise and accuracy."""
    speeds = tuple(size for size in report.throughput if size.count >= ENOUGH_STEPS and size.samples_per_second > 0)
    known = math.isfinite(report.noise_scale) and report.noise_scale > 0
    return Evidence(speeds, report.noise_scale if known else math.nan, report.accuracy_curve)


@dataclass(frozen=True)
class Estimate:
    """What is believed of one job, and the evidence that it rests on.

    program: with the job's own batch size. metric: by which its speeds are told.
    """

    program: ProgramSettings
    profile: Profile
    evidence: Evidence = Evidence()
    metric: str = DEFAULT_METRIC

    def after(self, newer: Evidence) -> Estimate:
        """What is believed after newer evidence; the very same object unless that says something notably new."""
        kept, profile = self.evidence, self.profile
        if newer.speeds and not _same_speeds(kept.speeds, newer.speeds):
            kept = replace(kept, speeds=newer.speeds)
            profile = replace(profile, throughput=estimated_throughput(self.program, newer.speeds))
        if not math.isnan(newer.noise_scale) and not _near(kept.noise_scale, newer.noise_scale, NOISE_CHANGE):
            kept = replace(kept, noise_scale=newer.noise_scale)
            profile = replace(profile, noise=NoiseCurve((0.0,), (newer.noise_scale,)))
        trained = _trained(newer)
        if trained >= SHAPE_EPOCHS and not _near(_trained(kept), trained, CURVE_CHANGE):
            kept = replace(kept, accuracy=newer.accuracy)
            profile = replace(profile, accuracy=estimated_curve(self.program, newer.accuracy))
        return self if kept is self.evidence else replace(self, profile=profile, evidence=kept)

    @property
    def type(self) -> JobType:
        """The one type of job that the estimate is about."""
        # With a batch for each worker, what a job does is what one that adapts its batch would.
        batch = self.program.batch_size if self.program.batch_rule == "fixed" else None
        return JobType(self.profile.name, batch, self.metric)

    def tables(self, max_gpus: int, gpus_per_node: int) -> dict[JobType, TypeTables]:
        """Speeds by size, for each number of parameter servers that the job may have."""
        source = FittedProfiles({self.profile.name: self.profile})
        kinds = [self.type, *(self.type._replace(servers=number) for number in chosen_servers(source, self.type))]
        return {kind: self._type_tables(source, kind, max_gpus, gpus_per_node) for kind in kinds}

    def _type_tables(self, source: FittedProfiles, kind: JobType, max_gpus: int, gpus_per_node: int) -> TypeTables:
        """Speeds by size: as measured where they were, else by the model."""
        found = source.type_tables(kind, max_gpus, gpus_per_node)
        servers = kind.servers or found.facts.servers
        rates, score = found.rates.copy(), None if found.score is None else found.score.copy()
        for size in self.evidence.speeds:
            if size.workers <= max_gpus and size.servers == servers:
                row = found.row[min(size.nodes, len(found.row)) - 1, size.workers - 1]
                rates[row] = self._measured_rate(size, 1.0)
                if score is not None:
                    score[row] = self._measured_rate(size, METRICS[self.metric].exponent)
        return replace(found, rates=rates, score=score)

    def _measured_rate(self, size: Measured, exponent: float) -> FloatArray:
        """[epochs] epochs per second at a size that was measured. exponent: of the efficiency, see `JobMetric`."""
        base = self.program.batch_size
        batch = base * size.workers if self.program.batch_rule == "per_worker" else base
        useful = efficiency(self.profile.noise(np.arange(self.profile.epochs)), batch, base)
        return size.samples_per_second * useful**exponent / self.profile.samples


class OnlineEstimates:
    """What is believed of all jobs of a session; type i of `tables` is job i.

    jobs, specs: in one order. programs: settings by model. samples: [M] of an epoch of each job's profile, which speeds
    refer to. max_gpus: most GPUs that tables tell about.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        specs: Sequence[JobSpec],
        programs: Mapping[str, ProgramSettings],
        samples: FloatArray,
        max_gpus: int,
        gpus_per_node: int,
    ) -> None:
        self._size = (max_gpus, gpus_per_node)
        self._estimates = [
            _first_estimate(job, spec, programs[job.model], float(own))
            for job, spec, own in zip(jobs, specs, samples, strict=True)
        ]
        self._parts = [estimate.tables(*self._size) for estimate in self._estimates]
        self._news: dict[int, Evidence] = {}
        self.tables = self._compiled()

    def heard(self, job: int, report: JobReport) -> None:
        """Take note of a report about job number `job`."""
        self._news[job] = evidence_of(report)

    def learn(self) -> bool:
        """Think about what was heard until one job has to be fitted anew, which may take some tenths of a second.

        True if that changed anything; what is left waits for the next call.
        """
        for job in list(self._news):
            before = self._estimates[job]
            after = before.after(self._news.pop(job))
            if after is not before:
                self._estimates[job] = after
                self._parts[job] = after.tables(*self._size)
                self.tables = self._compiled()
                return True
        return False

    def profile(self, job: int) -> Profile:
        """What is believed of a job now."""
        return self._estimates[job].profile

    def _compiled(self) -> SpeedTables:
        """Tables in which every job is a type."""
        types = [estimate.type for estimate in self._estimates]
        parts = {kind: part for parts in self._parts for kind, part in parts.items()}
        return compile_tables(_Parts(parts), types, *self._size, choose_servers=True)


@dataclass(frozen=True)
class _Parts:
    """Tables that are made already, as a source of them."""

    parts: Mapping[JobType, TypeTables]

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(sorted(kind.model for kind in self.parts))

    def facts(self, model: str) -> ModelFacts:
        return next(part.facts for kind, part in self.parts.items() if kind.model == model)

    def type_tables(
        self,
        job_type: JobType,
        max_gpus: int,  # noqa: ARG002
        gpus_per_node: int,  # noqa: ARG002
        gpu: str = ONE_KIND,  # noqa: ARG002
    ) -> TypeTables:
        return self.parts[job_type]


def _first_estimate(job: Job, spec: JobSpec, program: ProgramSettings, samples: float) -> Estimate:
    """What is believed of a job that has not trained: its guess, and that it scales perfectly."""
    own = program.model_copy(update={"batch_size": spec.batch_size})
    guess = guessed_profiles({job.name: own})[job.name]
    step = own.guess.step_seconds if own.pace is None else own.pace
    profile = replace(
        guess,
        samples=samples,
        epochs=max(math.ceil(job.epochs), 1),
        batch=batch_limits(own, job.max_gpus),
        throughput=_perfect(own, step / own.batch_size),
    )
    return Estimate(own, profile, metric=job.metric)


def estimated_throughput(program: ProgramSettings, speeds: tuple[Measured, ...]) -> ThroughputLaw:
    """The model fitted to the speeds of several numbers of workers; of a single number: perfect scaling from there.

    With parameter servers the model is Optimus's, once the numbers of workers and servers that were seen determine it.
    """
    smallest = min(speeds, key=lambda size: (size.workers, size.nodes))
    alone = smallest.samples_per_second / smallest.workers
    if program.has_servers:
        return _server_law(program, speeds) or _perfect(program, 1.0 / alone)
    if len({size.workers for size in speeds}) == 1:
        return _perfect(program, 1.0 / alone)
    if smallest.workers > 1:  # the fit needs to know what a worker takes by itself
        speeds = (Measured(1, 1, alone, smallest.count), *speeds)
    return fit_throughput(steps_of(program, speeds))


def estimated_curve(program: ProgramSettings, points: tuple[tuple[float, float], ...]) -> AccuracyCurve:
    """The saturating curve closest to what was evaluated; it may yet rise to 1."""
    metric = Metric("validation accuracy", "share", program.guess.untrained)
    return fit_accuracy(by_epoch(program.training, points)[None], metric, headroom=1.0)[0]


def _server_law(program: ProgramSettings, speeds: tuple[Measured, ...]) -> ServerParams | None:
    """Optimus's law fitted to speeds at the program's own batch; None where they do not determine it."""
    if program.batch_rule != "fixed":
        return None
    batch = program.batch_size
    counts = np.array([(size.workers, size.servers) for size in speeds if size.servers], dtype=np.int64).reshape(-1, 2)
    steps = np.array([size.samples_per_second / batch for size in speeds if size.servers])
    if len(counts) < PARAMETERS["sync"]:
        return None
    fit = fit_speed("sync", Probes(counts[:, 0], counts[:, 1], steps), batch)
    if not fit.determined or not isinstance(fit.surface, SyncSurface) or fit.surface.a <= 0:
        return None
    found = fit.surface
    return ServerParams(found.a, found.b, found.c, found.d, found.e, program.servers, most_servers_of(program))


def _perfect(program: ProgramSettings, seconds_per_sample: float) -> ThroughputLaw:
    """Steps whose time is that of their samples, however they are spread."""
    if program.has_servers:
        return ServerParams(seconds_per_sample, 0.0, 0.0, 0.0, 0.0, program.servers, most_servers_of(program))
    return ThroughputParams(0.0, seconds_per_sample, 0.0, 0.0, 0.0, 0.0, 1.0)


def _same_speeds(old: tuple[Measured, ...], new: tuple[Measured, ...]) -> bool:
    """True if the same sizes have about the same speeds."""
    before = {(size.workers, size.nodes, size.servers): size.samples_per_second for size in old}
    after = {(size.workers, size.nodes, size.servers): size.samples_per_second for size in new}
    return before.keys() == after.keys() and all(_near(before[key], after[key], SPEED_CHANGE) for key in after)


def _near(old: float, new: float, tolerance: float) -> bool:
    """True if a number has hardly changed; false if it was not known."""
    return abs(new - old) <= tolerance * abs(old)


def _trained(evidence: Evidence) -> float:
    """Epochs that the accuracy curve covers."""
    return evidence.accuracy[-1][0] if evidence.accuracy else 0.0
