"""Figures and tables of a trace."""

from __future__ import annotations

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from rlpto.io.arrays import FloatArray
from rlpto.io.durations import span_text
from rlpto.io.errors import TraceError
from rlpto.workloads.load import DURATION_CAP_S, offered_load
from rlpto.workloads.trace import Trace

HOUR, DAY = 3600.0, 86400.0
HOURS_OF_WEEK = 168
_SIZES = {"1 GPU": 1, "2": 2, "to 4": 4, "to 8": 8, "to 16": 16, "to 32": 32}
_TEXTS = {"gpu_type": "GPU type", "service_class": "service class"}
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


def figures(trace: Trace, capacity: int | None = None) -> dict[str, str]:
    """Return every known figure of a trace, as text by its label.

    The span is the time from the first to the last submission. Busiest and quietest hour of the week, in mean jobs per
    hour, are included for spans of a week or more. capacity: GPUs of a cluster, to add the offered load over the span,
    with durations cut at a day. Raises TraceError if the trace is empty.
    """
    if len(trace) == 0:
        raise TraceError(f"{trace.source}: no jobs to describe")
    submit = trace.submit_time
    span = float(submit[-1] - submit[0])
    begin = None if trace.origin is None else (trace.origin + np.timedelta64(round(submit[0] * 1000), "ms")).floor("s")
    per_hour = f"{len(trace) / span * HOUR:.2f}" if span > 0 else "unknown"
    found = {"jobs": f"{len(trace):,}", "begin (local)": "unknown" if begin is None else str(begin)}
    found |= {"span": span_text(span), "jobs per hour": per_hour}
    if span >= 7 * DAY:
        profile = hour_of_week_profile(trace)
        found["hour of week"] = f"{profile.min():.1f} to {profile.max():.1f} jobs"
    gpu_hours = float(np.nansum(trace.duration * trace.gpus)) / HOUR
    found["GPU-hours"] = f"{gpu_hours:,.0f}"
    found["GPU-hours per day"] = f"{gpu_hours / span * DAY:,.0f}" if span > 0 else "unknown"
    named = (len({text for text in trace.texts(column) if text}) for column in ("user", "group", "model"))
    found["users, groups, models"] = ", ".join(f"{count:,}" for count in named)
    if unknown := int(np.count_nonzero(~np.isfinite(trace.duration))):
        found["unknown durations"] = f"{unknown:,}"
    if capacity and span > 0:
        load = offered_load(trace.gpus, trace.duration, capacity, span)
        found[f"load on {capacity:,} GPUs"] = f"{load:.2f} (durations cut at {span_text(DURATION_CAP_S)})"
    return found


def summary(trace: Trace, capacity: int | None = None) -> dict[str, str]:
    """Return the figures by which traces are compared, as text by label. All traces have the same figures.

    They include shares of jobs by requested GPUs, and the share of GPU-time of the 1 % of jobs with most GPU-time.
    capacity: GPUs of a cluster, to add the offered load. Durations are cut at a day. Raises TraceError if the trace is
    empty.
    """
    if len(trace) == 0:
        raise TraceError(f"{trace.source}: no jobs to describe")
    span = float(trace.submit_time[-1] - trace.submit_time[0])
    known = trace.duration[np.isfinite(trace.duration)]
    counts = np.bincount(np.searchsorted([*_SIZES.values()], trace.gpus), minlength=len(_SIZES) + 1)
    work = np.sort(np.nan_to_num(np.minimum(trace.duration, DURATION_CAP_S)) * trace.gpus)
    found = {"jobs": f"{len(trace):,}", "span": span_text(span)}
    for label, figure in (("median", np.median), ("mean", np.mean)):
        found[label] = span_text(float(figure(known))) if len(known) else "unknown"
    found |= {label: f"{count / len(trace):.1%}" for label, count in zip((*_SIZES, "more"), counts, strict=True)}
    found["top 1 %"] = f"{work[-max(len(work) // 100, 1) :].sum() / work.sum():.0%}" if work.any() else "unknown"
    if capacity:
        load = f"{offered_load(trace.gpus, trace.duration, capacity, span):.2f}" if span > 0 else "unknown"
        found[f"load on {capacity:,} GPUs"] = load
    return found


def hour_of_week_profile(trace: Trace) -> FloatArray:
    """Return the mean number of jobs [168] submitted in each hour of the week from Monday 0:00, from the first to the
    last submission; NaN for hours that the trace misses. A trace without known origin begins on a Monday at 0:00."""
    begin = 0.0
    if trace.origin is not None:
        begin = trace.origin.weekday() * 24 + (trace.origin - trace.origin.normalize()).total_seconds() / HOUR
    hours = np.floor(trace.submit_time / HOUR + begin).astype(np.int64)
    counted = np.bincount(hours % HOURS_OF_WEEK, minlength=HOURS_OF_WEEK)
    covered = np.bincount(np.arange(hours[0], hours[-1] + 1) % HOURS_OF_WEEK, minlength=HOURS_OF_WEEK)
    with np.errstate(invalid="ignore"):
        return np.where(covered > 0, counted / np.maximum(covered, 1), np.nan)


def tables(trace: Trace, capacity: int | None = None) -> Group:
    """Format `figures`, jobs by requested GPUs, and durations for the terminal. Raises TraceError without jobs."""
    facts = Table(title=Text(trace.source), show_header=False, title_justify="left")
    for label, text in figures(trace, capacity).items():
        facts.add_row(label, text)
    gpus = Table("GPUs", "jobs", "share", title="GPUs requested", title_justify="left")
    for number, count in zip(*np.unique(trace.gpus, return_counts=True), strict=True):
        gpus.add_row(str(number), f"{count:,}", f"{count / len(trace):.2%}")
    parts = [facts, gpus, *(_by_text(trace, *pair) for pair in _TEXTS.items() if any(trace.texts(pair[0])))]
    known = trace.duration[np.isfinite(trace.duration)]
    if not len(known):
        return Group(*parts)
    durations = Table("quantile", "duration", title="Durations", title_justify="left")
    for level, value in zip(QUANTILES, np.quantile(known, QUANTILES), strict=True):
        durations.add_row(f"{level:.0%}", span_text(float(value)))
    durations.add_row("mean", span_text(float(known.mean())))
    return Group(*parts, durations)


def _by_text(trace: Trace, column: str, title: str) -> Table:
    """Tabulate jobs and load by the text of a column. The load is the jobs' mean number of busy GPUs."""
    table = Table(title, "jobs", "GPU-hours", "load in GPUs", title=f"Load by {title}", title_justify="left")
    hours = trace.jobs.assign(hours=np.nan_to_num(trace.duration) * trace.gpus / HOUR).groupby(column)["hours"]
    span = float(trace.submit_time[-1] - trace.submit_time[0]) / HOUR
    found = hours.agg(["size", "sum"]).sort_values("sum", ascending=False, kind="stable")
    for text, jobs, total in found.itertuples():
        load = f"{total / span:,.1f}" if span > 0 else "unknown"
        table.add_row(Text(str(text) or "unknown"), f"{jobs:,}", f"{total:,.0f}", load)
    return table
