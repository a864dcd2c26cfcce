"""Jobs described in an experiment file: one by one, or as classes that replace the jobs of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from rlpto.core.jobs import PRIORITY_CLASSES, Job
from rlpto.core.stopping import StopRule
from rlpto.io.errors import JobError
from rlpto.io.settings import Settings
from rlpto.performance.metrics import DEFAULT_METRIC, MetricName
from rlpto.performance.profiles import ModelLimits
from rlpto.workloads.mapping import pick

if TYPE_CHECKING:  # pandas is slow to import, and settings are needed without it
    from rlpto.workloads.trace import Trace

LISTED_WINDOW = "jobs"
MINUTE = 60.0
P90 = NormalDist().inv_cdf(0.9)
"""Standard deviations between median and 90 % quantile of a normal distribution."""


class ListedJob(Settings):
    """One or several jobs of a list."""

    name: str = Field("", pattern=r"^[^:]*$")
    """Name of the job. Default: its model and its place in the list."""
    model: str = Field(min_length=1)
    """The trained model: a model with a profile, or a program of `ray.programs`."""
    submit: float = Field(0.0, ge=0, le=10**9)
    """Seconds since the start of the workload."""
    count: int = Field(1, ge=1, le=10_000)
    """Number of identical jobs; from the second on their names end in -1, -2, ..."""
    every: float = Field(0.0, ge=0, le=10**9)
    """Seconds between the submissions of identical jobs."""
    epochs: float | None = Field(None, gt=0, le=10**6)
    """Work in epochs. Default: a whole training of the model."""
    data_size: float | None = Field(None, ge=1)
    """Samples in one epoch. Default: the model's usual number."""
    gpus: int = Field(1, ge=1, le=16_384)
    """Requested GPUs."""
    min_gpus: int = Field(1, ge=1, le=16_384)
    """Fewest GPUs on which it can run."""
    max_gpus: int | None = Field(None, ge=1, le=16_384)
    """Most GPUs that it can use. Default: the requested GPUs."""
    priority: Literal["high", "normal", "low"] = "normal"
    """Priority class."""
    batch_size: int | None = Field(None, ge=1, le=10**9)
    """Total batch size in samples. Default: the model's default."""
    metric: MetricName | None = None
    """Metric by which the job chooses its batch size, if it does. Default: `workload.metric`."""
    stop: StopRule | None = None
    """Rule for stopping early when accuracy has flattened. Default: the job trains all its epochs."""

    @model_validator(mode="after")
    def _limits_fit(self) -> Self:
        most = self.gpus if self.max_gpus is None else self.max_gpus
        if not self.min_gpus <= self.gpus <= most:
            raise ValueError(f"expected min_gpus <= gpus <= max_gpus, got {self.min_gpus}, {self.gpus}, {most}")
        return self


class JobClass(Settings):
    """Jobs of one purpose, such as evaluation: their models, numbers of GPUs and durations."""

    name: str = Field(min_length=1)
    """Purpose of these jobs; it begins their names, and counts as their user."""
    share: float = Field(gt=0)
    """Weight of the class in the number of jobs."""
    models: dict[str, dict[int, float]] = Field(min_length=1)
    """Weights of models and of requested numbers of GPUs, such as {mpt-7b: {8: 3, 128: 1}}."""
    minutes: tuple[float, float]
    """Median and 90 % quantile of the time on the requested GPUs, which is log-normal."""
    priority: Literal["high", "normal", "low"] | None = None
    """Priority class. Default: drawn by `mapping.priority_shares`."""

    @field_validator("minutes")
    @classmethod
    def _ascend(cls, minutes: tuple[float, float]) -> tuple[float, float]:
        if not 0 < minutes[0] <= minutes[1]:
            raise ValueError(f"expected a median above 0 and a quantile not below it, got {list(minutes)}")
        return minutes

    @field_validator("models")
    @classmethod
    def _have_sizes(cls, models: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
        for model, sizes in models.items():
            if min(sizes, default=0) < 1 or min(sizes.values(), default=0.0) <= 0:
                raise ValueError(f"{model}: expected weights above 0 by numbers of GPUs of 1 or more, got {sizes}")
        return models


def listed_jobs(
    entries: Sequence[ListedJob],
    facts: Callable[[str], ModelLimits],
    capacity: int,
    metric: MetricName = DEFAULT_METRIC,
) -> list[Job]:
    """Return the jobs of a list in order of submission.

    facts: returns the limits of a model. capacity: most GPUs of a job. metric: metric of jobs that name none. Raises
    JobError for a repeated name or a job that the cluster cannot run, ProfileError for an unknown model.
    """
    jobs: list[Job] = []
    for number, entry in enumerate(entries):
        stem, own = entry.name or f"{entry.model}-{number}", facts(entry.model)
        if entry.gpus > capacity:
            raise JobError(f"job {stem} wants {entry.gpus} GPUs, but the cluster has {capacity} in all for one job")
        jobs += [
            Job(
                name=stem if i == 0 else f"{stem}-{i}",
                submit_time=entry.submit + i * entry.every,
                model=entry.model,
                epochs=float(own.epochs) if entry.epochs is None else entry.epochs,
                data_size=own.samples if entry.data_size is None else entry.data_size,
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
    twice = next((name for name, times in Counter(job.name for job in jobs).items() if times > 1), None)
    if twice is not None:
        raise JobError(f"workload.jobs: two jobs are called {twice}, expected a name of its own for each")
    return sorted(jobs, key=lambda job: job.submit_time)


def listed_trace(jobs: Sequence[Job]) -> Trace:
    """Return the jobs as a trace, for code that works on windows; durations are unknown."""
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
        "gpu_type": ["|".join(job.gpu_types) for job in jobs],
    }
    return make_trace(columns, "listed jobs")


def mix(trace: Trace, classes: Sequence[JobClass], seed: int) -> Trace:
    """Return a trace with jobs of these classes at the submit times of `trace`; the same seed gives the same jobs.
    Class, model, GPUs and duration of a job are drawn independently of the recorded job and of other jobs."""
    from rlpto.workloads.trace import make_trace

    rng, count = np.random.default_rng([seed, 3]), len(trace)
    weights = np.array([group.share for group in classes])
    of = rng.choice(len(classes), size=count, p=weights / weights.sum())
    chance, score = rng.random(count), rng.standard_normal(count)
    gpus, duration, priority = np.ones(count, dtype=np.int64), np.empty(count), np.full(count, -1)
    models, names = np.empty(count, dtype=object), np.empty(count, dtype=object)
    for number, group in enumerate(classes):
        mine = np.flatnonzero(of == number)
        choices = [(model, size, weight) for model, sizes in group.models.items() for size, weight in sizes.items()]
        picked = pick(np.arange(len(choices)), np.array([weight for *_, weight in choices]), chance[mine])
        models[mine] = np.array([model for model, *_ in choices], dtype=object)[picked]
        gpus[mine] = np.array([size for _, size, _ in choices])[picked]
        median, high = group.minutes
        duration[mine] = MINUTE * median * (high / median) ** (score[mine] / P90)
        names[mine] = group.name
        if group.priority is not None:
            priority[mine] = PRIORITY_CLASSES.index(group.priority)
    columns = {
        "submit_time": trace.submit_time,
        "gpus": gpus,
        "duration": duration,
        "name": np.array([f"{name}-{at:06d}" for at, name in enumerate(names.tolist())], dtype=object),
        "user": names,
        "model": models,
        "priority": priority,
    }
    return make_trace(columns, source=trace.source, origin=trace.origin)
