"""Plots of an evaluation and of profiles; figures without global state.

A policy has the same colour in all plots. Among many policies only the agent and the reference are coloured, the rest
is grey.
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import BoundaryNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import (
    EngFormatter,
    FixedFormatter,
    FixedLocator,
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
    StrMethodFormatter,
)

from rlpto.core.records import RunRecord
from rlpto.core.rewards import HOUR, REWARD_PARTS
from rlpto.evaluation.convergence import FEWEST_DELAYS, STAGES, Convergence, convergence
from rlpto.evaluation.metrics import LOWER_BOUND, METRIC, completion_times, scale_for
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.statistics import LEVEL, Interval
from rlpto.evaluation.tables import Results, Summary
from rlpto.evaluation.timeline import run_span
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.files import whole_file
from rlpto.performance.profiles import Profile

COLOURS = (
    "#2f6db5", "#e07b28", "#3a9a5b", "#c8413b", "#8a63b8", "#8a5a44", "#d76fae",
    "#5f6b76", "#a9a12c", "#2aa7b8", "#1f3f77", "#f2b705", "#7fb069", "#5c1a4a",
)  # fmt: skip
"""Colours of policies, and of jobs, in order."""
MOST_COLOURED = 5
"""With more policies than this only the highlighted ones have a colour."""
REST = "#b9c1c8"
"""Colour of all other policies."""
BOUND_COLOUR = "#5f6b76"
PART_COLOURS = {
    "accuracy": "#3a9a5b",
    "time": "#c8413b",
    "resources": "#e0a13a",
    "rescale": "#8a63b8",
    "shortfall": "#4b87c8",
    "money": "#2aa7b8",
}
INK, FAINT = "#1f2933", "#dde3e8"
WIDTH = 4.8
"""Width of a plot [inches], at which text is readable on a phone, and in half of a wide window."""
DPI = 180
MOST_ROWS = 1024
"""Most GPUs in the picture of a run; a plot has fewer rows of pixels."""
BAR = 0.85
"""Height of a bar of a Gantt chart, in rows."""

_TIMES = {
    "1 s": 1.0, "10 s": 10.0, "1 min": 60.0, "10 min": 600.0, "1 h": 3600.0, "4 h": 14400.0,
    "1 d": 86400.0, "4 d": 345600.0, "16 d": 1382400.0, "64 d": 5529600.0,
}  # fmt: skip
"""Round times on a log axis [s]."""


@dataclass(frozen=True)
class Plot:
    """A figure with its file name (no ending), title and caption."""

    name: str
    title: str
    caption: str
    figure: Figure


def line_styles(policies: Iterable[str], highlighted: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the style of the line of every policy. highlighted: the policies that keep a colour among many."""
    ordered = dict.fromkeys([*highlighted, *policies])
    grey = set(ordered) - set(highlighted) if highlighted and len(ordered) > MOST_COLOURED else set()
    return {
        policy: {"color": REST, "linewidth": 1.0, "zorder": 2}
        if policy in grey
        else {"color": COLOURS[i % len(COLOURS)], "linewidth": 1.8, "zorder": 3}
        for i, policy in enumerate(ordered)
    }


def records_by_policy(finished: Sequence[FinishedCell]) -> dict[str, list[RunRecord]]:
    """Read the records of every policy from disk, ordered by window and seed: equal places of two policies pair."""
    records: dict[str, list[RunRecord]] = {}
    for done in sorted(finished, key=lambda done: (done.cell.window, done.cell.seed)):
        records.setdefault(done.cell.policy, []).append(done.record())
    return records


