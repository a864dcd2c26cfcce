"""From the jobs of a workload to what their controllers need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from rlpto.core.jobs import Job
from rlpto.io.errors import ClusterError, ConfigError, JobError
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
