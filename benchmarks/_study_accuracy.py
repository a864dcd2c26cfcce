"""What it costs to have accuracy early: an index tuned for it and plans made for it, against the index tuned for JCT.

On test windows at load 1.1: the times at which jobs have gained most of their accuracy, accuracy-hours lost, and what
jobs still hold once they have gained 99 %. Draws the plot of docs/accuracy.md too; 20 CPU-minutes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import _common
import numpy as np
from _common import TIME_ONLY
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rlpto.core.records import RunRecord
from rlpto.evaluation.metrics import measure as metrics_of
from rlpto.evaluation.plots import in_our_style, palette, png
from rlpto.evaluation.timeline import step_value
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import FloatArray

PLOT = _common.ROOT / "docs" / "images" / "gpus-against-accuracy.png"
LOAD = 1.1
Rows = list[dict[str, object]]
WORKLOADS = ("synthetic", "pollux")
REFERENCE = "index for JCT"
TIME_AND_SHORTFALL = (*TIME_ONLY, "reward.shortfall=8")
"""Of 1, 3, 8 and shortfall alone, 8 kept both JCT and accuracy-hours low on validation windows."""
COMPARED_POLICIES: dict[str, tuple[str, tuple[str, ...]]] = {
    REFERENCE: ("index:weights={tuned}-jct.yaml", ()),
    "index for accuracy": ("index:weights={tuned}-accuracy.yaml", ()),
    "index for shortfall": ("index:weights={tuned}-shortfall.yaml", ()),
    "planner for time": ("planner:base={tuned}-jct.yaml", TIME_ONLY),
    "planner for both": ("planner:base={tuned}-jct.yaml", TIME_AND_SHORTFALL),
}
"""By the name in the tables: the policy, and what is rewarded, which plans go by."""
PLANNED_WINDOWS = {"synthetic": 6, "pollux": 24}
"""Planners run on so many of the windows, and are compared on those: they take a hundred times the index's time."""
COMPARED = {
    "jct_mean": "JCT",
    "time_to_90": "to 90 %",
    "time_to_95": "to 95 %",
    "time_to_99": "to 99 %",
    "accuracy_hours_lost": "hours lost",
}
STAGES = ("to 90 %", "90 to 95 %", "95 to 99 %", "past 99 %")
"""Of the accuracy that a job can gain, from its first GPU to its end."""
HELD = "GPUs over peak past 99 %"
RESAMPLES = 2000
SOON = (("time_to_95", 0.975), ("jct_mean", 1.01))
LITTLE_LOST = (("accuracy_hours_lost", 0.93), ("jct_mean", 1.06), (HELD, 0.8))
WANTED = {
    "index for accuracy": SOON,
    "index for shortfall": LITTLE_LOST,
    "planner for time": SOON,
    "planner for both": LITTLE_LOST,
}
"""What was aimed at: a figure is at most so much. Those of MISSED are not reached."""
MISSED = tuple(f"{workload}, index for accuracy: {COMPARED['time_to_95']}" for workload in WORKLOADS)


def held_by_stage(record: RunRecord) -> FloatArray:
    """[2, STAGES] GPU-seconds that jobs held in each stage of their accuracy, and what their peaks would have come to.

    Counted while GPUs are contended: unfinished jobs could use more than there are.
    """
    jobs, changes = record.jobs, record.changes
    ends = np.isfinite(jobs.finish_time)
    time = np.concatenate([jobs.submit_time, jobs.finish_time[ends]])
    order = np.argsort(time, kind="stable")
    time, wanted = time[order], np.concatenate([jobs.max_gpus, -jobs.max_gpus[ends]])[order].cumsum().astype(np.float64)
    found = np.zeros((2, len(STAGES)))
    for job in np.flatnonzero(ends).tolist():
        mine = changes.job == job
        at, gpus = changes.time[mine], changes.gpus[mine].astype(np.float64)
        begin, end = at[0], jobs.finish_time[job]
        borders = np.array(
            [begin, *(reached[job] for reached in (jobs.reached_90, jobs.reached_95, jobs.reached_99)), end]
        )
        inside = np.concatenate([time, at, borders])
        edges = np.unique(inside[(inside >= begin) & (inside <= end)])
        seconds = np.diff(edges) * (step_value(time, wanted, edges[:-1]) > record.capacity)
        stage = np.clip(np.searchsorted(borders, edges[:-1], side="right") - 1, 0, len(STAGES) - 1)
        found[0] += np.bincount(stage, seconds * step_value(at, gpus, edges[:-1]), len(STAGES))
        found[1] += np.bincount(stage, seconds * float(jobs.peak_gpus[job]), len(STAGES))
    return found


