"""Least attained service, with preemption.

Source: Nuyens and Wierman, "The Foreground-Background queue: a survey", Performance Evaluation
65(3-4), 2008; for GPU clusters Gu et al., "Tiresias", NSDI 2019 (2D-LAS).
Adapted: attained service, in GPU-seconds, is divided into levels so that jobs with similar service do not
alternate at every decision; inside a level the queue order decides. Priority classes come before levels or, where
they weigh, divide the service.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from pydantic import Field, field_validator

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy
from rlpto.io.settings import Settings
from rlpto.policies.filling import first_to_reach, fit_in_order


class LasOptions(Settings):
    """Options of `las`."""

    levels: tuple[float, ...] = Field((900.0, 3600.0, 14400.0, 57600.0, 230400.0), min_length=1)
    """Ascending limits between levels of attained service, in GPU-seconds."""

    @field_validator("levels")
    @classmethod
    def _ascending(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        if levels[0] <= 0 or any(b <= a for a, b in pairwise(levels)):
            raise ValueError("levels must be positive and ascending")
        return levels


class Las(BasePolicy[LasOptions]):
    """Jobs by level of attained service, then in queue order; all that still fit run."""

    name = "las"
    summary = "least attained service first in a few levels, preemptive, requested GPUs; knows no durations"
    source = "Nuyens and Wierman, Performance Evaluation 65(3-4), 2008; Gu et al., NSDI 2019"
    Options = LasOptions

    def reset(self, seed: int) -> None:  # noqa: ARG002
        """Forget the last decision."""
        self._until = float("inf")
        self._limits = np.array([*self.options.levels, np.inf])

    def __call__(self, state: ClusterState) -> Allocation:
        """Serve jobs by rank of their class, level and queue order."""
        jobs = state.jobs
        attained, weight = jobs.attained_service, jobs.class_weight
        level = self._limits[:-1].searchsorted(attained / weight, side="right")
        order = jobs.ranked(level)
        gpus = fit_in_order(order, jobs.requested_gpus, state.capacity)
        self._until = state.time + first_to_reach(self._limits[level] * weight, attained, gpus)
        return Allocation(gpus, order)

    def stands_until(self, state: ClusterState) -> float:  # noqa: ARG002
        """Until the first job that got GPUs reaches the next level."""
        return self._until
