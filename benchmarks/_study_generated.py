"""What knowledge of remaining work is worth, on 20 workloads that nothing was tuned on.

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
from _plan import Part, Plan
from _study_planner import TUNED
from _study_pollux import config_of

from rlpto.evaluation.statistics import bootstrap_interval

WORKLOADS, JOBS, FIRST_HOUR, HOURS = 20, 160, 2, 8
FIRST_SEED = 201
GPU_HOURS = {1.0: ("cifar10", "ncf"), 10.0: ("deepspeech2", "bert"), 100.0: ("yolov3",), 1000.0: ("imagenet",)}
"""Models of jobs below so much GPU time; longer ones and those below a minute are left out."""
WORK = ("unknown", "curve", "declared")


def remaining(plan: Plan) -> Part:
    """Mean JCT of the tuned index, with true speeds, by what it knows of remaining work; paired."""
    assert plan.data is not None
    folder = plan.folder / "generated"
    write_workloads(plan.data, folder)
    found = Part()
    seconds = {work: mean_jct(plan, folder, f"knowledge.remaining={work}") for work in WORK}
    for work, jct in seconds.items():
        log_ratio = np.log(jct / seconds["unknown"])
        interval = bootstrap_interval(log_ratio, statistic=lambda units, counts: np.exp(counts @ units / counts.sum(1)))
        if work == "curve":
            found.figures["curve against unknown, upper end"] = interval.high
        row = {"remaining work": work, "mean JCT [min]": f"{jct.mean() / 60:.1f}"}
        found.rows.append({**row, "geometric mean of the ratio": "1" if work == "unknown" else shown(interval, ".3f")})
    return found


def mean_jct(plan: Plan, folder: Path, setting: str) -> np.ndarray:
    """[workloads] seconds."""
    path = f"workload.path={json.dumps(str(folder / '*.csv'))}"
    done = finished(plan, config_of(plan, setting, path), [TUNED], "generated")
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
