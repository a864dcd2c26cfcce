"""From the jobs of a workload to what their controllers need; what policies are told of models nobody has measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from rlpto.core.jobs import Job
from rlpto.io.errors import ClusterError, ConfigError, JobError
from rlpto.performance.accuracy import AccuracyCurve
from rlpto.performance.efficiency import BatchLimits
from rlpto.performance.noise import NoiseCurve
from rlpto.performance.profiles import FitErrors, Profile
from rlpto.performance.server_law import ServerParams
from rlpto.performance.throughput import ThroughputLaw, ThroughputParams
from rlpto.ray_cluster.messages import JobSpec, job_id
from rlpto.ray_cluster.settings import ProgramSettings, RaySettings


def job_specs(
    jobs: Sequence[Job], settings: RaySettings, session: str, folder: Path, seed: int, first: int = 0
) -> list[JobSpec]:
    """What the controller of every job needs. folder: holds a folder for each job. seed: of the run; every job has its
    own. first: number of the first of these jobs in the session.

    Ids count the jobs in the order given. Raises ConfigError for a model without a program.
    """
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
        for number, job in enumerate(jobs, first)
    ]


def program_spec(
    number: int, name: str, program: ProgramSettings, settings: RaySettings, session: str, folder: Path, seed: int
) -> JobSpec:
    """A whole training of a program, as the job with this number (from 0) in its session. name: its label."""
    named = {field.name for field in fields(JobSpec)}
    return JobSpec(
        **(program.model_dump(include=named) | settings.model_dump(include=named)),
        id=job_id(number),
        name=name,
        session=session,
        folder=str((folder / job_id(number)).absolute()),
        data_size=program.samples,
        seed=seed,
    )


def check_jobs_fit(jobs: Sequence[Job], gpus: int) -> None:
    """Raise ClusterError if the cluster has no GPUs, JobError for a job that wants more than it can ever give."""
    if gpus == 0:
        raise ClusterError("no node of the Ray cluster has GPUs: expected at least one (`ray start --num-gpus`)")
    for job in jobs:
        if job.requested_gpus > gpus:
            raise JobError(f"job {job.name} wants {job.requested_gpus} GPUs, but the Ray cluster has {gpus} in all")


def most_servers_of(program: ProgramSettings) -> int:
    """Most parameter servers that a scheduler may give a job of a program that trains through some."""
    return program.servers if program.most_servers is None else program.most_servers


def guessed_profiles(programs: Mapping[str, ProgramSettings]) -> dict[str, Profile]:
    """What policies are told about programs that nobody has measured, from their settings alone."""
    return {name: _guess(name, program) for name, program in programs.items()}


def _guess(name: str, program: ProgramSettings) -> Profile:
    guess, batch = program.guess, program.batch_size
    step = guess.step_seconds if program.pace is None else program.pace
    law: ThroughputLaw
    # Nine tenths of a step grow with the samples: enough that more workers help, not enough that they do for ever.
    if program.has_servers:
        compute, sync, most = 0.9 * step / batch, guess.sync_seconds, most_servers_of(program)
        law = ServerParams(compute, 0.1 * step, sync, 0.0, 0.0, program.servers, most)
    else:
        law = ThroughputParams(
            alpha_c=0.1 * step,
            beta_c=0.9 * step / batch,
            alpha_n=guess.sync_seconds,
            beta_n=0.0,
            alpha_r=guess.sync_seconds,
            beta_r=0.0,
            gamma=1.0,
        )
    return Profile(
        name=name,
        description=program.training,
        source="guessed from ray.programs: not measured",
        samples=float(program.samples),
        epochs=program.epochs,
        batch=BatchLimits(base=batch, largest=batch, min_local=1, max_local=batch),
        throughput=law,
        noise=NoiseCurve((0.0,), (guess.noise_scale,)),
        accuracy=AccuracyCurve("validation accuracy", guess.untrained, guess.final, guess.epochs_to_learn, 1.0),
        rescale_delay=guess.rescale_delay,
        errors=FitErrors(0.0, 0.0, 0.0, 0.0),
    )
