"""The figures by which policies are compared, how they are shown, and the bound that no policy can beat."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.core.records import JobRecords, NodeRecords, RunRecord
from rlpto.core.renting import TICK_S
from rlpto.core.rewards import HOUR, REWARD_PARTS, TERMS, RewardWeights
from rlpto.evaluation.timeline import run_span, step_integral, utilisation
from rlpto.io.arrays import FloatArray, IntArray

Better = Literal["lower", "higher", "none"]

LOWER_BOUND = "lower bound"
"""Name of the bound's row where policies are listed."""
NOTHING = "–"  # noqa: RUF001
"""Shown in place of an undefined figure."""


@dataclass(frozen=True, slots=True)
class CellMetric:
    """One figure of a run.

    name: key in files. label: heading in tables. unit: of the stored value ("share": 0 to 1; "" for a
    bare number). better: which direction is good. description: exact definition.
    """

    name: str
    label: str
    unit: str
    better: Better
    description: str


def _seconds(name: str, label: str, description: str) -> CellMetric:
    """A time, better where it is shorter."""
    return CellMetric(name, label, "s", "lower", description)


METRICS: tuple[CellMetric, ...] = (
    CellMetric("reward", "reward", "", "higher", "Sum of all parts of the reward over all decisions."),
    *(
        CellMetric(f"reward_{term.name}", f"{term.name.removesuffix('s')} part", "", "higher", term.description)
        for term in TERMS
    ),
    _seconds("jct_mean", "JCT mean", "Mean job completion time, submit to finish, over the jobs that finished."),
    _seconds("jct_median", "JCT median", "Median JCT of the jobs that finished."),
    _seconds("jct_p95", "JCT p95", "95th percentile of the JCTs of the jobs that finished."),
    _seconds("jct_p99", "JCT p99", "99th percentile of the JCTs of the jobs that finished."),
    _seconds("makespan", "makespan", "First submit to last finish; not defined while a job is unfinished."),
    _seconds("queueing_mean", "queue mean", "Mean time from submit to first GPU of the jobs that started."),
    _seconds("queueing_p95", "queue p95", "95th percentile of the time from submit to first GPU, of started jobs."),
    *(
        _seconds(
            f"queueing_{name}",
            f"queue {name}",
            f"Mean time from submit to first GPU of the jobs of priority class {name} that started.",
        )
        for name in PRIORITY_CLASSES
    ),
    CellMetric(
        "utilisation",
        "GPUs used",
        "share",
        "higher",
        "GPU-seconds held by jobs / GPU-seconds that were up, from the first submit to the last finish (to the end "
        "of the run where jobs are unfinished).",
    ),
    CellMetric("gpu_hours", "GPU-hours", "GPU-h", "lower", "GPU-hours held by all jobs."),
    CellMetric(
        "cost",
        "cost",
        "",
        "lower",
        "Price of the GPUs held by all jobs, and of rented nodes, by `price` of cluster.nodes; not defined where that "
        "is not set, and for real runs without rented nodes.",
    ),
    CellMetric(
        "node_gpu_hours",
        "node GPU-hours",
        "GPU-h",
        "lower",
        "GPU-hours of nodes that could be used or booted; not defined where no nodes are rented.",
    ),
    CellMetric(
        "idle_gpu_hours",
        "idle GPU-hours",
        "GPU-h",
        "lower",
        "GPU-hours of nodes that could be used while no job held them; not defined where no nodes are rented.",
    ),
    CellMetric(
        "late_hours",
        "late",
        "job-h",
        "lower",
        "Job-hours in the system minus ideal job-hours. Ideal: every job does the same work on its requested GPUs, on "
        "as few nodes as possible, with one start. Not defined if no nodes are rented.",
    ),
    CellMetric(
        "idle_cost",
        "idle cost",
        "",
        "lower",
        "Price of the rented nodes minus the price of the requested GPUs for the ideal job-hours (see late_hours). Not "
        "defined if no nodes are rented.",
    ),
    CellMetric(
        "cost_per_job", "cost per job", "", "lower", "The price under cost, divided by the number of finished jobs."
    ),
    CellMetric(
        "rescales_per_job",
        "rescales",
        "per job",
        "lower",
        "Restarts after a job's first start: on changed GPUs, with changed parameter servers, or after a wait; mean "
        "per job of the workload.",
    ),
    CellMetric(
        "fairness_mean",
        "rho mean",
        "",
        "lower",
        "Finish-time fairness after Themis (Mahajan et al., NSDI 2020): mean of rho = JCT / time on an exclusive 1/N "
        "share. That time is N times the job's time alone on its requested GPUs: a 1/N share is assumed to slow it N "
        "times. N = max(1, mean over the job's stay of GPUs requested by all unfinished jobs / GPUs of the cluster). "
        "With rho above 1 the job would have finished sooner on its share. Finished jobs only.",
    ),
    CellMetric(
        "slowdown_mean",
        "slowdown",
        "",
        "lower",
        "Mean of JCT / time the job needs alone on the cluster, as fast as it can be, start delay included.",
    ),
    CellMetric("final_accuracy", "accuracy", "share", "higher", "Mean accuracy of all jobs at the end of the run."),
    CellMetric(
        "epochs_saved",
        "epochs saved",
        "share",
        "higher",
        "Mean over the finished jobs that may stop early of 1 - epochs trained / epochs declared; not defined where no "
        "job may.",
    ),
    CellMetric(
        "accuracy_lost",
        "accuracy lost",
        "points",
        "lower",
        "Mean over the finished jobs that may stop early of 100 x (accuracy of the profile after all declared epochs - "
        "accuracy at the job's end).",
    ),
    CellMetric(
        "ettr",
        "ETTR",
        "share",
        "higher",
        "Effective training time ratio after Kokolis et al. (HPCA 2025): mean over the finished jobs of productive "
        "time / JCT. Productive time is training that was not rolled back after a failure. Waiting, start and rescale "
        "delays, rolled-back work and writing checkpoints are not productive.",
    ),
    CellMetric(
        "lost_gpu_hours",
        "GPU-hours lost",
        "GPU-h",
        "lower",
        "GPU-hours of training after a job's last checkpoint that failures rolled back; not defined if nodes never "
        "fail.",
    ),
    *(
        _seconds(
            f"time_to_{percent}",
            f"to {percent} %",
            f"Mean time from submit until a job had first gained {percent} % of all the accuracy it can gain, over "
            "the jobs that came so far.",
        )
        for percent in (90, 95, 99)
    ),
    CellMetric(
        "accuracy_hours_lost",
        "hours lost",
        "job-h",
        "lower",
        "Time in the system [h], weighted by the share of its achievable accuracy gain that a job still lacks, "
        "summed over jobs of all classes.",
    ),
    _seconds("latency_p50", "latency p50", "Median wall-clock time of one decision (queue and policy)."),
    _seconds("latency_p99", "latency p99", "99th percentile of the wall-clock time of one decision."),
    CellMetric("unfinished", "unfinished", "jobs", "lower", "Jobs that had not finished when the run ended."),
    CellMetric("jobs", "jobs", "jobs", "none", "Jobs of the workload."),
    CellMetric("wall_seconds", "run time", "s", "none", "Wall-clock time of the run itself."),
)