def runs(workload: str, split: str, seeds: int) -> dict[str, dict[tuple[str, int], RunRecord]]:
    """By policy, and by window and seed; planners on some of the windows."""
    found: dict[str, dict[tuple[str, int], RunRecord]] = {}
    for name, (spec, rewarded) in COMPARED_POLICIES.items():
        _common.progress(f"accuracy: {workload}, {name}")
        given = [f"workload.load={LOAD}", *rewarded]
        if rewarded:
            given.append(f"workload.windows.limit={PLANNED_WINDOWS[workload]}")
        experiment = Experiment(load_config(_common.CONFIGS / "results" / f"{workload}.yaml", given))
        policy = experiment.policy(spec.format(tuned=_common.CONFIGS / "tuned" / workload))
        cells = itertools.product(experiment.windows(split), range(seeds))
        found[name] = {cell: experiment.run_policy(policy, *cell) for cell in cells}
    return found


def ratio(values: FloatArray, reference: FloatArray) -> tuple[float, float, float]:
    """Geometric mean of the windows' ratios, with its 95 % interval by bootstrap over windows."""
    logs = np.log(values / reference)
    drawn = np.random.default_rng(0).integers(0, len(logs), (RESAMPLES, len(logs)))
    low, high = np.percentile(logs[drawn].mean(axis=1), [2.5, 97.5])
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def measure(data: Path | None, seeds: int = 2, split: str = "test") -> tuple[list[_common.Check], dict[str, Rows]]:
    """Checks, misses first, and the table; nothing without `data`, which has traces and profiles."""
    if data is None:
        return [], {}
    checks: list[_common.Check] = []
    rows: Rows = []
    shares: dict[str, dict[str, FloatArray]] = {}
    for workload in WORKLOADS:
        records = runs(workload, split, seeds)
        values = {name: {at: metrics_of(record) for at, record in cells.items()} for name, cells in records.items()}
        stages = {
            name: np.sum([held_by_stage(record) for record in cells.values()], axis=0)
            for name, cells in records.items()
        }
        shares[workload] = {name: held / peak for name, (held, peak) in stages.items()}
        for name in COMPARED_POLICIES:
            found: dict[str, float] = {HELD: float(shares[workload][name][-1])}
            row: dict[str, object] = {"workload": workload, "policy": name, "runs": len(values[name])}
            for metric, label in COMPARED.items():
                mine, other = (
                    np.array([values[which][cell][metric] for cell in values[name]]) for which in (name, REFERENCE)
                )
                found[metric], low, high = ratio(mine, other)
                row[label] = f"{found[metric]:.3f} [{low:.3f}, {high:.3f}]" if name != REFERENCE else "1"
            rows.append(row | {HELD: f"{found[HELD]:.2f}"})
            for metric, limit in WANTED.get(name, ()):
                label = f"{workload}, {name}: {COMPARED.get(metric, metric)}"
                checks.append(_common.Check(label, round(found[metric], 3), "", limit, False))
    if split == "test":
        PLOT.write_bytes(png(shares_by_stage(shares)))
    checks.sort(key=lambda check: check.name not in MISSED)
    return checks, {f"Ratios to the index tuned for JCT on the same windows and seeds, load {LOAD}": rows}


def shares_by_stage(shares: Mapping[str, Mapping[str, FloatArray]]) -> Figure:
    """What jobs hold of their peak in each stage of their accuracy, a line per policy, a panel per workload."""
    drawn = Figure(figsize=(9.0, 3.9), layout="constrained", facecolor="white")
    FigureCanvasAgg(drawn)
    colours = palette(list(COMPARED_POLICIES))
    panels: Sequence[Axes] = drawn.subplots(1, len(shares), sharey=True)
    for axes, (workload, lines) in zip(panels, shares.items(), strict=True):
        for name, share in lines.items():
            axes.plot(STAGES, share, marker="o", markersize=4, label=name, color=colours[name])
        in_our_style(axes)
        axes.set_title(workload, fontsize=10, loc="left")
        axes.set_xlabel("share of the accuracy gain reached")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(0, 1)
    panels[0].set_ylabel("GPUs held, of the job's peak")
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False, fontsize=9)
    return drawn
