"""What knowledge of remaining work is worth, and planning with it, on 20 workloads that nothing was tuned on.

160 jobs in 8 hours each, as Pollux's authors drew theirs: a job of the Philly trace gives the submit time and, by its
GPU time, the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from _cells import finished, shown
from _plan import TIME_ONLY, Part, Plan
from _study_planner import PLANNER, SHARED, TUNED
from _study_pollux import config_of

from rlpto.evaluation.statistics import Interval, bootstrap_interval

WORKLOADS, JOBS, FIRST_HOUR, HOURS = 20, 160, 2, 8
FIRST_SEED = 201
GPU_HOURS = {1.0: ("cifar10", "ncf"), 10.0: ("deepspeech2", "bert"), 100.0: ("yolov3",), 1000.0: ("imagenet",)}
"""Models of jobs below so much GPU time; longer ones and those below a minute are left out."""
WORK = ("unknown", "curve", "declared")
PLANNED: dict[str, tuple[str, ...]] = {
    "shared fits, declared": SHARED,
    "shared fits, learnt or by the curve": (*SHARED, "knowledge.remaining=learnt_or_curve"),
    "true speeds, declared": (),
    "true speeds, learnt or by the curve": ("knowledge.remaining=learnt_or_curve",),
    "true speeds, learnt": ("knowledge.remaining=learnt",),
}
"""What is known where the planner is compared; where work is unknown or by the curve it decides as its base."""


def remaining(plan: Plan) -> Part:
    """Mean JCT of the tuned index, with true speeds, by what it knows of remaining work; paired."""
    assert plan.data is not None
    folder = plan.folder / "generated"
    write_workloads(plan.data, folder)
    found = Part()
    seconds = {work: mean_jct(plan, folder, TUNED, f"knowledge.remaining={work}") for work in WORK}
    for work, jct in seconds.items():
        interval = mean_ratio(jct, seconds["unknown"])
        if work == "curve":
            found.figures["curve against unknown, upper end"] = interval.high
        row = {"remaining work": work, "mean JCT [min]": f"{jct.mean() / 60:.1f}"}
        found.rows.append({**row, "geometric mean of the ratio": "1" if work == "unknown" else shown(interval, ".3f")})
    return found


def planner(plan: Plan) -> Part:
    """Mean JCT of the planner by its base's, the tuned index; paired."""
    assert plan.data is not None
    folder = plan.folder / "generated"
    write_workloads(plan.data, folder)
    found = Part()
    for known, settings in PLANNED.items():
        index, planned = (mean_jct(plan, folder, spec, *TIME_ONLY, *settings) for spec in (TUNED, PLANNER))
        interval = mean_ratio(planned, index)
        found.figures[f"planner against its base, {known}"] = interval.estimate
        row = {
            "known": known,
            "tuned index [min]": f"{index.mean() / 60:.1f}",
            "planner [min]": f"{planned.mean() / 60:.1f}",
        }
        found.rows.append({**row, "geometric mean of the ratio": shown(interval, ".3f")})
    return found


def mean_ratio(jct: np.ndarray, base: np.ndarray) -> Interval:
    """Geometric mean over workloads [workloads] of jct / base, with its interval."""
    return bootstrap_interval(
        np.log(jct / base), statistic=lambda units, counts: np.exp(counts @ units / counts.sum(1))
    )


def mean_jct(plan: Plan, folder: Path, spec: str, *settings: str) -> np.ndarray:
    """[workloads] seconds."""
    path = f"workload.path={json.dumps(str(folder / '*.csv'))}"
    done = finished(plan, config_of(plan, *settings, path), [spec], "generated")
    return np.array([one.metrics["jct_mean"] for one in done])


def write_workloads(data: Path, folder: Path) -> None:
    """Workloads in the form of Pollux's, a file for each seed; sizes of a model's jobs are those of published jobs."""
    folder.mkdir(parents=True, exist_ok=True)
    published = pd.concat(pd.read_csv(path) for path in sorted((data / "traces" / "pollux").glob("*.csv")))
    trace = pd.read_csv(data / "traces" / "philly.csv.gz", parse_dates=["timestamp"])
    local = trace["timestamp"] - pd.Timedelta(hours=FIRST_HOUR)
    seconds = (local - local.dt.normalize()).dt.total_seconds()
    hours = trace["gpu_time"] / 3600
    usable = (trace["duration"] >= 60) & (hours < max(GPU_HOURS)) & (seconds < 3600 * HOURS)
    jobs = pd.DataFrame({"time": seconds.astype(int), "hours": hours})[usable]
    sizes = {model: rows[["num_replicas", "batch_size"]].to_numpy() for model, rows in published.groupby("application")}
    for seed in range(FIRST_SEED, FIRST_SEED + WORKLOADS):
        drawn(jobs, sizes, np.random.default_rng(seed)).to_csv(folder / f"workload-{seed}.csv", index=False)


def drawn(jobs: pd.DataFrame, sizes: Mapping[object, np.ndarray], rng: np.random.Generator) -> pd.DataFrame:
    """One workload."""
    rows = []
    for time, hours in sorted(jobs.iloc[rng.choice(len(jobs), JOBS, replace=False)].itertuples(index=False)):
        model = rng.choice(next(models for bound, models in GPU_HOURS.items() if hours < bound))
        replicas, batch = rng.choice(sizes[model])
        rows.append((f"{model}-{len(rows)}", time, model, replicas, batch))
    return pd.DataFrame(rows, columns=["name", "time", "application", "num_replicas", "batch_size"])
