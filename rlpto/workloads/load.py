"""Offered load: the GPU-time that jobs request, and scaling a trace to a wanted load.

Jobs drawn at random are left out or repeated. Unlike changing durations or the clock, this keeps the distribution of
durations and GPUs and the shape of the day.

Several windows can also be drawn from one short workload, with replacement (a bootstrap: Efron, Annals of Statistics
1979). Each has the models, sizes and times of day of its file, and as many jobs as the wanted load needs.
"""

from __future__ import annotations

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import TraceError
from rlpto.workloads.trace import Trace, make_trace

DURATION_CAP_S = 86_400.0
"""Longer durations [s] are reduced to this before jobs run (`MappingSettings.max_duration`)."""
JITTER_S = 900.0
"""Largest shift [s] of a repeated job against the job it repeats, either way."""
ATTEMPTS = 200
"""Draws per window; the draw whose work is nearest to the wanted load is taken."""
MOST_JOBS = 100_000
"""Most jobs in a window. More would mean that the wanted work is out of proportion to the work of a job."""
MOST_SCALED_JOBS = 5_000_000
"""Most jobs of a whole trace at the wanted load, for the same reason."""


def offered_load(
    gpus: IntArray, duration: FloatArray, capacity: int, window_seconds: float, cap: float = DURATION_CAP_S
) -> float:
    """Return requested over available GPU-time: sum(min(duration, cap) x gpus) / (capacity x window).

    Unknown (NaN) durations count as 0.
    """
    return float(np.sum(_gpu_seconds(gpus, duration, cap)) / (capacity * window_seconds))


def _gpu_seconds(gpus: IntArray, duration: FloatArray, cap: float) -> FloatArray:
    return np.nan_to_num(np.minimum(duration, cap)) * gpus


def scale_load(
    trace: Trace,
    target_load: float,
    capacity: int,
    window_seconds: float,
    seed: int = 0,
    cap: float = DURATION_CAP_S,
) -> Trace:
    """Scale a trace that covers [0, window_seconds) to the offered load `target_load`.

    The load is met up to half of one job: jobs are taken in random order until the next would
    overshoot by more than stopping falls short. If all jobs are taken and load is still missing, they
    are taken again, with other names and times shifted by up to JITTER_S (inside the window).

    Raises TraceError if target or capacity are not above 0, the trace is empty or has no durations, or too many jobs
    would be needed.
    """
    if not (target_load > 0 and capacity > 0 and window_seconds > 0):
        raise TraceError(f"load {target_load} on {capacity} GPUs over {window_seconds} s, expected all above 0")
    work = _gpu_seconds(trace.gpus, trace.duration, cap)
    if not work.any():
        raise TraceError(
            f"{trace.source}: no job with a known duration, by which to scale the load: expected workload.load=null"
        )
    target = target_load * capacity * window_seconds
    _check_jobs(trace, work, target, MOST_SCALED_JOBS)
    rng = np.random.default_rng(seed)
    rows = np.sort(choose_rows(work, target, rng), kind="stable")
    again = np.arange(len(rows)) - np.searchsorted(rows, rows)
    submit = trace.submit_time[rows]
    shifted = np.clip(submit + rng.uniform(-JITTER_S, JITTER_S, len(rows)), 0.0, np.nextafter(window_seconds, 0.0))
    names = trace.texts("name")
    renamed = [f"{names[row]}+{k}" if k else names[row] for row, k in zip(rows, again, strict=True)]
    return _taken(trace, rows, np.where(again > 0, shifted, submit), renamed)


def _taken(trace: Trace, rows: IntArray, submit_time: FloatArray, names: list[str]) -> Trace:
    """Return the jobs of `rows` [n], which may repeat, with new times [n] and names."""
    columns = {name: trace.jobs[name].to_numpy()[rows] for name in trace.jobs.columns}
    columns |= {"submit_time": submit_time, "name": np.array(names, dtype=object)}
    return make_trace(columns, source=trace.source, origin=trace.origin)


def choose_rows(work: FloatArray, target: float, rng: np.random.Generator) -> IntArray:
    """Choose rows of `work` [M] in random order, whole rounds first, with a sum as near to `target` as one job allows.
    Every row appears n or n + 1 times. Rows without work are chosen as often as the others."""
    total = float(work.sum())
    rounds = int(target // total)
    order = rng.permutation(len(work))
    reached = np.cumsum(work[order])
    missing = target - rounds * total
    count = int(np.searchsorted(reached, missing))
    if count < len(work) and reached[count] - missing < missing - (reached[count - 1] if count else 0.0):
        count += 1
    return np.concatenate([np.tile(np.arange(len(work)), rounds), order[:count]])


def draw_trace(trace: Trace, work: FloatArray, target: float | None, span: float, seed: tuple[int, ...]) -> Trace:
    """Draw a window of `span` seconds with jobs of `trace`, with replacement, each moved by up to JITTER_S.

    work: [M] GPU-seconds of every job. target: GPU-seconds to draw. If None, draw as many jobs as the trace has. A few
    jobs may hold most of the work, and drawing until the target is met would then give windows of three jobs and of a
    hundred. Instead, the number of jobs that has the wanted work on average is drawn ATTEMPTS times, and the draw
    nearest to the target is taken. A job is named after the repeated job and its place in the draw.

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
    moved, names = trace.submit_time[rows] + rng.uniform(-JITTER_S, JITTER_S, len(rows)), trace.texts("name")
    inside = np.clip(moved, 0.0, np.nextafter(span, 0.0))
    return _taken(trace, rows, inside, [f"{names[row]}+{k}" for k, row in enumerate(rows)])


def _rows_of_work(trace: Trace, work: FloatArray, target: float, rng: np.random.Generator) -> IntArray:
    """Draw rows with replacement, with a total work near `target`."""
    _check_jobs(trace, work, target, MOST_JOBS)
    count = max(round(target / work.mean()), 1)
    best, distance = np.zeros(0, dtype=np.int64), np.inf
    for _ in range(ATTEMPTS):
        rows = rng.integers(len(trace), size=count)
        if (off := abs(float(work[rows].sum()) - target)) < distance:
            best, distance = rows, off
    return best


def _check_jobs(trace: Trace, work: FloatArray, target: float, most: int) -> None:
    """Raise TraceError if more than `most` jobs would be needed for the wanted work."""
    if not work.any() or target / work.mean() > most:
        raise TraceError(
            f"{trace.source}: jobs ask for {work.mean():.4g} GPU-s each, expected enough for {target:.4g} GPU-s "
            f"with at most {most} jobs"
        )