def all_plots(results: Results, finished: Sequence[FinishedCell], delays: Mapping[str, float]) -> list[Plot]:
    """Make every plot of the report from the records of finished cells. Raises CheckpointError for an unreadable one.

    delays: rescale delay by model [s]. Plots of a single run show the first window and seed.
    """
    read = records_by_policy(finished)
    records = {summary.policy: read[summary.policy] for summary in results.policies}
    firsts = {policy: runs[0] for policy, runs in records.items()}
    main = results.highlighted
    compared = {policy: firsts[policy] for policy in reversed(main)}
    first = firsts[main[0]]
    run = f"window {first.window}, seed {first.seed}"
    stages = {policy: convergence(runs, records[main[-1]], delays) for policy, runs in records.items()}
    return [
        Plot(
            "reward",
            "Reward and its parts",
            f"Mean over cells. Bars: the parts; diamond: the total with its {LEVEL:.0%} interval. Right is better."
            + (" The lower bound bounds each part on its own." if results.bounded else ""),
            reward_bars(results.summaries, main),
        ),
        Plot(
            "side_by_side",
            "The same hours under " + " and ".join(compared),
            f"Every GPU over time, in the colour of the job that holds it, and below the number of jobs that wait "
            f"({run}). A job has the same colour everywhere; white GPUs are idle.",
            side_by_side(compared),
        ),
        Plot(
            "jct_cdf",
            "Job completion times",
            "Share of jobs finished within a time after their submit, all cells pooled; further left is better. "
            + ("Dashed: every job alone on the cluster. " if results.bounded else "")
            + "Curves that end below 100 % have unfinished jobs.",
            jct_cdf(records, results.bounded, main),
        ),
        Plot(
            "gpus_by_accuracy",
            "GPUs against accuracy",
            "GPUs of a job in each stage of the accuracy it can gain over its GPUs at 50-80 %, geometric mean over "
            f"jobs that have held several and ran for {FEWEST_DELAYS} rescale delays; a falling curve gives converging "
            f"jobs fewer. {stages[main[0]].sentence(main[0], main[-1])}",
            gpus_against_accuracy(stages, main),
        ),
    ]


def reward_bars(summaries: Sequence[Summary], highlighted: Collection[str] = ()) -> Figure:
    """Plot the parts of the reward side by side from zero, the total as a diamond with its interval, a row per
    policy."""
    shown = [summary for summary in summaries if np.isfinite(summary.mean["reward"].estimate)]
    figure, axes = new_figure(height=1.2 + 0.32 * max(len(shown), 2))
    parts = [part for part in REWARD_PARTS if any(one.mean[f"reward_{part}"].estimate != 0.0 for one in shown)]
    for row, summary in enumerate(shown):
        left, right = 0.0, 0.0
        strong = summary.policy in highlighted or not highlighted
        for part in parts:
            value = summary.mean[f"reward_{part}"].estimate
            axes.barh(row, value, left=right if value > 0 else left, height=0.66, color=PART_COLOURS[part],
                      alpha=0.9 if strong else 0.4, label=part if row == 0 else None)  # fmt: skip
            left, right = (left, right + value) if value > 0 else (left + value, right)
        total = summary.mean["reward"]
        axes.errorbar(total.estimate, row, xerr=_error(total), fmt="D", color=INK, markersize=5, capsize=3,
                      markeredgecolor="white", label="total" if row == 0 else None, zorder=5)  # fmt: skip
    axes.axvline(0, color=INK, linewidth=0.9)
    _fit_bars(axes)
    axes.set_yticks(range(len(shown)), [summary.policy for summary in shown])
    styles = line_styles(highlighted)
    for label in axes.get_yticklabels():
        if label.get_text() in highlighted:
            label.set(color=styles[label.get_text()]["color"], fontweight="bold")
    axes.invert_yaxis()
    axes.set_xlabel("reward")
    axes.grid(axis="y", visible=False)
    _legend(figure, axes)
    return figure


