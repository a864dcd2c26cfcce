"""Settings of real clusters: training programs of a workload's models, timeouts, and job controllers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rlpto.core.jobs import Job
from rlpto.io.errors import ConfigError
from rlpto.io.settings import Settings
from rlpto.performance.accuracy import AccuracyCurve
from rlpto.performance.efficiency import BatchLimits, NoiseCurve
from rlpto.performance.parameter_server import ServerParams
from rlpto.performance.profiles import FitErrors, Profile
from rlpto.performance.throughput import ThroughputLaw, ThroughputParams
from rlpto.ray_cluster.messages import FaultTolerance, JobSpec, job_id
from rlpto.store.object_storage import checked_uri
from rlpto.store.program_keys import ProgramKeys

ShipCode = Literal["auto", "always", "never"]

GUESSED_SYNC_S = 0.005
"""Seconds that several workers are assumed to take to synchronise in a step, if a model has no profile."""
GUESSED_NOISE_SCALE = 1000.0
"""Gradient noise scale in samples, if there is no measurement."""
GUESSED_EPOCHS_TO_LEARN = 3.0
"""Epochs after which 63 % of the accuracy is assumed to be gained, if a model has no profile."""


class ProgramSettings(ProgramKeys):
    """The training program of one model's jobs."""

    def law(self, per_sample: float, constant: float = 0.0, sync: float = 0.0) -> ThroughputLaw:
        """Law of steps that take `per_sample` seconds per sample of a worker, plus `constant`, plus `sync` seconds with
        several workers, wherever they are. If both are 0, jobs scale perfectly."""
        if self.has_servers:
            return ServerParams(per_sample, constant, sync, 0.0, 0.0, self.servers, self.servers_at_most)
        return ThroughputParams(constant, per_sample, sync, 0.0, sync, 0.0, 1.0)

    def batch_limits(self, most: int) -> BatchLimits:
        """Batch limits: a batch independent of the number of workers, or one for each of up to `most` workers."""
        batch = self.batch_size
        if self.batch_rule == "per_worker":
            return BatchLimits(base=batch, largest=batch * most, min_local=batch, max_local=batch)
        return BatchLimits(base=batch, largest=batch, min_local=1, max_local=batch)

    def guessed_profile(self, name: str) -> Profile:
        """Guess the profile of a program that has not been measured. name: name of its model."""
        guess, batch = self.guess, self.batch_size
        step = guess.step_seconds if self.pace is None else self.pace
        return Profile(
            name=name,
            description=self.training,
            source="guessed from ray.programs: not measured",
            samples=float(self.samples),
            epochs=self.epochs,
            batch=BatchLimits(base=batch, largest=batch, min_local=1, max_local=batch),
            # Nine tenths of a step scale with the samples: more workers help, up to a limit.
            throughput=self.law(0.9 * step / batch, 0.1 * step, GUESSED_SYNC_S),
            noise=NoiseCurve((0.0,), (GUESSED_NOISE_SCALE,)),
            accuracy=AccuracyCurve("validation accuracy", guess.untrained, guess.final, GUESSED_EPOCHS_TO_LEARN, 1.0),
            rescale_delay=guess.rescale_delay,
            errors=FitErrors(0.0, 0.0, 0.0, 0.0),
        )


class AutoscaleSettings(Settings):
    """Bounds on the GPUs requested from Ray's autoscaler, on a cluster that has one; `provision` sets the number."""

    most_gpus: int = Field(ge=1, le=16_384)
    """Most GPUs requested; jobs that want no more than this wait for nodes to come."""
    idle_seconds: float = Field(300.0, ge=1)
    """Seconds after which GPUs that no job wants are no longer requested; the autoscaler may then end nodes."""


class RaySettings(Settings):
    """Real jobs on a Ray cluster (`--cluster ray`)."""

    programs: dict[str, ProgramSettings] = Field(default_factory=dict)
    """Training program of each model's jobs, by the model's name in the workload."""
    arrivals: float = Field(1.0, gt=0)
    """Factor on all submit times, to bring jobs closer together; nothing else is scaled."""
    checkpoint_interval: float = Field(30.0, gt=0)
    """Seconds between checkpoints of a job. A fault may lose the training since the last one."""
    storage: str = ""
    """Object storage to which checkpoints are copied, such as s3://bucket/folder. Default: no copies."""
    heartbeat_timeout: float = Field(10.0, gt=0)
    """Seconds without a sign of life after which a worker is replaced."""
    start_timeout: float = Field(120.0, gt=0)
    """Seconds after which a job that trains gives up new workers and servers that have not come up."""
    retries: int = Field(3, ge=0)
    """Consecutive failures without progress after which a job fails for good."""
    autoscale: AutoscaleSettings | None = None
    """Nodes on demand. Default: only existing nodes."""
    ship_code: ShipCode = "auto"
    """Whether RLPTO's code is sent to nodes; auto sends it if a node lacks it and RLPTO has not started the cluster."""
    without_gpus: float = Field(300.0, gt=0)
    """Seconds to wait for a node while no node with GPUs is alive."""
    notice_file: str = ""
    """File that appears on a node before the node is taken away, with the seconds until then, if known; the node is
    then drained. Variables such as $HOME are expanded on the node. Default: no file."""

    @field_validator("storage")
    @classmethod
    def _is_address(cls, value: str) -> str:
        return checked_uri(value) if value else value

    @model_validator(mode="after")
    def _names_are_plain(self) -> RaySettings:
        wrong = next((name for name in self.programs if not name or ":" in name), None)
        if wrong is not None:
            raise ValueError(f"programs: {wrong!r}: expected the name of a model, without ':'")
        return self


def job_specs(jobs: Sequence[Job], settings: RaySettings, session: str, folder: Path, seed: int) -> list[JobSpec]:
    """Specification of every job's controller. folder: holds a folder for each job. seed: seed of the run; every job
    has its own. Ids number the jobs in the given order. Raises ConfigError for a model without a program."""
    missing = next((job for job in jobs if job.model not in settings.programs), None)
    if missing is not None:
        known = ", ".join(sorted(settings.programs)) or "none"
        raise ConfigError(
            f"ray.programs: job {missing.name} trains {missing.model}, which has no program; there are: {known}"
        )
    return [
        replace(
            program_spec(number, job.name, settings.programs[job.model], settings, session, folder, seed + number),
            batch_size=job.batch_size or settings.programs[job.model].batch_size,
            epochs=job.epochs,
            data_size=max(round(job.data_size), 1),
            stop=job.stop,
        )
        for number, job in enumerate(jobs)
    ]


def program_spec(
    number: int, name: str, program: ProgramSettings, settings: RaySettings, session: str, folder: Path, seed: int
) -> JobSpec:
    """A whole training of a program, as job number `number` (from 0) of its session. name: its label."""
    named, faults = ({field.name for field in fields(kept)} for kept in (JobSpec, FaultTolerance))
    return JobSpec(
        **(program.model_dump(include=named) | settings.model_dump(include=named)),
        faults=FaultTolerance(**settings.model_dump(include=faults)),
        id=job_id(number),
        name=name,
        session=session,
        folder=str((folder / job_id(number)).absolute()),
        data_size=program.samples,
        seed=seed,
    )