METRIC: dict[str, CellMetric] = {metric.name: metric for metric in METRICS}
"""Metrics by name."""


def completion_times(jobs: JobRecords) -> FloatArray:
    """JCT [M] s of every job; NaN where it did not finish."""
    return jobs.finish_time - jobs.submit_time


def queueing_delays(jobs: JobRecords) -> FloatArray:
    """Submit to first GPU [M] s; NaN where a job never started."""
    return jobs.start_time - jobs.submit_time


def finish_time_fairness(record: RunRecord) -> FloatArray:
    """Return Themis' rho of every job [M], which `METRICS` defines under fairness_mean; NaN if a job did not finish.

    N is the mean of requested GPUs of all unfinished jobs (this one included) over the cluster's GPUs, at least 1.
    """
    jobs = record.jobs
    finished, rho = np.isfinite(jobs.finish_time), np.full(len(jobs.finish_time), np.nan)
    if not finished.any():
        return rho
    time = np.concatenate((jobs.submit_time, jobs.finish_time[finished]))
    change = np.concatenate((jobs.requested_gpus, -jobs.requested_gpus[finished])).astype(np.float64)
    order = np.argsort(time, kind="stable")
    time, demand = time[order], np.cumsum(change[order])
    until_finish = step_integral(time, demand, jobs.finish_time[finished])
    until_submit = step_integral(time, demand, jobs.submit_time[finished])
    stay = completion_times(jobs)[finished]
    contention = (until_finish - until_submit) / stay / record.capacity
    rho[finished] = stay / (jobs.requested_time[finished] * np.maximum(contention, 1.0))
    return rho


