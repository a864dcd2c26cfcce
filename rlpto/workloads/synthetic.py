"""Generate traces with the statistics of a measured trace, and users for traces without recorded users."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.errors import TraceError
from rlpto.workloads.calibration import (
    HOURS_OF_WEEK,
    LARGEST_SUBMISSION,
    LEVELS,
    Calibration,
    DurationCurve,
    GpuClass,
)
from rlpto.workloads.trace import Trace, make_trace

HOUR, DAY = 3600.0, 86400.0
MONDAY = pd.Timestamp("2018-01-01")
"""Local time of second 0 of a generated trace."""
LONGEST_DAYS = 3650.0
LARGEST_RATE = 1000.0
MOST_JOBS = 5_000_000
"""Most jobs of a generated trace. A day has hundreds or thousands of jobs."""
SUBMISSION_PAUSE_S = 60.0
"""Longest pause [s] between two jobs of one virtual cluster and size within one submission."""
ERROR = 0.5
"""Standard deviation of the error in the ranks of submissions, relative to the standard deviation of log durations. The
mean of a user's other jobs then explains 0.6 of the variance of log durations within windows, for Philly's jobs and for
synthetic jobs. In Philly, whose file has no users, the log durations of successive jobs of one virtual cluster and size
correlate by 0.7 if an hour or more lies between them, by 0.9 within a submission."""
_CLASS_BOUNDS = (1, 2, 4, 8)
_SIZE_BOUNDS = (1, 10, 100)
_CURVE_SUBMISSIONS = 10
"""Least submissions for a duration curve; rarer sizes share the curve of the next smaller ones."""


def calibrate(
    trace: Trace, name: str = "custom", source: str | None = None, start: pd.Timestamp | None = None
) -> Calibration:
    """Compute the statistics of a trace, from `start` (a date; default: the trace's first whole day) on.

    Only whole days count: up to the midnight nearest to the last submission. Figures are rounded to
    four digits, which keeps their file readable and the same on every machine. A trace without known
    origin is taken to begin on a Monday at 0:00.

    Raises TraceError if `start` is before the trace, less than a week is left, no job has a duration, or a submission
    has too many jobs.
    """
    origin = MONDAY if trace.origin is None else trace.origin
    begin = (origin if start is None else start).ceil("D")
    end = (origin + pd.Timedelta(seconds=float(trace.submit_time.max(initial=0.0)))).round("D")
    days = (end - begin).days
    if begin < origin.floor("D"):
        raise TraceError(f"{trace.source}: begins on {origin.date()}, expected --start to be no earlier")
    if days < 7:
        raise TraceError(f"{trace.source}: {max(days, 0)} whole days from {begin.date()} on, expected at least 7")
    offset = (begin - origin).total_seconds()
    submit = trace.submit_time - offset
    inside = (submit >= 0) & (submit < days * DAY) & (trace.duration > 0)
    if not inside.any():
        raise TraceError(f"{trace.source}: no job with a known duration, which a calibration needs")
    jobs = mark_submissions(trace.jobs.assign(submit_time=submit)[inside])
    if (largest := int(jobs["size"].max())) > LARGEST_SUBMISSION:
        raise TraceError(
            f"{trace.source}: {largest:,} jobs of one size at most {SUBMISSION_PAUSE_S:g} s apart, expected at most "
            f"{LARGEST_SUBMISSION:,}"
        )
    heads = jobs[jobs["head"]]
    day_sigma, day_correlation = _day_factors(heads["submit_time"].to_numpy(), begin.weekday(), days)
    gaps = jobs["gap"].to_numpy()[~jobs["head"].to_numpy()]
    return Calibration(
        name=name,
        source=trace.source if source is None else source,
        first_day=begin.date(),
        days=days,
        pause=SUBMISSION_PAUSE_S,
        gap=_rounded(gaps.mean()) if len(gaps) else 0.0,
        day_sigma=_rounded(day_sigma),
        day_correlation=_rounded(day_correlation),
        submissions_per_hour=_hourly_rates(heads["submit_time"].to_numpy(), begin.weekday(), days),
        classes=_classes(jobs, heads),
    )


def _hourly_rates(times: FloatArray, first_day: int, days: int) -> tuple[float, ...]:
    """Return the submissions in every hour of the week, divided by the number of times the hour occurred."""
    hour = (times // HOUR).astype(np.int64)
    covered = np.bincount((np.arange(days * 24) + first_day * 24) % HOURS_OF_WEEK, minlength=HOURS_OF_WEEK)
    counted = np.bincount((hour + first_day * 24) % HOURS_OF_WEEK, minlength=HOURS_OF_WEEK)
    return tuple(_rounded(rate) for rate in counted / covered)


def _day_factors(times: FloatArray, first_day: int, days: int) -> tuple[float, float]:
    """Return standard deviation and lag-1 correlation of log daily submissions, without day of week and Poisson noise.

    The log of a Poisson count n has a variance of about 1/n, which is subtracted. Noise of separate days is
    independent and therefore absent from the covariance. Both results are limited to a calibration's valid range.
    """
    counts = np.maximum(np.bincount((times // DAY).astype(np.int64), minlength=days), 0.5)
    weekday = (np.arange(days) + first_day) % 7
    logs = np.log(counts)
    means = np.bincount(weekday, weights=logs, minlength=7) / np.maximum(np.bincount(weekday, minlength=7), 1)
    left = logs - means[weekday]
    variance = float(left @ left) / max(days - 7, 1) - float(np.mean(1 / counts))
    if variance <= 0:
        return 0.0, 0.0
    covariance = float(left[1:] @ left[:-1]) / max(days - 8, 1)
    return min(float(np.sqrt(variance)), 3.0), float(np.clip(covariance / variance, 0.0, 0.95))


def _classes(jobs: pd.DataFrame, heads: pd.DataFrame) -> tuple[GpuClass, ...]:
    """Return the statistics of jobs with 1, 2, up to 4, up to 8 and more GPUs."""
    job_class = np.searchsorted(_CLASS_BOUNDS, jobs["gpus"].to_numpy())
    head_class = np.searchsorted(_CLASS_BOUNDS, heads["gpus"].to_numpy())
    found = []
    for number in np.unique(head_class):
        mine, first = jobs[job_class == number], heads[head_class == number]
        shares = first["gpus"].value_counts(normalize=True).sort_index()
        durations = _duration_curves(mine)
        found.append(
            GpuClass(
                gpus={int(gpus): _rounded(share) for gpus, share in shares.items()},
                submissions=_rounded(len(first) / len(heads)),
                jobs=_quantiles(first["size"].to_numpy(dtype=np.float64)),
                durations=durations,
                likeness=_likeness(mine, durations),
            )
        )
    return tuple(found)


def _curve_of(sizes: IntArray, bounds: Sequence[int]) -> IntArray:
    """Return the index [M] of the curve, among curves with these lower bounds, for a submission of `sizes` [M] jobs."""
    return np.searchsorted(bounds, sizes, side="right") - 1


def _duration_curves(jobs: pd.DataFrame) -> tuple[DurationCurve, ...]:
    """Return the durations by size of submission. Sizes with too few submissions join the next smaller size, and the
    smallest sizes that occur have the curve of single jobs."""
    heads = jobs.loc[jobs["head"], "size"].to_numpy()
    bounds = [1]
    for bound, above in zip(_SIZE_BOUNDS[1:], (*_SIZE_BOUNDS[2:], np.inf), strict=True):
        if np.count_nonzero((heads >= bound) & (heads < above)) >= _CURVE_SUBMISSIONS and heads.min() < bound:
            bounds.append(bound)
    curve = _curve_of(jobs["size"].to_numpy(dtype=np.int64), bounds)
    seconds = jobs["duration"].to_numpy(dtype=np.float64)
    return tuple(
        DurationCurve(submission_jobs=bound, seconds=_quantiles(seconds[curve == i])) for i, bound in enumerate(bounds)
    )


def _likeness(jobs: pd.DataFrame, durations: Sequence[DurationCurve]) -> float:
    """Return the share of the variance of durations (normal scores within a curve) that lies between submissions."""
    curve = pd.Series(_curve_of(jobs["size"].to_numpy(dtype=np.int64), [d.submission_jobs for d in durations]))
    seconds = pd.Series(jobs["duration"].to_numpy())
    ranks = seconds.groupby(curve).rank().to_numpy()
    scores = pd.Series(ndtri((ranks - 0.5) / seconds.groupby(curve).transform("size").to_numpy()))
    submission = pd.Series(jobs["submission"].to_numpy())
    together = (jobs["size"] > 1).to_numpy()
    freedom = int(together.sum()) - int(submission[together].nunique())
    if freedom < 1:
        return 0.0
    inside = (scores - scores.groupby(submission).transform("mean"))[together]
    return _rounded(float(np.clip(1.0 - float((inside**2).sum()) / freedom, 0.0, 0.99)))


def _quantiles(values: FloatArray) -> tuple[float, ...]:
    return tuple(_rounded(value) for value in np.exp(np.quantile(np.log(values), LEVELS)))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def generate(calibration: Calibration, days: float, seed: int, rate_scale: float = 1.0) -> Trace:
    """Draw a trace of `days` days that begins on a Monday at 0:00.

    Submissions are a Poisson process whose rate is the rate of the hour of the week times a log-normal
    factor of the day (mean 1, first-order autoregressive) times rate_scale. Each submission has a class,
    a GPU count, a number of jobs and a gap between them; the durations of its jobs are drawn from the
    class's curve with normal scores that correlate by `likeness`. Jobs submitted after the end of the
    trace are left out, even if their submission began before. The column user numbers the submissions.

    Raises TraceError if days or rate_scale are not above 0, or the trace would have no jobs, or far too many.
    """
    if not (0 < days <= LONGEST_DAYS and 0 < rate_scale <= LARGEST_RATE):
        raise TraceError(
            f"synthetic trace: days {days}, rate_scale {rate_scale}, expected both above 0, "
            f"at most {LONGEST_DAYS:g} days at {LARGEST_RATE:g} times the rate"
        )
    expected = float(np.mean(calibration.submissions_per_hour)) * 24 * days * rate_scale
    if expected > MOST_JOBS:
        raise TraceError(f"synthetic trace: about {expected:.3g} submissions, expected at most {MOST_JOBS:,}")
    rng = np.random.default_rng(seed)
    begin = _submission_times(calibration, days, rate_scale, rng)
    shares = np.array([group.submissions for group in calibration.classes])
    chosen = rng.choice(len(shares), size=len(begin), p=shares / shares.sum())
    drawn = [
        _jobs_of_class(calibration, group, begin, np.flatnonzero(chosen == number), rng)
        for number, group in enumerate(calibration.classes)
    ]
    submit, duration, gpus, submission = (np.concatenate([part[i] for part in drawn]) for i in range(4))
    inside = np.flatnonzero(submit < days * DAY)
    inside = inside[np.argsort(submit[inside], kind="stable")]
    if len(inside) == 0:
        raise TraceError(f"synthetic trace: not a single job in {days:g} days, expected more days or a higher rate")
    columns: dict[str, AnyArray] = {
        "submit_time": submit[inside],
        "gpus": gpus[inside],
        "duration": duration[inside],
        "name": np.array([f"{calibration.name}-{i:06d}" for i in range(len(inside))], dtype=object),
        "user": np.array([f"submission-{i:06d}" for i in submission[inside].tolist()], dtype=object),
    }
    return make_trace(columns, source=f"synthetic ({calibration.name}, seed {seed})", origin=MONDAY)


def _submission_times(calibration: Calibration, days: float, rate_scale: float, rng: np.random.Generator) -> FloatArray:
    """Draw ascending times [s] of a Poisson process with hourly rates and a factor for every day."""
    hours = int(np.ceil(days * 24))
    per_hour = np.array(calibration.submissions_per_hour)[np.arange(hours) % HOURS_OF_WEEK]
    factor = _daily_factors(calibration, int(np.ceil(days)), rng)
    counts = rng.poisson(per_hour * np.repeat(factor, 24)[:hours] * rate_scale)
    times = (np.repeat(np.arange(hours), counts) + rng.random(counts.sum())) * HOUR
    return np.sort(times[times < days * DAY])


def _daily_factors(calibration: Calibration, days: int, rng: np.random.Generator) -> FloatArray:
    """Draw log-normal factors [days] of mean 1."""
    noise = rng.standard_normal(days)
    rho = calibration.day_correlation
    state = np.empty(days)
    state[0] = noise[0]
    for day in range(1, days):
        state[day] = rho * state[day - 1] + np.sqrt(1 - rho**2) * noise[day]
    sigma = calibration.day_sigma
    return np.exp(sigma * state - sigma**2 / 2)


def _jobs_of_class(
    calibration: Calibration, group: GpuClass, begin: FloatArray, mine: IntArray, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, IntArray, IntArray]:
    """Draw submit time [s], duration [s], GPUs and number of the submission, for all jobs of a class.

    begin: [S] start of every submission [s]. mine: indices of the submissions of this class.
    """
    count = len(mine)
    sizes = np.rint(_at(group.jobs, rng.random(count))).astype(np.int64)
    if sizes.sum() > MOST_JOBS:
        raise TraceError(f"synthetic trace: {sizes.sum():,} jobs, expected at most {MOST_JOBS:,}: fewer days")
    counts = np.array(list(group.gpus), dtype=np.int64)
    shares = np.array(list(group.gpus.values()))
    gpus = rng.choice(counts, size=count, p=shares / shares.sum())
    gaps = np.minimum(rng.exponential(calibration.gap, size=sizes.sum()), calibration.pause)
    since = np.concatenate(([0.0], np.cumsum(gaps)))
    of = np.repeat(np.arange(count), sizes)
    submit = begin[mine][of] + since[:-1] - since[np.cumsum(sizes) - sizes][of]
    scores = np.sqrt(group.likeness) * rng.standard_normal(count)[of]
    level = ndtr(scores + np.sqrt(1 - group.likeness) * rng.standard_normal(len(of)))
    curve = _curve_of(sizes[of], [durations.submission_jobs for durations in group.durations])
    duration = np.empty(len(of))
    for number, durations in enumerate(group.durations):
        duration[curve == number] = _at(durations.seconds, level[curve == number])
    return submit, duration, gpus[of], mine[of]


def _at(quantiles: Sequence[float], level: FloatArray) -> FloatArray:
    """Return the values of a quantile curve, interpolated linearly in the logarithm."""
    return np.asarray(np.exp(np.interp(level, LEVELS, np.log(quantiles))))


def mark_submissions(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return the jobs with the columns submission (number), head (first job), gap (s since the last), size (jobs)."""
    jobs = jobs.sort_values(["group", "user", "gpus", "submit_time"], kind="stable")
    same = (jobs[["group", "user", "gpus"]] == jobs[["group", "user", "gpus"]].shift()).all(axis=1)
    gap = jobs["submit_time"].diff()
    head = ~(same & (gap <= SUBMISSION_PAUSE_S))
    submission = head.cumsum()
    size = submission.groupby(submission).transform("size")
    return jobs.assign(submission=submission, head=head, gap=gap, size=size)


def cluster_users(trace: Trace, seed: int) -> IntArray:
    """Assign a user number [M] to every job of a trace; the same seed gives the same users.

    Jobs of a submission (`mark_submissions`; in a generated trace, jobs drawn as one submission) have one user. The n
    submissions of a virtual cluster are ranked by the mean logarithm of their durations with an error, and divided by
    rank among ceil(sqrt(n)) users: each gets neighbouring ranks, the k-th largest user 1/k times as many as the largest
    (Zipf). A few users thus submit most jobs, and jobs of a user take similar but not equal times (ERROR).
    Durations that are unknown, or below 1 s, count as 1 s.
    """
    if len(trace) == 0:
        return np.zeros(0, dtype=np.int64)
    rng = np.random.default_rng([seed, 4])
    log = np.log(np.maximum(np.nan_to_num(trace.duration), 1.0))
    marked = mark_submissions(trace.jobs.assign(log=log))
    found = marked.groupby("submission").agg(group=("group", "first"), log=("log", "mean"))
    score = found["log"].to_numpy() + ERROR * log.std() * rng.standard_normal(len(found))
    user, users = np.empty(len(found), dtype=np.int64), 0
    for rows in found.reset_index().groupby("group").indices.values():
        share = rng.permutation(1.0 / np.arange(1, np.ceil(np.sqrt(len(rows))) + 1))
        ends = np.cumsum(share) / share.sum() * len(rows)
        user[rows[np.argsort(score[rows], kind="stable")]] = users + np.searchsorted(ends, np.arange(len(rows)) + 0.5)
        users += len(share)
    of_job = np.empty(len(trace), dtype=np.int64)
    of_job[marked.index.to_numpy()] = user[marked["submission"].to_numpy() - 1]
    return of_job
