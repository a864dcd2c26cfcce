"""Task volume of a trace: arrivals per interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from rlpto.io.arrays import FloatArray
from rlpto.io.errors import TraceError
from rlpto.workloads.trace import Trace

Measure = Literal["jobs", "gpus"]
"""What is counted: jobs, or the GPUs they ask for."""

MOST_INTERVALS = 10_000_000


@dataclass(frozen=True)
class TaskVolume:
    """counts: [T] per interval. step: its length [s]. start: local time of the first one; None if unknown."""

    counts: FloatArray
    step: float
    start: pd.Timestamp | None


def task_volume(trace: Trace, step: float, measure: Measure = "jobs", start: pd.Timestamp | None = None) -> TaskVolume:
    """Arrivals of a trace in intervals of `step` seconds, from the first job's to the last job's.

    Intervals begin at multiples of the step since midnight, as clocks show them.

    start: jobs before this local time are left out, which needs a trace with local times.

    Raises TraceError if no job is left, or `start` is given for a trace without local times.
    """
    origin = trace.origin
    if start is not None and origin is None:
        raise TraceError(f"{trace.source}: local times unknown, expected none or a trace that states them")
    # Without local times, second 0 is taken for midnight.
    since_midnight = 0.0 if origin is None else (origin - origin.normalize()).total_seconds()
    times = trace.submit_time + since_midnight
    first = -np.inf if start is None or origin is None else (start - origin.normalize()).total_seconds()
    kept = times >= first
    if not kept.any():
        raise TraceError(f"{trace.source}: no jobs{'' if start is None else f' from {start} on'}, expected some")
    if (times[kept][-1] - times[kept][0]) / step > MOST_INTERVALS:
        raise TraceError(f"{trace.source}: more than {MOST_INTERVALS:,} intervals of {step:g} s, expected longer ones")
    places = (times[kept] // step).astype(np.int64)
    weights = trace.gpus[kept].astype(np.float64) if measure == "gpus" else None
    counts = np.bincount(places - places[0], weights=weights).astype(np.float64)
    begins = None if origin is None else origin.normalize() + pd.Timedelta(seconds=float(places[0] * step))
    return TaskVolume(counts, step, begins)