def jct_cdf(
    records: Mapping[str, Sequence[RunRecord]], bounded: bool = True, highlighted: Sequence[str] = ()
) -> Figure:
    """Plot the share of all jobs finished within a time (log) after submission, one line per policy, and the bound if
    there is one."""
    figure, axes = new_figure()
    times = {
        policy: np.concatenate([completion_times(record.jobs) for record in runs]) for policy, runs in records.items()
    }
    styles = line_styles(records, highlighted)
    if bounded:
        bounds = [np.concatenate([record.jobs.alone_time for record in runs]) for runs in records.values()]
        times[LOWER_BOUND] = min(bounds, key=np.sum)  # lower for policies that may choose batch sizes
        styles[LOWER_BOUND] = {"color": BOUND_COLOUR, "linestyle": "--", "linewidth": 1.2}
    finished = {policy: np.sort(jcts[np.isfinite(jcts)]) for policy, jcts in times.items()}
    for policy, jcts in finished.items():
        if len(jcts):
            share = np.arange(1, len(jcts) + 1) / len(times[policy])
            axes.step(jcts, share, where="post", label=policy, **styles[policy])
    axes.set_xscale("log")
    shown = np.concatenate(list(finished.values()))
    if len(shown) and shown.max() > 0:
        axes.set_xlim(max(shown.min(), shown.max() * 1e-5) * 0.9, shown.max() * 1.1)
    axes.xaxis.set_major_locator(FixedLocator(list(_TIMES.values())))
    axes.xaxis.set_major_formatter(FixedFormatter(list(_TIMES)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(ylim=(0, 1.02), xlabel="JCT", ylabel="share of jobs")
    _legend(figure, axes)
    return figure


def side_by_side(records: Mapping[str, RunRecord], bins: int = 600) -> Figure:
    """Plot GPUs over time in the colours of their jobs, and below the waiting jobs: a column for each policy's run.

    All runs have the same jobs. bins: columns of pixels.
    """
    figure = empty_figure(2 * WIDTH, 4.4)
    panels = figure.subplots(2, len(records), sharex=True, sharey="row", squeeze=False, height_ratios=[3, 1])
    ends = [run_span(record) for record in records.values()]
    start, end = ends[0][0], max(end for _, end in ends)
    if not end > start:
        return figure
    edges = np.linspace(start, end, bins + 1)
    jct = {policy: completion_times(record.jobs) for policy, record in records.items()}
    means = {policy: float(np.nanmean(times)) for policy, times in jct.items() if np.isfinite(times).any()}
    scale = scale_for(METRIC["jct_mean"], means.values())
    hours = (edges - start) / HOUR
    for (policy, record), gpus, waiting in zip(records.items(), panels[0], panels[1], strict=True):
        holder, waits = gpu_map(record, (edges[1:] + edges[:-1]) / 2)
        colours = np.array([(1.0, 1.0, 1.0), *map(to_rgb, COLOURS)])
        picture = colours[np.where(holder < 0, 0, 1 + holder % len(COLOURS))]
        in_our_style(gpus)
        in_our_style(waiting)
        gpus.grid(visible=False)
        gpus.imshow(picture, aspect="auto", origin="lower", interpolation="nearest",
                    extent=(0.0, hours[-1], 0.0, float(record.capacity)))  # fmt: skip
        gpus.set_title(policy, loc="left", fontsize=11, fontweight="bold", color=INK)
        gpus.set_title(f"mean JCT {scale.number(means.get(policy, math.nan))} {scale.unit}", loc="right",
                       fontsize=11, color=INK)  # fmt: skip
        waiting.stairs(waits, hours, fill=True, color=REST)
        waiting.set(xlabel="hours", xlim=(0.0, hours[-1]))
        waiting.xaxis.set_major_locator(MaxNLocator(5))
        waiting.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    panels[0][0].set_ylabel("GPU")
    panels[1][0].set(ylabel="jobs waiting", ylim=(0, None))  # shared by all columns, therefore after drawing
    return figure


def gpu_map(record: RunRecord, times: FloatArray) -> tuple[IntArray, IntArray]:
    """Return the jobs that hold GPUs [GPUs, T], and the number of waiting jobs [T], at ascending `times` [T] s.

    GPUs are assigned in order of submission, regardless of the jobs' real nodes; the job of an idle GPU is -1. If there
    are more than MOST_ROWS GPUs, as many evenly spaced ones are returned.
    """
    jobs, changes = record.jobs, record.changes
    order = np.argsort(changes.time, kind="stable")
    upto = np.searchsorted(changes.time[order], times, side="right")
    held, before = np.zeros(len(jobs.names), dtype=np.int64), 0
    rows = np.linspace(0, record.capacity - 1, min(record.capacity, MOST_ROWS)).astype(np.int64)
    holder, waiting = np.full((len(rows), len(times)), -1), np.zeros(len(times), dtype=np.int64)
    for at, (time, end) in enumerate(zip(times, upto, strict=True)):
        latest = order[before:end]
        held[changes.job[latest]], before = changes.gpus[latest], end
        column = np.repeat(np.arange(len(held)), held)[: record.capacity]  # GPUs may be shared, or added later
        holder[rows < len(column), at] = column[rows[rows < len(column)]]
        waiting[at] = np.count_nonzero((jobs.submit_time <= time) & ~(jobs.finish_time <= time) & (held == 0))
    return holder, waiting


def gantt(record: RunRecord, seconds: float | None = None) -> Figure:
    """Plot a row for each job in order of submission: a line from submit to finish, and bars while it holds GPUs,
    coloured by their number. seconds: time shown from the first submit on. Default: the whole run."""
    figure, axes = new_figure()
    start, end = run_span(record)
    shown = seconds or end - start
    unit, name = (HOUR, "hours") if shown >= HOUR else (60.0, "minutes")
    jobs, order = record.jobs, np.argsort(record.changes.job, kind="stable")
    job, begin, gpus = record.changes.job[order], record.changes.time[order], record.changes.gpus[order]
    if len(job):
        until = np.where(np.append(job[1:] == job[:-1], False), np.append(begin[1:], end), end)
        levels = 2 ** np.arange(int(jobs.max_gpus.max()).bit_length() + 1)
        shades = ScalarMappable(BoundaryNorm(levels, 256), "viridis_r")
        gone = np.where(np.isfinite(jobs.finish_time), jobs.finish_time, end)
        axes.hlines(range(len(gone)), (jobs.submit_time - start) / unit, (gone - start) / unit, "#8b96a1",
                    linewidth=0.8, zorder=0.9)  # fmt: skip
        held = gpus > 0
        left, right = ((time[held] - start) / unit for time in (begin, until))
        low, high = job[held] - BAR / 2, job[held] + BAR / 2
        corners = np.array([[left, low], [right, low], [right, high], [left, high]]).transpose(2, 0, 1)
        axes.add_collection(PolyCollection(list(corners), linewidths=0, facecolors=shades.to_rgba(gpus[held])))
        figure.colorbar(shades, ax=axes, ticks=levels[:-1], format="%d", label="GPUs")
        axes.set(xlim=(0, shown / unit), ylim=(len(gone) - 0.3, -0.7))
    axes.set_yticks([])
    axes.set(xlabel=f"{name} since the first submit", ylabel="jobs in order of submission")
    return figure


def gpus_against_accuracy(found: Mapping[str, Convergence], highlighted: Sequence[str] = ()) -> Figure:
    """Plot the GPUs held in each stage of the accuracy, relative to the second stage, one line per policy, with the
    intervals of the highlighted policies."""
    figure, axes = new_figure()
    styles = line_styles(found, highlighted)
    stages = [f"{100 * low:.0f}-{high:.0%}" for low, high in pairwise(STAGES)]
    for policy, one in found.items():
        held = [interval.estimate for interval in one.held]
        axes.plot(stages, held, marker="o", markersize=3, label=policy, **styles[policy])
        if policy in highlighted:
            error = np.hstack([_error(interval) for interval in one.held])
            axes.errorbar(stages, held, error, fmt="none", ecolor=styles[policy]["color"], capsize=2)
    shown = [interval.estimate for one in found.values() for interval in one.held if np.isfinite(interval.estimate)]
    axes.axhline(1.0, color=INK, linewidth=0.8, zorder=1)
    axes.set(xlabel="share of the accuracy gained", ylabel="GPUs over those at 50-80%")
    axes.set_ylim(0, 1.4 * max(shown, default=1.0))  # intervals of few windows may be huge
    _legend(figure, axes)
    return figure


def throughput_panels(profiles: Mapping[str, Profile]) -> Figure:
    """Plot samples per second and GPU at each measured size, on the fewest measured nodes: a panel for each model, a
    line for each GPU type."""
    columns = min(4, len(profiles))
    rows = math.ceil(len(profiles) / columns)
    figure = empty_figure(2.5 * columns, 1.8 * rows + 0.5)
    lines: dict[str, Artist] = {}
    for number, (name, profile) in enumerate(profiles.items(), 1):
        axes = figure.add_subplot(rows, columns, number)
        in_our_style(axes)
        for gpu_type, law in profile.tables().items():
            seconds: dict[int, float] = {}
            for _, gpus, step in law.steps:  # several entries if a size was measured on different numbers of nodes
                seconds.setdefault(gpus, step)
            speeds = [profile.batch.base / step / gpus for gpus, step in seconds.items()]
            known = list(lines).index(gpu_type) if gpu_type in lines else len(lines)
            (line,) = axes.plot(list(seconds), speeds, "o-", color=COLOURS[known % len(COLOURS)], ms=3, lw=1.2)
            lines.setdefault(gpu_type, line)
        axes.set_title(name, fontsize=9)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=6))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(EngFormatter())
        axes.tick_params(labelsize=7)
    figure.supxlabel("GPUs", fontsize=9)
    figure.supylabel("samples/s per GPU", fontsize=9)
    figure.legend(list(lines.values()), list(lines), loc="outside upper center", ncols=6, frameon=False, fontsize=9)
    return figure


