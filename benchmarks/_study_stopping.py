"""Early stopping: epochs saved and accuracy lost on measured curves, and JCT on Pollux's workloads at load 1.1.

About three CPU-minutes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from _studies import Part, Plan, Row, finished, shown, tuned

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
"""Share of the epochs saved, and points of final accuracy lost, in the claims."""
LOAD = 1.1
RATIOS = {"jct_mean": "JCT", "gpu_hours": "GPU-hours"}


def measured_runs(folder: Path, model: str) -> FloatArray:
    """[runs, epochs + 1] accuracy of every measured training of a model, from before the first epoch on."""
    values = read_measurements(folder / model).runs["metric"]
    metric = metric_of(model, values)
    return np.concatenate([np.full((len(values), 1), metric.untrained), to_accuracy(metric, values)], axis=1)


def stopped_at(rule: StopRule, accuracy: FloatArray) -> int:
    """Epoch at which a training [epochs + 1] ends; the rule sees the evaluations one by one, as for a real job."""
    declared = len(accuracy) - 1
    epochs = np.arange(declared + 1.0)
    fires = (e for e in range(1, declared) if has_flattened(rule, declared, epochs[: e + 1], accuracy[: e + 1]))
    return next(fires, declared)


def points_lost(runs: FloatArray, ends: list[int]) -> FloatArray:
    """[runs] points of accuracy between the best of a whole training and its best up to `ends`."""
    best = np.maximum.accumulate(runs, axis=1)
    return np.asarray(100 * (best[:, -1] - best[np.arange(len(runs)), ends]))


def curves(plan: Plan) -> Part:
    """A row for each model: savings and losses under every guard."""
    assert plan.data is not None
    rows: list[Row] = []
    kept = []
    for model in MODELS:
        runs = measured_runs(plan.data / "profiles", model)
        declared = runs.shape[1] - 1
        row = {"model": model, "runs": str(len(runs)), "epochs": str(declared)}
        for guard, rule in GUARDS.items():
            ends = [stopped_at(rule, run) for run in runs]
            points = points_lost(runs, ends)
            share = float(np.mean(1 - np.array(ends) / declared))
            row[f"saved, {guard}"] = f"{100 * share:.1f} %"
            row[f"lost, {guard}"] = f"{points.mean():.2f} ({points.max():.2f})"
            if guard == DEFAULT:
                kept.append((share >= SAVED, points.mean() <= LOST_POINTS))
        fifth = [int(np.floor((1 - SAVED) * declared))] * len(runs)
        rows.append(row | {"lost if cut by a fifth": f"{points_lost(runs, fifth).mean():.2f}"})
    saves, keeps = np.array(kept).T
    figures = {
        "models of six that save a fifth of their epochs": float(saves.sum()),
        "models of six that lose half a point at most": float(keeps.sum()),
        "models of six that do both": float((saves & keeps).sum()),
    }
    return Part(figures, rows)


def completion(plan: Plan) -> Part:
    """A row for each guard: ratios to no stopping, by window, with their intervals."""
    none = metrics(plan, None)
    found = Part()
    for guard, rule in GUARDS.items():
        stopped = metrics(plan, rule)
        ratios = {name: bootstrap_interval(stopped[name].to_numpy() / none[name].to_numpy()) for name in RATIOS}
        found.rows.append(
            {"guard": guard}
            | {label: shown(ratios[name], ".3f") for name, label in RATIOS.items()}
            | {"epochs saved": f"{100 * stopped['epochs_saved'].mean():.1f} %"}
            | {"points lost": f"{stopped['accuracy_lost'].mean():.2f}"}
        )
        if guard == DEFAULT:
            found.figures["JCT, of that without stopping: upper bound"] = ratios["jct_mean"].high
    return found


def metrics(plan: Plan, rule: StopRule | None) -> pd.DataFrame:
    """Metrics of the tuned index at LOAD: a row for each window."""
    chosen = [] if rule is None else [f"workload.mapping.stop={rule.model_dump_json()}"]
    config = plan.config("pollux", LOAD, *chosen)
    done = finished(plan, config, [tuned("pollux-jct")], "stopping", (config.seed,))
    return pd.DataFrame([one.metrics for one in done])
