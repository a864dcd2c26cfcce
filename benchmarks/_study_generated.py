"""Value of estimates to the tuned index, on 20 workloads that nothing was tuned on; about 11 CPU-minutes, and 45 for
the comparison with Pollux.

Each workload has 160 jobs in 8 hours, drawn as Pollux's authors drew theirs: a job of the Philly trace gives the submit
time and, by its GPU time, the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from _studies import TIME_ONLY, Part, Plan, finished, geometric_mean, play, shown
from _study_planner import PLANNER, SETTINGS, SHARED, TUNED
from _study_pollux import ONLINE, config_of

from rlpto.core.jobs import Job
from rlpto.core.stopping import StopRule
from rlpto.evaluation.statistics import Interval
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment, prepare
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.files import write_text
from rlpto.knowledge.known import Knowledge
from rlpto.knowledge.remaining import RemainingKnowledge

WORKLOADS, JOBS, FIRST_HOUR, HOURS = 20, 160, 2, 8
FIRST_SEED = 201
GPU_HOURS = {1.0: ("cifar10", "ncf"), 10.0: ("deepspeech2", "bert"), 100.0: ("yolov3",), 1000.0: ("imagenet",)}
"""Models of jobs with less GPU time than the key [h]. Longer jobs and jobs below a minute are left out."""
WORK = ("unknown", "curve", "declared")
LEARNT: tuple[RemainingKnowledge, ...] = ("unknown", "curve", "learnt", "learnt_or_curve")
FITS = {"jobs choose their batches": ONLINE, "batches are fixed": (*ONLINE, "workload.mapping.adaptive_batch=false")}
REMAINING, ATTAINED = "pollux:favour=remaining", "pollux:favour=attained"
"""Forms of Pollux. The second ignores the remaining work."""
KNOWN = (
    *("own fits, by the curve", "shared fits, learnt or by the curve"),
    *("own fits, declared epochs", "shared fits, declared epochs"),
)
PLANNED: dict[str, tuple[str, ...]] = {
    "shared fits, declared": SHARED,
    "shared fits, learnt or by the curve": (*SHARED, "knowledge.remaining=learnt_or_curve"),
    "true speeds, declared": (),
    "true speeds, learnt or by the curve": ("knowledge.remaining=learnt_or_curve",),
    "true speeds, learnt": ("knowledge.remaining=learnt",),
}
"""Knowledge of policies where the planner is compared; with work unknown or by the curve it decides as its base."""
TARGETS = (0.8, 1.0)
"""Shares of a model's accuracy gain between which users' targets lie."""


def remaining(plan: Plan) -> Part:
    """Mean JCT of the tuned index, with true speeds, by its knowledge of remaining work; paired."""
    found = Part()
    seconds = {work: mean_jct(plan, TUNED, f"knowledge.remaining={work}") for work in WORK}
    for work, jct in seconds.items():
        ratio = ratio_of(jct, seconds["unknown"])
        if work == "curve":
            found.figures["curve against unknown, upper end"] = ratio.high
        row = {"remaining work": work, "mean JCT [min]": f"{jct.mean() / 60:.1f}"}
        found.rows.append({**row, "geometric mean of the ratio": "1" if work == "unknown" else shown(ratio, ".3f")})
    return found


def planner(plan: Plan) -> Part:
    """Mean JCT of the planner relative to its base, the tuned index; paired."""
    found = Part()
    for known, settings in PLANNED.items():
        index, planned = (mean_jct(plan, spec, *TIME_ONLY, *settings) for spec in (TUNED, PLANNER))
        ratio = ratio_of(planned, index)
        found.figures[f"planner against its base, {known}"] = ratio.estimate
        minutes = {"tuned index [min]": f"{index.mean() / 60:.1f}", "planner [min]": f"{planned.mean() / 60:.1f}"}
        found.rows.append({"known": known, **minutes, "geometric mean of the ratio": shown(ratio, ".3f")})
    return found


def fits(plan: Plan) -> Part:
    """The fit with a prior against Pollux's fit, with declared epochs and separate fits for each job; paired."""
    found = Part()
    for name, settings in FITS.items():
        bayes, pollux = (mean_jct(plan, TUNED, *settings, f"knowledge.fit={fit}") for fit in ("bayes", "pollux"))
        ratio = ratio_of(bayes, pollux)
        found.figures[f"fit with a prior against Pollux's, {name}, upper end"] = ratio.high
        minutes = {"fit with a prior [min]": f"{bayes.mean() / 60:.1f}", "Pollux's [min]": f"{pollux.mean() / 60:.1f}"}
        found.rows.append({"": name, **minutes, "ratio": shown(ratio, ".3f")})
    return found


def rivals(plan: Plan) -> Part:
    """The tuned index against the better of two forms of Pollux; paired."""
    found = Part()
    for name in KNOWN:
        index, left = (mean_jct(plan, spec, *SETTINGS[name]) for spec in (TUNED, REMAINING))
        attained = mean_jct(plan, ATTAINED, *SETTINGS[f"{name.split(',')[0]}, declared epochs"])
        ratio = ratio_of(index, min(left, attained, key=lambda jct: float(np.log(jct).mean())))
        found.figures[f"against pollux, {name}, upper end"] = ratio.high
        jct = {"tuned index": index, REMAINING: left, ATTAINED: attained}
        minutes = {spec: f"{seconds.mean() / 60:.1f}" for spec, seconds in jct.items()}
        found.rows.append({"known": name, **minutes, "index / best of pollux": shown(ratio, ".3f")})
    return found