def measure(record: RunRecord) -> dict[str, float]:
    """Every metric of a run, in the order of `METRICS`; NaN where it is not defined."""
    jobs, latency = record.jobs, record.decisions.latency
    jct, waited, rho = completion_times(jobs), queueing_delays(jobs), finish_time_fairness(record)
    unfinished = int(np.isnan(jct).sum())
    start, end = run_span(record)
    stopping = np.isfinite(jobs.finish_time) & ~np.isnan(jobs.full_accuracy)
    parts, lost = record.decisions.reward.sum(axis=0), jobs.lost_gpu_seconds
    cost, finished = float(record.decisions.cost.sum()) or float("nan"), len(jct) - unfinished
    values = {
        "reward": float(parts.sum()),
        **{f"reward_{name}": float(part) for name, part in zip(REWARD_PARTS, parts, strict=True)},
        **jct_metrics(jct),
        "makespan": end - start if unfinished == 0 else float("nan"),
        **queueing_metrics(jobs.priority, waited),
        "utilisation": float(utilisation(record, np.array([start, end]))[0]) if len(jct) else float("nan"),
        "gpu_hours": float(jobs.gpu_seconds.sum()) / HOUR,
        "cost": cost,
        **node_metrics(record.rented),
        "cost_per_job": cost / finished if finished else float("nan"),
        "rescales_per_job": _mean(jobs.rescales.astype(np.float64)),
        "fairness_mean": _mean(rho),
        "slowdown_mean": _mean(jct / jobs.alone_time),
        "final_accuracy": _mean(jobs.final_accuracy),
        "epochs_saved": _mean((1.0 - jobs.trained_epochs / jobs.epochs)[stopping]),
        "accuracy_lost": 100.0 * _mean((jobs.full_accuracy - jobs.final_accuracy)[stopping]),
        "ettr": _mean(jobs.kept_seconds / jct),
        "lost_gpu_hours": float(np.nansum(lost)) / HOUR if np.isfinite(lost).any() else float("nan"),
        "time_to_90": _mean(jobs.reached_90 - jobs.submit_time),
        "time_to_95": _mean(jobs.reached_95 - jobs.submit_time),
        "time_to_99": _mean(jobs.reached_99 - jobs.submit_time),
        "accuracy_hours_lost": float(record.decisions.shortfall.sum()) / HOUR,
        "latency_p50": _percentile(latency, 50),
        "latency_p99": _percentile(latency, 99),
        "unfinished": float(unfinished),
        "jobs": float(len(jct)),
        "wall_seconds": record.wall_seconds,
    }
    return {metric.name: values[metric.name] for metric in METRICS}


def lower_bound(record: RunRecord, weights: RewardWeights | None = None) -> dict[str, float]:
    """Return a bound that no run can beat that finishes all jobs of `record`: each job runs alone, on its fastest GPUs.

    Every job takes at least its `alone_time`, which bounds each JCT, the mean, the percentiles and the makespan. JCTs
    of a run with unfinished jobs cover only some of the jobs: do not compare them. If `record` has finished all jobs,
    `final_accuracy` is the accuracy they reached, and `weights` give an upper bound for each part of the reward:
    accuracy by all gains, time by the sum of the alone times, resources by one GPU for that time, the others by 0.
    Other metrics are NaN. Returns an empty dictionary if the alone time of a job is not known.
    """
    jobs = record.jobs
    alone, count = jobs.alone_time, len(jobs.submit_time)
    if np.isnan(alone).any():
        return {}
    values = dict.fromkeys(METRIC, float("nan"))
    values |= jct_metrics(alone) | queueing_metrics(jobs.priority, np.zeros(count))
    values |= {"unfinished": 0.0, "jobs": float(count)}
    if count:
        values["makespan"] = float((jobs.submit_time + alone).max() - jobs.submit_time.min())
        values["slowdown_mean"] = 1.0
    if np.isfinite(jobs.finish_time).all():
        values["final_accuracy"] = _mean(jobs.final_accuracy)
    if weights is not None and np.isfinite(jobs.finish_time).all():
        hours = float(alone.sum()) / HOUR
        values |= {
            "reward_accuracy": weights.accuracy * float(np.array(weights.classes)[jobs.priority].sum()),
            "reward_time": -weights.time * hours,
            "reward_resources": -weights.resources * hours,
            "reward_rescale": 0.0,
            "reward_shortfall": 0.0,
            "reward_money": 0.0,
        }
        values["reward"] = sum(values[f"reward_{name}"] for name in REWARD_PARTS)  # NaN if a part has no bound
    return values


