"""Classes of jobs in place of those that a trace recorded: its submission times stay."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, field_validator

from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.io.settings import Settings
from rlpto.workloads.mapping import pick

if TYPE_CHECKING:  # pandas is slow to import, and settings are needed without it
    from rlpto.workloads.trace import Trace

MINUTE = 60.0
P90 = NormalDist().inv_cdf(0.9)
"""Standard deviations between median and 90 % quantile of a normal distribution."""


class JobClass(Settings):
    """Jobs of one purpose, such as evaluation: which models, on how many GPUs, for how long."""

    name: str = Field(min_length=1)
    """What these jobs are for; it begins their names, and counts as their user."""
    share: float = Field(gt=0)
    """Weight of the class in the number of jobs."""
    models: dict[str, dict[int, float]] = Field(min_length=1)
    """Weights of models and of numbers of GPUs that are asked for, such as {mpt-7b: {8: 3, 128: 1}}."""
    minutes: tuple[float, float]
    """Median and 90 % quantile of the time on the requested GPUs, which is log-normal."""
    priority: Literal["high", "normal", "low"] | None = None
    """Priority class; null: drawn by `mapping.priority_shares`."""

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


def mix(trace: Trace, classes: Sequence[JobClass], seed: int) -> Trace:
    """The trace with jobs of these classes at the times at which its own were submitted, same seed, same jobs.

    Class, model, GPUs and duration of a job are drawn independently of what was recorded and of other jobs.
    """
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