def ends(plan: Plan) -> Part:
    """Estimates from the curve and from finished jobs, with true speeds, by how jobs end; paired."""
    found = Part()
    experiment = prepare(workloads(plan))
    for how in ("at fixed epochs", "at a target accuracy", "once flat", "by their users"):
        seconds: dict[RemainingKnowledge, list[float]] = {work: [] for work in LEARNT}
        for number, window in enumerate(experiment.windows()):
            jobs = ended(experiment, experiment.jobs(window, 0), how, np.random.default_rng(number))
            for work, jct in seconds.items():
                jct.append(mean_of(experiment, jobs, work))
        unknown = np.array(seconds["unknown"])
        row = {"jobs end": how, "unknown [min]": f"{unknown.mean() / 60:.1f}"}
        ratios = {work: ratio_of(np.array(jct), unknown) for work, jct in seconds.items() if work != "unknown"}
        found.rows.append({**row, **{work: shown(ratio, ".3f") for work, ratio in ratios.items()}})
    return found


def ended(experiment: Experiment, jobs: Sequence[Job], how: str, rng: np.random.Generator) -> list[Job]:
    """The jobs, changed to end in another way. Policies see nothing of what determines the ends.

    at a target accuracy: chosen by the user. once flat: by the rule of early stopping. by their users: at any time.
    """
    tables, found = experiment.tables(), []
    for job in jobs:
        job_type, chance = tables.type_index(job.type), rng.random()
        curve = tables.accuracy[job_type, : tables.epochs[job_type] + 1]
        target = curve[0] + np.interp(chance, (0, 1), TARGETS) * (curve.max() - curve[0])
        epochs = {
            "at a target accuracy": max(float(np.argmax(curve >= target)), 1.0),
            "by their users": max(chance, 0.01) * job.epochs,
        }
        stop = StopRule() if how == "once flat" else None
        found.append(replace(job, epochs=epochs.get(how, job.epochs), stop=stop))
    return found


def mean_of(experiment: Experiment, jobs: Sequence[Job], work: RemainingKnowledge) -> float:
    """Mean JCT [s] of the tuned index."""
    config, knowledge = experiment.config, Knowledge(remaining=work, tail=experiment.config.knowledge.tail)
    policy, settings = experiment.policy(TUNED), (config.simulator, config.queue)
    done = play(experiment.shape, jobs, experiment.tables(), policy, *settings, knowledge=knowledge).jobs
    return float(np.mean(done.finish_time - done.submit_time))


def ratio_of(jct: FloatArray, reference: FloatArray) -> Interval:
    """Geometric mean of the ratio over workloads."""
    return geometric_mean(np.log(jct / reference))


def mean_jct(plan: Plan, spec: str, *settings: str) -> FloatArray:
    """[workloads] mean JCT [s]."""
    return np.array(
        [one.metrics["jct_mean"] for one in finished(plan, workloads(plan, *settings), [spec], "generated")]
    )


def workloads(plan: Plan, *settings: str) -> Config:
    """The configuration with these workloads, which are written if they are missing."""
    assert plan.data is not None
    folder = plan.folder / "generated"
    if len(list(folder.glob("*.csv"))) < WORKLOADS:
        write_workloads(plan.data, folder)
    return config_of(plan, f"workload.path={json.dumps(str(folder / '*.csv'))}", *settings)


def write_workloads(data: Path, folder: Path) -> None:
    """Write workloads in Pollux's format, a file for each seed; job sizes are drawn from the model's published jobs."""
    published = pd.concat(pd.read_csv(path) for path in sorted((data / "traces" / "pollux").glob("*.csv")))
    trace = pd.read_csv(data / "traces" / "philly.csv.gz", parse_dates=["timestamp"])
    local = trace["timestamp"] - pd.Timedelta(hours=FIRST_HOUR)
    seconds = (local - local.dt.normalize()).dt.total_seconds()
    hours = trace["gpu_time"] / 3600
    usable = (trace["duration"] >= 60) & (hours < max(GPU_HOURS)) & (seconds < 3600 * HOURS)
    jobs = pd.DataFrame({"time": seconds.astype(int), "hours": hours})[usable]
    groups = published.groupby("application")[["num_replicas", "batch_size"]]
    sizes = {str(model): rows.to_numpy() for model, rows in groups}
    for seed in range(FIRST_SEED, FIRST_SEED + WORKLOADS):
        text = drawn(jobs, sizes, np.random.default_rng(seed)).to_csv(index=False)
        write_text(folder / f"workload-{seed}.csv", text, "a workload")


def drawn(jobs: pd.DataFrame, sizes: Mapping[str, AnyArray], rng: np.random.Generator) -> pd.DataFrame:
    """Draw one workload."""
    rows = list[tuple[object, ...]]()
    for time, hours in sorted(jobs.iloc[rng.choice(len(jobs), JOBS, replace=False)].itertuples(index=False)):
        model = rng.choice(next(models for bound, models in GPU_HOURS.items() if hours < bound))
        replicas, batch = rng.choice(sizes[model])
        rows.append((f"{model}-{len(rows)}", time, model, replicas, batch))
    return pd.DataFrame(rows, columns=["name", "time", "application", "num_replicas", "batch_size"])
