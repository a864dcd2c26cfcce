"""What several policies read from the speed tables."""

from __future__ import annotations

import numpy as np

from rlpto.arrays import FloatArray
from rlpto.jobs import JobTable


def unit_speed(jobs: JobTable) -> FloatArray:
    """[n] work per second and GPU on min_gpus GPUs: the unit of speed-ups, one GPU's speed for most jobs."""
    lowest = jobs.min_gpus
    speed: FloatArray = jobs.speed[np.arange(len(jobs)), lowest] / lowest
    return speed
