"""Workloads listed job by job in an experiment file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from rlpto.core.jobs import PRIORITY_CLASSES, Job
from rlpto.core.stopping import StopRule
from rlpto.io.errors import JobError
from rlpto.io.settings import Settings
from rlpto.performance.metrics import DEFAULT_METRIC, MetricName
from rlpto.performance.profiles import ModelLimits

if TYPE_CHECKING:  # pandas is slow to import, and settings are needed without it
    from rlpto.workloads.trace import Trace

LISTED_WINDOW = "jobs"
"""Name of the one window of listed jobs."""


class ListedJob(Settings):
    """One or several jobs of a list."""

    name: str = Field("", pattern=r"^[^:]*$")
    """Name of the job; empty: its model and its place in the list."""
    model: str = Field(min_length=1)
    """What it trains: a model with a profile, or of `ray.programs`."""
    submit: float = Field(0.0, ge=0, le=10**9)
    """Seconds since the start of the workload."""
    count: int = Field(1, ge=1, le=10_000)
    """Number of identical jobs; from the second on their names end in -1, -2, ..."""
    every: float = Field(0.0, ge=0, le=10**9)
    """Seconds from one of them to the next."""
    epochs: float | None = Field(None, gt=0, le=10**6)
    """Work in epochs; null: a whole training of the model."""
    data_size: float | None = Field(None, ge=1)
    """Samples in one epoch; null: as many as the model usually has."""
    gpus: int = Field(1, ge=1, le=16_384)
    """GPUs it asks for."""
    min_gpus: int = Field(1, ge=1, le=16_384)
    """Fewest it can run on."""
    max_gpus: int | None = Field(None, ge=1, le=16_384)
    """Most it can use; null: what it asks for."""
    priority: Literal["high", "normal", "low"] = "normal"
    """Priority class."""
    batch_size: int | None = Field(None, ge=1, le=10**9)
    """Total batch size in samples; null: the model's own."""
    metric: MetricName | None = None
    """What its batch size is chosen by, where it is chosen; null: `workload.metric`."""
    stop: StopRule | None = None
    """Rule by which it stops before its epochs are done because its accuracy has flattened; null: never."""

    @model_validator(mode="after")
    def _limits_fit(self) -> Self:
        most = self.gpus if self.max_gpus is None else self.max_gpus
        if not self.min_gpus <= self.gpus <= most:
            raise ValueError(f"expected min_gpus <= gpus <= max_gpus, got {self.min_gpus}, {self.gpus}, {most}")
        return self


def listed_jobs(
    entries: Sequence[ListedJob],
    facts: Callable[[str], ModelLimits],
    capacity: int,
    metric: MetricName = DEFAULT_METRIC,
) -> list[Job]:
    """The jobs of a list in order of submission.

    facts: of a model. capacity: most GPUs of a job. metric: of jobs that name none. Raises JobError for a name that is
    taken or a job that the cluster cannot run, ProfileError for an unknown model.
    """
    jobs = [
        job
        for number, entry in enumerate(entries)
        for job in jobs_of_entry(entry, number, facts(entry.model), capacity, metric)
    ]
    twice = next((name for name, times in Counter(job.name for job in jobs).items() if times > 1), None)
    if twice is not None:
        raise JobError(f"workload.jobs: two jobs are called {twice}, expected a name of its own for each")
    return sorted(jobs, key=lambda job: job.submit_time)


def jobs_of_entry(entry: ListedJob, number: int, facts: ModelLimits, capacity: int, metric: MetricName) -> list[Job]:
    """The jobs of an entry with this number in the list. The other arguments, and errors, as of `listed_jobs`."""
    stem = entry.name or f"{entry.model}-{number}"
    if entry.gpus > capacity:
        raise JobError(f"job {stem} wants {entry.gpus} GPUs, but the cluster has {capacity} in all for one job")
    return [
        Job(
            name=stem if i == 0 else f"{stem}-{i}",
            submit_time=entry.submit + i * entry.every,
            model=entry.model,
            epochs=float(facts.epochs) if entry.epochs is None else entry.epochs,
            data_size=facts.samples if entry.data_size is None else entry.data_size,
            requested_gpus=entry.gpus,
            min_gpus=entry.min_gpus,
            max_gpus=entry.gpus if entry.max_gpus is None else entry.max_gpus,
            priority=PRIORITY_CLASSES.index(entry.priority),
            batch_size=entry.batch_size,
            metric=entry.metric or metric,
            stop=entry.stop,
        )
        for i in range(entry.count)
    ]


def listed_trace(jobs: Sequence[Job]) -> Trace:
    """The same jobs as a trace, for code that works on windows; durations are unknown."""
    from rlpto.workloads.trace import make_trace

    columns: dict[str, list[Any]] = {
        "name": [job.name for job in jobs],
        "submit_time": [job.submit_time for job in jobs],
        "gpus": [job.requested_gpus for job in jobs],
        "priority": [job.priority for job in jobs],
        "model": [job.model for job in jobs],
        "batch_size": [job.batch_size or 0 for job in jobs],
        "metric": [job.metric for job in jobs],
        "stop": ["" if job.stop is None else job.stop.text for job in jobs],
    }
    return make_trace(columns, "listed jobs")
