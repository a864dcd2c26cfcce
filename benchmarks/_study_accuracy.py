"""Cost of early accuracy: an index tuned for it and plans made for it, against the index tuned for JCT.

On test windows at load 1.1: times at which jobs have gained most of their accuracy, accuracy-hours lost, and GPUs held
by jobs that have gained 99 %. Also draws the plot of docs/accuracy.md; 20 CPU-minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import _common
import numpy as np
from _studies import TIME_ONLY, Part, Plan, Workload, config_file, finished, geometric_mean, shown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rlpto.core.records import RunRecord
from rlpto.evaluation.plots import empty_figure, in_our_style, line_styles, png
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.timeline import step_value
from rlpto.experiments.config import load_config
from rlpto.io.arrays import FloatArray

PLOT = _common.ROOT / "docs" / "images" / "gpus-against-accuracy.png"
LOAD = 1.1
REFERENCE = "index for JCT"
TIME_AND_SHORTFALL = (*TIME_ONLY, "reward.shortfall=8")
"""Of the weights 1, 3, 8 and shortfall alone, 8 kept both JCT and accuracy-hours low on validation windows."""
COMPARED_POLICIES: dict[str, tuple[str, tuple[str, ...]]] = {
    REFERENCE: ("index:weights={tuned}-jct.yaml", ()),
    "index for accuracy": ("index:weights={tuned}-accuracy.yaml", ()),
    "index for shortfall": ("index:weights={tuned}-shortfall.yaml", ()),
    "planner for time": ("planner:base={tuned}-jct.yaml", TIME_ONLY),
    "planner for both": ("planner:base={tuned}-jct.yaml", TIME_AND_SHORTFALL),
}
"""By name in the tables: the policy, and the overrides of the reward, which plans maximise."""
PLANNED_WINDOWS: dict[Workload, int] = {"synthetic": 6, "pollux": 24}
"""Number of windows for planners and their comparison; planners take a hundred times the index's time."""
COMPARED = {
    "jct_mean": "JCT",
    "time_to_90": "to 90 %",
    "time_to_95": "to 95 %",
    "time_to_99": "to 99 %",
    "accuracy_hours_lost": "hours lost",
}
STAGES = ("to 90 %", "90 to 95 %", "95 to 99 %", "past 99 %")
"""Stages of the accuracy that a job can gain, from its first GPU to its end."""
HELD = "GPUs over peak past 99 %"
SOON, LITTLE_LOST = ("time_to_95", "jct_mean"), ("accuracy_hours_lost", "jct_mean", HELD)
CLAIMED = {
    "index for accuracy": SOON,
    "index for shortfall": LITTLE_LOST,
    "planner for time": SOON,
    "planner for both": LITTLE_LOST,
}
"""Figures with claims."""


def held_by_stage(record: RunRecord) -> FloatArray:
    """[2, STAGES] GPU-seconds that jobs held in each stage of their accuracy, and would have held with their peak GPUs.

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


def compared(plan: Plan) -> Part:
    """Ratios to the reference on the same windows and seeds, and the plot."""
    found = Part()
    shares: dict[str, dict[str, FloatArray]] = {}
    for workload in plan.workloads:
        cells = {name: runs(plan, workload, *policy) for name, policy in COMPARED_POLICIES.items()}
        reference = {(one.cell.window, one.cell.seed): one.metrics for one in cells[REFERENCE]}
        shares[workload] = {}
        for name, done in cells.items():
            held, peak = np.sum([held_by_stage(one.record()) for one in done], axis=0)
            shares[workload][name] = held / peak
            reached: dict[str, float] = {HELD: float((held / peak)[-1])}
            row: dict[str, object] = {"workload": workload, "policy": name, "runs": len(done)}
            for metric, label in COMPARED.items():
                logs = [np.log(one.metrics[metric] / reference[one.cell.window, one.cell.seed][metric]) for one in done]
                ratio = geometric_mean(np.array(logs))
                reached[metric] = ratio.estimate
                row[label] = shown(ratio, ".3f") if name != REFERENCE else "1"
            found.rows.append(row | {HELD: f"{reached[HELD]:.2f}"})
            for metric in CLAIMED.get(name, ()):
                found.figures[f"{workload}, {name}: {COMPARED.get(metric, metric)}"] = round(reached[metric], 3)
    if plan.split == "test":
        PLOT.write_bytes(png(shares_by_stage(shares)))
    return found


def runs(plan: Plan, workload: Workload, spec: str, rewarded: tuple[str, ...]) -> list[FinishedCell]:
    """Cells of a policy on all windows, or on fewer windows if it is a planner."""
    limit = [f"workload.windows.limit={PLANNED_WINDOWS[workload]}"] if rewarded else []
    config = load_config(config_file(workload), [f"workload.load={LOAD}", *rewarded, *limit])
    given = spec.format(tuned=_common.CONFIGS / "tuned" / workload)
    return finished(plan, config, [given], f"accuracy-{workload}", range(plan.seeds))


def shares_by_stage(shares: Mapping[str, Mapping[str, FloatArray]]) -> Figure:
    """GPUs held relative to the job's peak in each stage of the accuracy: a line per policy, a panel per workload."""
    drawn = empty_figure(9.0, 3.9)
    styles = line_styles(COMPARED_POLICIES)
    panels: Sequence[Axes] = drawn.subplots(1, len(shares), sharey=True)
    for axes, (workload, lines) in zip(panels, shares.items(), strict=True):
        for name, share in lines.items():
            axes.plot(STAGES, share, marker="o", markersize=4, label=name, **styles[name])
        in_our_style(axes)
        axes.set_title(workload, fontsize=10, loc="left")
        axes.set_xlabel("share of the accuracy gain reached")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(0, 1)
    panels[0].set_ylabel("GPUs held, of the job's peak")
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False, fontsize=9)
    return drawn
