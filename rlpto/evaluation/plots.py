"""Plots of an evaluation, one colour per policy throughout, and of profiles; figures without global state."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import (
    EngFormatter,
    FixedFormatter,
    FixedLocator,
    LogLocator,
    NullLocator,
    PercentFormatter,
    StrMethodFormatter,
)

from rlpto.core.records import RunRecord
from rlpto.core.rewards import HOUR, REWARD_PARTS
from rlpto.evaluation.metrics import LOWER_BOUND, completion_times
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.statistics import LEVEL, Interval
from rlpto.evaluation.tables import Results, Summary
from rlpto.evaluation.timeline import gpus_by_accuracy, run_span, utilisation
from rlpto.io.arrays import FloatArray
from rlpto.io.files import whole_file
from rlpto.performance.profiles import Profile

COLOURS = (
    "#2f6db5", "#e07b28", "#3a9a5b", "#c8413b", "#8a63b8", "#8a5a44", "#d76fae",
    "#5f6b76", "#a9a12c", "#2aa7b8", "#1f3f77", "#f2b705", "#7fb069", "#5c1a4a",
)  # fmt: skip
"""Colours of policies, in order; with more policies they repeat with another line style."""

BOUND_COLOUR = "#9aa3ab"
PART_COLOURS = {
    "accuracy": "#3a9a5b",
    "time": "#c8413b",
    "resources": "#e0a13a",
    "rescale": "#8a63b8",
    "shortfall": "#4b87c8",
    "money": "#2aa7b8",
}
INK, FAINT = "#1f2933", "#dde3e8"
DPI = 150
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


def line_styles(policies: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour and pattern of the line of every policy."""
    patterns = ("-", "--", ":")
    return {
        policy: {"color": COLOURS[i % len(COLOURS)], "linestyle": patterns[i // len(COLOURS) % len(patterns)]}
        for i, policy in enumerate(policies)
    }


def records_by_policy(finished: Sequence[FinishedCell]) -> dict[str, list[RunRecord]]:
    """Records of every policy, read from disk, ordered by window and seed so that equal places pair."""
    records: dict[str, list[RunRecord]] = {}
    for done in sorted(finished, key=lambda done: (done.cell.window, done.cell.seed)):
        records.setdefault(done.cell.policy, []).append(done.record())
    return records


def all_plots(results: Results, finished: Sequence[FinishedCell]) -> list[Plot]:
    """Every plot of the report, from the records of the finished cells. Raises CheckpointError if one is unreadable.

    Plots of a single run show the first window and seed, and those of a single policy the one with the best reward.
    """
    read = records_by_policy(finished)
    records = {summary.policy: read[summary.policy] for summary in results.policies}
    firsts = {policy: runs[0] for policy, runs in records.items()}
    best, first = next(iter(firsts.items()))
    run = f"window {first.window}, seed {first.seed}"
    return [
        Plot(
            "reward",
            "Reward and its parts",
            f"Mean over cells. Bars: the parts; diamond: the total with its {LEVEL:.0%} interval. Right is better."
            + (" The lower bound bounds each part on its own." if results.bounded else ""),
            reward_bars(results.summaries),
        ),
        Plot(
            "jct_cdf",
            "Job completion times",
            "Share of jobs finished within a time after their submit, all cells pooled; further left is better. "
            + ("Grey: every job alone on the cluster. " if results.bounded else "")
            + "Curves that end below 100 % have unfinished jobs.",
            jct_cdf(records, results.bounded),
        ),
        Plot(
            "utilisation",
            "GPUs used over time",
            f"GPUs held as a share of the GPUs that were up ({run}).",
            utilisation_over_time(firsts),
        ),
        Plot(
            "gantt",
            f"Jobs under {best}",
            f"A row for each job in order of submission: a line from submit to finish, and bars while it holds GPUs, "
            f"whose colour is their number ({run}).",
            gantt(first),
        ),
        Plot(
            "gpus_by_accuracy",
            "GPUs against accuracy",
            "Mean GPUs a job holds while it passes each stage of its accuracy gain, from its start (0 %) to its "
            "finish (100 %); a falling curve gives converging jobs fewer GPUs.",
            gpus_against_accuracy(records),
        ),
    ]


def reward_bars(summaries: Sequence[Summary]) -> Figure:
    """Parts of the reward side by side from zero, the total as a diamond with its interval, a row per policy."""
    shown = [summary for summary in summaries if np.isfinite(summary.mean["reward"].estimate)]
    figure, axes = new_figure(height=1.5 + 0.42 * max(len(shown), 2))
    for row, summary in enumerate(shown):
        left, right = 0.0, 0.0
        for part in REWARD_PARTS:
            value = summary.mean[f"reward_{part}"].estimate
            axes.barh(row, value, left=right if value > 0 else left, height=0.62, color=PART_COLOURS[part],
                      alpha=0.45 if summary.is_bound else 0.9, label=part if row == 0 else None)  # fmt: skip
            left, right = (left, right + value) if value > 0 else (left + value, right)
        total = summary.mean["reward"]
        axes.errorbar(total.estimate, row, xerr=_error(total), fmt="D", color=INK, markersize=6, capsize=4,
                      markeredgecolor="white", label="total" if row == 0 else None, zorder=5)  # fmt: skip
    axes.axvline(0, color=INK, linewidth=0.9)
    _fit_bars(axes)
    axes.set_yticks(range(len(shown)), [summary.policy for summary in shown])
    axes.invert_yaxis()
    axes.set_xlabel("reward")
    axes.grid(axis="y", visible=False)
    _legend(figure, axes)
    return figure


def jct_cdf(records: Mapping[str, Sequence[RunRecord]], bounded: bool = True) -> Figure:
    """Share of all jobs finished within a time (log) after their submit, one line per policy, and the bound if there
    is one."""
    figure, axes = new_figure()
    times = {
        policy: np.concatenate([completion_times(record.jobs) for record in runs]) for policy, runs in records.items()
    }
    styles = line_styles(records)
    if bounded:
        bounds = [np.concatenate([record.jobs.alone_time for record in runs]) for runs in records.values()]
        alone = min(bounds, key=np.sum)  # of policies that may choose batch sizes it is lower
        times = {LOWER_BOUND: alone, **times}
        styles[LOWER_BOUND] = {"color": BOUND_COLOUR, "linestyle": "--"}
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


def utilisation_over_time(records: Mapping[str, RunRecord], bins: int = 120) -> Figure:
    """Share of the GPUs that were up held by jobs, one line per policy, averaged over short stretches of time."""
    figure, axes = new_figure()
    styles = line_styles(records)
    spans = {policy: run_span(record) for policy, record in records.items()}
    longest = max((end for _, end in spans.values() if np.isfinite(end)), default=0.0)
    for policy, record in records.items():
        start, end = spans[policy]
        if not end > start:
            continue
        # All policies are averaged over the same stretch, so that short runs do not look noisier than long ones.
        edges = np.linspace(start, end, max(2, round(bins * (end - start) / max(longest - start, 1e-9))) + 1)
        used = np.append(utilisation(record, edges), 0.0)
        axes.step((edges - start) / HOUR, used, where="post", label=policy, linewidth=1.4, alpha=0.9, **styles[policy])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlim(left=0)
    axes.set(ylim=(0, 1.03), xlabel="hours since the first submit", ylabel="GPUs used")
    _legend(figure, axes)
    return figure


def gantt(record: RunRecord, seconds: float | None = None) -> Figure:
    """A row for each job in order of submission: a line from submit to finish, and bars while it holds GPUs, whose
    colour is their number. seconds: shown since the first submit; None: all."""
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


def gpus_against_accuracy(records: Mapping[str, Sequence[RunRecord]], bins: int = 20) -> Figure:
    """Mean GPUs held while passing each stage of the accuracy gain, one line per policy."""
    figure, axes = new_figure()
    styles = line_styles(records)
    middles = (np.arange(bins) + 0.5) / bins
    for policy, runs in records.items():
        parts = [gpus_by_accuracy(record, bins) for record in runs]
        sums, weights = sum(p[0] for p in parts), sum(p[1] for p in parts)
        held = np.divide(sums, weights, out=np.full(bins, np.nan), where=np.asarray(weights) > 0)
        axes.plot(middles, held, marker="o", markersize=3.5, label=policy, **styles[policy])
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlim=(0, 1), xlabel="share of the accuracy gain reached", ylabel="mean GPUs per job")
    _legend(figure, axes)
    return figure


def throughput_panels(profiles: Mapping[str, Profile]) -> Figure:
    """Samples per second and GPU at each measured size, on as few nodes as measured: a panel a model, a line a kind."""
    columns = min(4, len(profiles))
    rows = math.ceil(len(profiles) / columns)
    figure = empty_figure(2.5 * columns, 1.8 * rows + 0.5)
    lines: dict[str, Artist] = {}
    for number, (name, profile) in enumerate(profiles.items(), 1):
        axes = figure.add_subplot(rows, columns, number)
        in_our_style(axes)
        for kind, law in profile.tables().items():
            seconds: dict[int, float] = {}
            for _, gpus, step in law.steps:  # by nodes where a size has several
                seconds.setdefault(gpus, step)
            speeds = [profile.batch.base / step / gpus for gpus, step in seconds.items()]
            known = list(lines).index(kind) if kind in lines else len(lines)
            (line,) = axes.plot(list(seconds), speeds, "o-", color=COLOURS[known % len(COLOURS)], ms=3, lw=1.2)
            lines.setdefault(kind, line)
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
    """The figure as PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def write_plots(plots: Sequence[Plot], folder: Path) -> None:
    """Write every plot as PNG to `folder`. Raises CheckpointError if a file cannot be written."""
    for plot in plots:
        with whole_file(folder / f"{plot.name}.png", "a plot") as unfinished:
            unfinished.write_bytes(png(plot.figure))


def new_figure(height: float = 3.7) -> tuple[Figure, Axes]:
    """An empty plot in the common style."""
    figure = empty_figure(6.8, height)
    axes = figure.add_subplot()
    in_our_style(axes)
    return figure, axes


def empty_figure(width: float, height: float) -> Figure:
    """A figure without axes. width, height: inches."""
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
    """Limit the x axis so that the huge intervals of very few cells do not squeeze the bars."""
    bars = [bar.get_bbox() for bar in axes.patches if isinstance(bar, Rectangle)]
    ends = [end for bar in bars for end in bar.intervalx if np.isfinite(end)]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    if high > low:
        margin = 0.5 * (high - low)
        left, right = axes.get_xlim()
        axes.set_xlim(max(left, low - margin), min(right, high + margin))


def _legend(figure: Figure, axes: Axes) -> None:
    """Legend above the plot, so that it never hides a line."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = math.ceil(len(labels) / math.ceil(len(labels) / 5))
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False,
                      fontsize=9, labelcolor=INK, handlelength=1.8, columnspacing=1.4)  # fmt: skip


def _error(interval: Interval) -> FloatArray:
    """[2, 1] distances to the bounds; 0 where there is no interval."""
    distances = np.array([[interval.estimate - interval.low], [interval.high - interval.estimate]])
    lengths: FloatArray = np.clip(np.nan_to_num(distances), 0.0, None)
    return lengths
