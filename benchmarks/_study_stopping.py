"""Early stopping: epochs saved and accuracy lost on measured curves, and JCT on Pollux's workloads at load 1.1.

About three CPU-minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _cells import finished, shown
from _plan import Measured, Plan, Study, tuned

from rlpto.core.stopping import StopRule, has_flattened
from rlpto.evaluation.statistics import bootstrap_interval
from rlpto.io.arrays import FloatArray
from rlpto.performance.accuracy import metric_of, to_accuracy
from rlpto.performance.measurements import read_measurements

MODELS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
GUARDS = {"0.7": StopRule(), "0.5": StopRule(after=0.5), "none": StopRule(after=0)}
"""Rules by their guard."""
DEFAULT = "0.7"
SAVED, LOST_POINTS = 0.2, 0.5
"""Share of the epochs, and points of final accuracy, that the claims are about."""
LOAD = 1.1
Row = dict[str, Any]


def measured_runs(folder: Path, model: str) -> FloatArray:
    """[runs, epochs + 1] accuracy of every measured training of a model, from before the first epoch on."""
    values = read_measurements(folder / model).stacked("metric")
    metric = metric_of(model, values)
    return np.concatenate([np.full((len(values), 1), metric.untrained), to_accuracy(metric, values)], axis=1)


def stopped_at(rule: StopRule, accuracy: FloatArray) -> int:
    """Epoch at which a training [epochs + 1] ends; the rule sees one evaluation after the other, as of a real job."""
    declared = len(accuracy) - 1
    epochs = np.arange(declared + 1.0)
    fires = (e for e in range(1, declared) if has_flattened(rule, declared, epochs[: e + 1], accuracy[: e + 1]))
    return next(fires, declared)


def points_lost(runs: FloatArray, ends: list[int]) -> FloatArray:
    """[runs] points of accuracy between the best one of whole trainings and the best one until `ends`."""
    best = np.maximum.accumulate(runs, axis=1)
    return np.asarray(100 * (best[:, -1] - best[np.arange(len(runs)), ends]))


def curves(folder: Path) -> tuple[dict[str, float], list[Row]]:
    """Claims, and a row for each model: what is saved and lost under every guard."""
    rows: list[Row] = []
    saved, lost = np.zeros(len(MODELS)), np.zeros(len(MODELS))
    for i, model in enumerate(MODELS):
        runs = measured_runs(folder, model)
        declared = runs.shape[1] - 1
        row: Row = {"model": model, "runs": str(len(runs)), "epochs": str(declared)}
        for guard, rule in GUARDS.items():
            ends = [stopped_at(rule, run) for run in runs]
            points = points_lost(runs, ends)
            share = float(np.mean(1 - np.array(ends) / declared))
            row[f"saved, {guard}"] = f"{100 * share:.1f} %"
            row[f"lost, {guard}"] = f"{points.mean():.2f} ({points.max():.2f})"
            if guard == DEFAULT:
                saved[i], lost[i] = share, points.mean()
        fifth = [int(np.floor((1 - SAVED) * declared))] * len(runs)
        row["lost if cut by a fifth"] = f"{points_lost(runs, fifth).mean():.2f}"
        rows.append(row)
    saves, keeps = saved >= SAVED, lost <= LOST_POINTS
    return {
        "models of six that save a fifth of their epochs": float(saves.sum()),
        "models of six that lose half a point at most": float(keeps.sum()),
        "models of six that do both": float((saves & keeps).sum()),
    }, rows


def completion(plan: Plan) -> tuple[dict[str, float], list[Row]]:
    """A claim, and a row for each guard: ratios to no stopping, by window, with their intervals."""
    none = metrics(plan, None)
    rows: list[Row] = []
    figures = {}
    for guard, rule in GUARDS.items():
        found = metrics(plan, rule)
        row: Row = {"guard": guard}
        for name, label in (("jct_mean", "JCT"), ("gpu_hours", "GPU-hours")):
            ratio = bootstrap_interval(found[name].to_numpy() / none[name].to_numpy())
            row[label] = shown(ratio, ".3f")
            if guard == DEFAULT and name == "jct_mean":
                figures["JCT, of that without stopping: upper bound"] = ratio.high
        row["epochs saved"] = f"{100 * found['epochs_saved'].mean():.1f} %"
        row["points lost"] = f"{found['accuracy_lost'].mean():.2f}"
        rows.append(row)
    return figures, rows


def metrics(plan: Plan, rule: StopRule | None) -> pd.DataFrame:
    """Metrics of the tuned index at LOAD: a row a window."""
    chosen = [] if rule is None else [f"workload.mapping.stop={rule.model_dump_json()}"]
    config = plan.config("pollux", LOAD, *chosen)
    done = finished(plan, config, [tuned("pollux-jct")], "stopping", (config.seed,))
    return pd.DataFrame([one.metrics for one in done])


def measure(plan: Plan, _: Study) -> Measured:
    """Claims and tables; nothing without profiles and traces."""
    if plan.data is None:
        return Measured()
    (figures, of_models), (more, of_guards) = curves(plan.data / "profiles"), completion(plan)
    tables = {
        "Epochs saved and points of accuracy lost, by guard: mean over the measured trainings of a model (in brackets: "
        "the worst)": of_models,
        f"Tuned index on Pollux's workloads at load {LOAD}, {plan.windows} windows for testing: ratio to the same "
        "without stopping, mean by window with its 95 % interval": of_guards,
    }
    return Measured(figures | more, tables=tables)
