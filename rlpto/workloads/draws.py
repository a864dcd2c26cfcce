"""Several windows from one short workload: jobs drawn anew from those it has.

A benchmark of a few files of 160 jobs each is too small to learn from and to compare on. A window drawn
with replacement (a bootstrap: Efron, Annals of Statistics 1979) has the models, sizes and times of day of
its file, but is another one every time; drawing more or fewer jobs makes it heavier or lighter.
"""

from __future__ import annotations

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import TraceError
from rlpto.workloads.load import JITTER_S
from rlpto.workloads.trace import Trace, make_trace

ATTEMPTS = 200
"""So many draws are made for a window; the one whose work is nearest to the wanted load is taken."""
MOST_JOBS = 100_000
"""More jobs than this in a window are a mistake: the wanted work is out of proportion to that of the jobs."""


def draw_trace(trace: Trace, work: FloatArray, target: float | None, span: float, seed: tuple[int, ...]) -> Trace:
    """A window of `span` seconds with jobs drawn from `trace` with replacement, each moved by up to JITTER_S.

    work: [M] GPU-seconds of every job. target: GPU-seconds to draw; None: as many jobs as the trace has.
    A few jobs may hold most of the work, and drawing until the target is met would then make windows of
    three jobs and windows of a hundred. So as many jobs are drawn as have the wanted work on average, and
    of ATTEMPTS such draws the one nearest to it is taken. A job is called after the one it repeats and its
    place in the draw.

    Raises TraceError if the trace is empty, has jobs after `span`, or has none with work to reach a target.
    """
    if len(trace) == 0:
        raise TraceError(f"{trace.source}: no jobs to draw from")
    if trace.submit_time[-1] >= span:
        raise TraceError(
            f"{trace.source}: a job is submitted at {trace.submit_time[-1]:g} s, expected all within the {span:g} s "
            "of a drawn window (workload.windows.hours)"
        )
    rng = np.random.default_rng(seed)
    rows = rng.integers(len(trace), size=len(trace)) if target is None else _rows_of_work(trace, work, target, rng)
    moved = trace.submit_time[rows] + rng.uniform(-JITTER_S, JITTER_S, len(rows))
    columns = {name: trace.jobs[name].to_numpy()[rows] for name in trace.jobs.columns}
    columns["submit_time"] = np.clip(moved, 0.0, np.nextafter(span, 0.0))
    names = trace.texts("name")
    columns["name"] = np.array([f"{names[row]}+{k}" for k, row in enumerate(rows)], dtype=object)
    return make_trace(columns, source=trace.source, origin=trace.origin)


def _rows_of_work(trace: Trace, work: FloatArray, target: float, rng: np.random.Generator) -> IntArray:
    """Rows drawn with replacement whose work is near `target`."""
    if not work.any() or target / work.mean() > MOST_JOBS:
        raise TraceError(
            f"{trace.source}: jobs ask for {work.mean():.4g} GPU-s each, expected enough for {target:.4g} GPU-s "
            f"with at most {MOST_JOBS} jobs"
        )
    count = max(round(target / work.mean()), 1)
    best, distance = np.zeros(0, dtype=np.int64), np.inf
    for _ in range(ATTEMPTS):
        rows = rng.integers(len(trace), size=count)
        if (off := abs(float(work[rows].sum()) - target)) < distance:
            best, distance = rows, off
    return best