_JCT_PERCENTILES = {"jct_median": 50, "jct_p95": 95, "jct_p99": 99}
JCT_METRICS = ("jct_mean", *_JCT_PERCENTILES)
"""Names of the metrics of JCTs."""


def jct_metrics(jct: FloatArray) -> dict[str, float]:
    """Mean and percentiles of JCTs [M] s."""
    return {"jct_mean": _mean(jct)} | {name: _percentile(jct, percent) for name, percent in _JCT_PERCENTILES.items()}


def queueing_metrics(priority: IntArray, waited: FloatArray) -> dict[str, float]:
    """Means of queueing delays [M] s, of all jobs and by priority class [M]."""
    by_class = {f"queueing_{name}": _mean(waited[priority == i]) for i, name in enumerate(PRIORITY_CLASSES)}
    return {"queueing_mean": _mean(waited), "queueing_p95": _percentile(waited, 95), **by_class}


def node_metrics(rented: NodeRecords) -> dict[str, float]:
    """Figures of rented nodes; NaN where there are none."""
    if not len(rented.time):
        return dict.fromkeys(("node_gpu_hours", "idle_gpu_hours", "late_hours", "idle_cost"), float("nan"))
    hours = TICK_S / HOUR
    return {
        "node_gpu_hours": float((rented.ready + rented.booting).sum()) * hours,
        "idle_gpu_hours": float((rented.ready - rented.used).sum()) * hours,
        "late_hours": float(rented.late.sum()) / HOUR,
        "idle_cost": float(rented.idle_cost.sum()),
    }


def _mean(values: FloatArray) -> float:
    """Mean of the values that are not NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _percentile(values: FloatArray, percent: float) -> float:
    """Percentile (linear interpolation) of the values that are not NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(np.percentile(known, percent)) if len(known) else float("nan")


# Figures as people read them: one unit and one number of decimals for a whole column. -----------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """Format of the values of a metric: `factor` times the value, with `decimals`, in `unit`."""

    unit: str
    factor: float
    decimals: int

    def number(self, value: float) -> str:
        """The figure without its unit."""
        if not math.isfinite(value):
            return NOTHING
        text = f"{value * self.factor:,.{self.decimals}f}"
        # Rounding must not leave a negative zero.
        return text.lstrip("-") if not text.strip("-0.,") else text

    def signed(self, value: float) -> str:
        """The figure with its sign, for differences."""
        text = self.number(value)
        return text if text.startswith("-") or text == NOTHING or not text.strip("0.,") else f"+{text}"


def scale_for(metric: CellMetric, values: Iterable[float]) -> Scale:
    """Return one unit and number of decimals for all `values` (as stored): fewer decimals for larger values."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    unit, factor = _unit(metric.unit, largest)
    return Scale(unit, factor, _decimals(largest * factor, counted=metric.unit == "jobs"))


def heading(metric: CellMetric, scale: Scale) -> str:
    """Label of a column, with the unit its figures are shown in unless the label says it."""
    in_label = not scale.unit or metric.unit in ("jobs", "GPU-h")
    return metric.label if in_label else f"{metric.label} [{scale.unit}]"


def _unit(unit: str, largest: float) -> tuple[str, float]:
    if unit == "share":
        return "%", 100.0
    if unit != "s":
        return unit, 1.0
    if largest < 1.0:
        return "ms", 1e3
    if largest < 600.0:
        return "s", 1.0
    if largest < 3 * 3600.0:
        return "min", 1 / 60.0
    return "h", 1 / 3600.0


def _decimals(largest: float, counted: bool) -> int:
    if counted or largest >= 1000:
        return 0
    if largest >= 10:
        return 1
    return 2 if largest >= 0.1 or largest == 0 else 3
