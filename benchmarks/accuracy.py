"""What it costs to have accuracy early: an index tuned for it and plans made for it, against the index tuned for JCT.

    python benchmarks/accuracy.py [--seeds 2] [--split test] [--no-page]

On test windows at load 1.1: the times at which jobs have gained most of their accuracy, accuracy-hours lost, and what
jobs still hold once they have gained 99 %. Writes the measured part of docs/accuracy.md and its plot (20 CPU-minutes).
Exits 1 if a figure that the page claims is not reached.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence

import _common
import numpy as np
from _common import TIME_ONLY
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from systems import figure, table, write_block

from rlpto.core.records import RunRecord
from rlpto.evaluation.metrics import measure
from rlpto.evaluation.plots import in_our_style, palette, png
from rlpto.evaluation.timeline import step_value
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import FloatArray

PAGE = _common.ROOT / "docs" / "accuracy.md"
PLOT = _common.ROOT / "docs" / "images" / "gpus-against-accuracy.png"
LOAD = 1.1
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
MISSED = frozenset((workload, "index for accuracy", "time_to_95") for workload in WORKLOADS)


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
        print(f"{workload}, {name}", file=sys.stderr, flush=True)
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


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--seeds", type=int, default=2, help="repetitions of every window")
    arguments.add_argument("--split", default="test", choices=("test", "validation"))
    arguments.add_argument("--no-page", action="store_true", help="leave docs/accuracy.md as it is")
    options = arguments.parse_args()
    _common.needed(None, "profiles")
    claimed: list[_common.Check] = []
    missed: list[_common.Check] = []
    rows: list[dict[str, object]] = []
    shares: dict[str, dict[str, FloatArray]] = {}
    for workload in WORKLOADS:
        with _common.bad_input():
            records = runs(workload, options.split, options.seeds)
        values = {name: {cell: measure(record) for cell, record in cells.items()} for name, cells in records.items()}
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
                check = _common.Check(label, found[metric], "", limit, False)
                (missed if (workload, name, metric) in MISSED else claimed).append(check)
    if not options.no_page:
        write_block(PAGE, text_of(rows, claimed, missed))
        PLOT.write_bytes(png(shares_by_stage(shares)))
    _common.finish(claimed, options.json, missed=[f"{check.name} {check.value:.3f}" for check in missed])


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


def text_of(rows: list[dict[str, object]], claimed: list[_common.Check], missed: list[_common.Check]) -> str:
    """The measured part of the page, misses first."""
    aims = [
        {
            "aim": check.name,
            "measured": figure(round(check.value, 3)),
            "at most": figure(check.limit),
            "": "yes" if check.passed else "**missed**" if check in missed else "**no**",
        }
        for check in (*missed, *claimed)
    ]
    lines = ["`python benchmarks/accuracy.py` wrote what follows.", "", *table(aims), ""]
    lines += [f"Ratios to the index tuned for JCT on the same windows and seeds, load {LOAD}:", "", *table(rows)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