def png(figure: Figure) -> bytes:
    """Render the figure as PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def write_plots(plots: Sequence[Plot], folder: Path) -> None:
    """Write every plot as PNG to `folder`. Raises CheckpointError if a file cannot be written."""
    for plot in plots:
        with whole_file(folder / f"{plot.name}.png", "a plot") as unfinished:
            unfinished.write_bytes(png(plot.figure))


def new_figure(height: float = 3.3) -> tuple[Figure, Axes]:
    """Make an empty plot in the common style."""
    figure = empty_figure(WIDTH, height)
    axes = figure.add_subplot()
    in_our_style(axes)
    return figure, axes


def empty_figure(width: float, height: float) -> Figure:
    """Make a figure without axes. width, height: inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def in_our_style(axes: Axes) -> None:
    """Give a plot the common grid, lines and colours."""
    axes.set_axisbelow(True)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#8b96a1")
    axes.tick_params(colors=INK, labelsize=9, color="#8b96a1")
    axes.xaxis.label.set(color=INK, fontsize=10)
    axes.yaxis.label.set(color=INK, fontsize=10)


def _fit_bars(axes: Axes) -> None:
    """Limit the x axis, because huge intervals of very few cells would squeeze the bars."""
    bars = [bar.get_bbox() for bar in axes.patches if isinstance(bar, Rectangle)]
    ends = [end for bar in bars for end in bar.intervalx if np.isfinite(end)]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    if high > low:
        margin = 0.5 * (high - low)
        left, right = axes.get_xlim()
        axes.set_xlim(max(left, low - margin), min(right, high + margin))


def _legend(figure: Figure, axes: Axes) -> None:
    """Add a legend above the plot, where it hides no line."""
    handles, labels = axes.get_legend_handles_labels()
    entries: dict[str, Artist] = dict(zip(labels, handles, strict=True))
    grey = [label for label, handle in entries.items() if isinstance(handle, Line2D) and handle.get_color() == REST]
    if len(grey) > 1:
        entries[f"{len(grey)} other policies"] = entries[grey[0]]
        entries = {label: handle for label, handle in entries.items() if label not in grey}
    if entries:
        columns = math.ceil(len(entries) / math.ceil(len(entries) / 4))
        figure.legend(list(entries.values()), list(entries), loc="outside upper left", ncols=columns, frameon=False,
                      fontsize=9, labelcolor=INK, handlelength=1.4, columnspacing=1.1)  # fmt: skip


def _error(interval: Interval) -> FloatArray:
    """Return the distances [2, 1] to the bounds; 0 without an interval."""
    distances = np.array([[interval.estimate - interval.low], [interval.high - interval.estimate]])
    lengths: FloatArray = np.clip(np.nan_to_num(distances), 0.0, None)
    return lengths
