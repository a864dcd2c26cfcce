"""AdaptDL with selectable metrics: its acceptance behaviours, from profiles, from simulations and from real training.

About 70 CPU-seconds, 50 of them real training of scikit-learn's digits. Without the folder of shared data the
figures come from the built-in fits alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from _studies import DIGITS, Part, Plan, Row, digits_trainer, play

from rlpto.core.cluster import Node
from rlpto.core.jobs import Job
from rlpto.io.arrays import FloatArray
from rlpto.knowledge.estimates import ChoiceRule, choose, follow_choices
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.efficiency import BatchLimits, choose_batch, efficiency
from rlpto.performance.fitted import SPANS, FittedProfiles, choices_by_size
from rlpto.performance.metrics import EFFICIENCY_BAND, METRIC_NAMES, METRICS, STOCK_BAND, MetricName, UtilityBand
from rlpto.performance.profiles import ProfileSource, builtin_profiles
from rlpto.performance.solo import chosen_gpus, predict_training
from rlpto.performance.tables import JobType
from rlpto.performance.throughput import StepMeasurements, ThroughputParams, fit_throughput, gradient_time, sync_time
from rlpto.policies.registry import make_policy

MODELS = ("cifar10", "deepspeech2", "yolov3", "imagenet", "bert")
COUNTS = (4, 8, 16)
CHANGE_ABOVE = 1.05
"""AdaptDL changes a running job's batch size only if the new one is better by this factor."""
NODES = tuple(range(4, 65, 4))
"""GPUs of whole nodes: thresholds are about the size of a cluster."""
PUBLISHED = ("cifar10", "deepspeech2", "imagenet")
"""Models for which the reference gives figures of raised thresholds."""
SLOWER = {
    "cifar10": (33, 7, 10),
    "deepspeech2": (13, 4, 5),
    "yolov3": (139, 40, 28),
    "imagenet": (58, 46, 38),
    "bert": (0, 0, 0),
}
"""Slowdown in percent with the throughput metric on `COUNTS` GPUs, as computed by the reference."""
RAISED = {"cifar10": "16 to 4, +152, -37", "deepspeech2": "+147, -38", "imagenet": "64 to 20, +127, -29"}
"""GPUs, time and GPU-hours in percent with raised thresholds, as computed by the reference."""


BUILTIN = FittedProfiles(builtin_profiles())
"""The built-in fits."""


def source(plan: Plan) -> ProfileSource:
    """The measured profiles."""
    assert plan.data is not None
    return load_profiles(plan.data / "profiles")


# A1: real training --------------------------------------------------------------------------------------------------

LAW = ThroughputParams(0.01, 1e-3, 0.02, 5e-4, 0.01, 5e-4, 2.0)
"""Step times of the GPUs that training simulates: 1 ms a sample, 10 to 40 ms to synchronise."""
LIMITS = BatchLimits(base=64, largest=512, min_local=8, max_local=512)
EXTREME = replace(LIMITS, largest=1024)
"""A batch of most of the data: shown, without a claim."""
USUAL_NOISE = 200.0
"""Noise scale for the choice of GPUs [samples]: about the noise scale of the digits."""
PROGRAMS = (("DigitsMlp", "adascale", 20.0, 10), ("DigitsCnn", "sqrt", 6.0, 5))
"""Training program, rule of the learning rate, scale-invariant epochs, seeds."""


def training(_: Plan) -> Part:
    """A1: final accuracy of real training whose batch sizes the metrics choose from the measured noise scale."""
    import torch

    torch.set_num_threads(1)
    found = Part()
    for program, rule, epochs, seeds in PROGRAMS:
        stock = None
        for metric, limits in (*((metric, LIMITS) for metric in METRIC_NAMES), ("throughput", EXTREME)):
            gpus = _gpus_for(metric, limits)
            runs = [_train(program, rule, epochs, metric, limits, gpus, seed) for seed in range(seeds)]
            accuracy, seconds, batch = (np.array(column) for column in zip(*runs, strict=True))
            stock = accuracy if stock is None else stock
            if metric != "goodput" and limits is LIMITS:
                name = f"A1 {program}: accuracy, {metric} against goodput"
                found.figures[name] = 100 * abs(float(accuracy.mean() - stock.mean()))
                found.limits[name] = max(0.5, 200 * float(stock.std(ddof=1)))
            found.rows.append(
                {
                    "program": program,
                    "metric": metric,
                    "GPUs": gpus,
                    "seeds": seeds,
                    "largest batch": limits.largest,
                    "last batch": round(float(np.median(batch))),
                    "accuracy [%]": round(100 * float(accuracy.mean()), 2),
                    "std over seeds": round(100 * float(accuracy.std(ddof=1)), 2),
                    "time [s, modelled]": round(float(seconds.mean()), 1),
                    "GPU-seconds": round(gpus * float(seconds.mean())),
                }
            )
    return found


def _gpus_for(metric: MetricName, limits: BatchLimits) -> int:
    """GPUs, from 1 to 16, that the metric's thresholds choose."""
    found = choose_batch(LAW, np.array([USUAL_NOISE]), limits, SPANS, 16, None, METRICS[metric].exponent)
    score = np.array([found.score[_nodes(gpus) - 1, gpus - 1, 0] for gpus in range(1, 17)])
    return chosen_gpus(score / score[0] / np.arange(1, 17), range(1, 17), METRICS[metric].band)


def _nodes(gpus: int) -> int:
    """Number of nodes of 4 GPUs, at most SPANS."""
    return min(-(-gpus // 4), SPANS)


def _train(
    program: str, rule: str, epochs: float, metric: MetricName, limits: BatchLimits, gpus: int, seed: int
) -> tuple[float, float, int]:
    """Final accuracy, seconds by the modelled step times, and the last batch size."""
    trainer, seconds, batch = digits_trainer(program, limits.base, epochs, rule, seed), 0.0, limits.base
    while not trainer.finished:
        noise = trainer.noise.noise_scale
        if math.isfinite(noise) and noise > 0:
            found = choose_batch(LAW, np.array([noise]), limits, SPANS, gpus, None, METRICS[metric].exponent)
            batch = int(found.batch[_nodes(gpus) - 1, gpus - 1, 0])
        done = trainer.run(trainer.position.step + max(DIGITS // batch, 1), batch)
        seconds += done.steps * float(LAW.step_time(_nodes(gpus), gpus, batch / gpus))
    return trainer.evaluate(), seconds, batch


# A2: the option alone -----------------------------------------------------------------------------------------------


def stock(_: Plan) -> Part:
    """A2: decisions and times of jobs with metric goodput, in tables that hold all metrics, against jobs without."""
    rows: list[Row] = []
    differ, worst = 0, 0.0
    for policy in ("equal_share", "max_throughput", "optimus", "srtf"):
        jct, changes = _simulated(policy, "goodput", ("goodput",))
        named = {metric: _simulated(policy, metric, METRIC_NAMES) for metric in METRIC_NAMES}
        same = np.array_equal(changes, named["goodput"][1])
        differ, worst = differ + (not same), max(worst, abs(named["goodput"][0] / jct - 1))
        times = {"stock: mean JCT [s]": jct} | {metric: mean for metric, (mean, _) in named.items()}
        shown = {name: round(mean, 1) for name, mean in times.items()}
        rows.append({"policy": policy, **shown, "decisions as stock": "all" if same else "not all"})
    figures = {
        "A2 policies whose decisions differ with metric goodput": differ,
        "A2 mean JCT with metric goodput against stock": 100 * worst,
    }
    return Part(figures, rows)


def _simulated(policy: str, metric: MetricName, in_tables: Sequence[MetricName]) -> tuple[float, FloatArray]:
    """Mean JCT [s] and [n, 3] every change of GPUs, with tables of types of these metrics."""
    rng = np.random.default_rng(17)
    submit = np.sort(rng.uniform(0, 4 * 3600, 24))
    models = [MODELS[i] for i in rng.choice((0, 1, 4), 24)]
    facts = [BUILTIN.facts(model) for model in models]
    jobs = [
        Job(f"job-{i}", float(submit[i]), model, float(fact.epochs), fact.samples, 1, 1, 16, metric=metric)
        for i, (model, fact) in enumerate(zip(models, facts, strict=True))
    ]
    tables = compile_tables(BUILTIN, [JobType(model, None, name) for model in MODELS for name in in_tables], 32, 4)
    record = play((Node(4),) * 8, jobs, tables, make_policy(policy))
    changes = np.column_stack([record.changes.time, record.changes.job, record.changes.gpus]).astype(np.float64)
    return float(np.mean(record.jobs.finish_time - record.jobs.submit_time)), changes


# A3: the throughput metric ------------------------------------------------------------------------------------------


def throughput(plan: Plan) -> Part:
    """A3: samples per second and time to target with the throughput metric, on the same GPUs as with goodput."""
    rows: list[Row] = []
    percents = []
    for model in MODELS:
        predicted = predict_training(source(plan), model, COUNTS, ("goodput", "throughput"))
        hours = np.array([one.hours for one in predicted]).reshape(2, -1)
        speed = np.array([[_samples_per_second(model, name, n) for n in COUNTS] for name in ("goodput", "throughput")])
        more, longer = 100 * (speed[1] / speed[0] - 1), 100 * (hours[1] / hours[0] - 1)
        percents.append((more, longer, np.abs(longer - SLOWER[model])))
        shown = {"samples/s on 4, 8, 16 GPUs [%] (fits)": more, "time to target [%]": longer}
        shown["reference [%]"] = SLOWER[model]
        rows.append({"model": model} | {name: ", ".join(map("{:+.0f}".format, of)) for name, of in shown.items()})
    faster, slower, off = np.swapaxes(percents, 0, 1)
    figures = {
        "A3 least samples/s with throughput against goodput": 1 + float(faster.min()) / 100,
        "A3 least time to target with throughput against goodput": 1 + float(slower.min()) / 100,
        "A3 largest difference from the reference": float(off.max()),
    }
    return Part(figures, rows)


def _samples_per_second(model: str, metric: MetricName, gpus: int) -> float:
    """Mean over a training's epochs with the batch sizes that a metric chooses, on whole nodes of 4."""
    profile = BUILTIN.profile(model)
    found = choices_by_size(profile, JobType(model, None, metric), gpus)
    at = (_nodes(gpus) - 1, gpus - 1)
    useful = efficiency(profile.noise(np.arange(profile.epochs)), found.batch[at], profile.batch.base)
    samples = profile.samples / useful
    return float(samples.sum() / (profile.samples / found.progress[at]).sum())


# A4: thresholds -----------------------------------------------------------------------------------------------------


def thresholds(plan: Plan) -> Part:
    """A4: GPUs, time and cost under thresholds of utility."""
    rows: list[Row] = []
    changes = []
    for model in MODELS:
        stock = None
        for band in (STOCK_BAND, UtilityBand(0.5, 0.8), EFFICIENCY_BAND):
            by_gpus = predict_training(source(plan), model, NODES, ("goodput",), band=band)
            raised = next(row for row in by_gpus if row.chosen)
            stock = stock or raised
            columns = {"time": "hours", "GPU-hours against stock": "gpu_hours", "utility against stock": "utility"}
            change = [100 * (getattr(raised, column) / getattr(stock, column) - 1) for column in columns.values()]
            if model in PUBLISHED and band is EFFICIENCY_BAND:
                changes.append(change)
            rows.append(
                {
                    "model": model,
                    "thresholds": f"{band.min_util:.2f}-{band.max_util:.2f}",
                    "GPUs": raised.gpus,
                    "utility": round(raised.utility, 2),
                    "hours": round(raised.hours, 2),
                    "GPU-hours": round(raised.gpu_hours, 1),
                    **{name: f"{percent:+.0f} %" for name, percent in zip(columns, change, strict=True)},
                    "reference": RAISED.get(model, "") if band is EFFICIENCY_BAND else "",
                }
            )
    longer, cheaper, useful = np.array(changes).T
    figures = {
        "A4 time with thresholds 0.6-0.9, mean of three models": float(longer.mean()),
        "A4 GPU-hours saved, mean of three models": -float(cheaper.mean()),
        "A4 utility of a GPU, least gain of three models": float(useful.min()),
    }
    return Part(figures, rows)


# A6: formulas, and the rule for changing a batch --------------------------------------------------------------------


def formulas(_: Plan) -> Part:
    """A6: efficiency, synchronisation of one GPU, and recovery of the throughput by a fit."""
    found = []
    for profile in map(BUILTIN.profile, MODELS):
        limits, law = profile.batch, profile.throughput
        assert isinstance(law, ThroughputParams)
        useful = efficiency(profile.noise(0), np.geomspace(limits.base, limits.largest, 50), limits.base)
        rising = np.count_nonzero(np.diff(useful) >= 0)
        found.append((abs(useful[0] - 1), rising, float(sync_time(law, 1, 1)), 100 * _fit_error(law, limits)))
    base, rising, alone, recovered = np.array(found).T
    figures = {
        "A6 EFF at the base batch, distance from 1": float(base.max()),
        "A6 larger batches that are not less efficient": int(rising.sum()),
        "A6 synchronisation of one GPU": float(alone.max()),
        "A6 throughput recovered by the fit, worst error": float(recovered.max()),
    }
    return Part(figures)


def _fit_error(law: ThroughputParams, limits: BatchLimits) -> float:
    """Worst relative error of the throughput of a fit to synthetic steps, including sizes that it has not seen."""
    sizes = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 8), (3, 12), (4, 16), (8, 32)]
    local = np.unique(np.geomspace(limits.min_local, limits.max_local, 5).round())
    nodes, gpus, batch = (
        np.array(column, dtype=np.float64) for column in zip(*((n, k, m) for n, k in sizes for m in local), strict=True)
    )
    step = law.step_time(nodes, gpus, batch)
    found = fit_throughput(StepMeasurements(nodes, gpus, batch, step, step - gradient_time(law, batch)))
    unseen = [(1, 2), (2, 6), (6, 24), (16, 64)]
    asked = [(n, k, float(m)) for n, k in (*sizes, *unseen) for m in (*local, limits.max_local / 3)]
    n, k, m = (np.array(column) for column in zip(*asked, strict=True))
    return float(np.max(np.abs(law.step_time(n, k, m) / found.step_time(n, k, m) - 1)))


def hysteresis(_: Plan) -> Part:
    """A6: effect of AdaptDL's rule on batch sizes and time of a training that knows its true speeds."""
    rows: list[Row] = []
    gains: list[float] = []
    for model in MODELS:
        runs = [_followed(model, gpus, (1.0, CHANGE_ABOVE)) for gpus in COUNTS]
        gains += [gain for _, ruled in runs for gain in ruled.gains]
        free, ruled = (", ".join(str(len(run[i].gains)) for run in runs) for i in (0, 1))
        times = ", ".join(f"{100 * (ruled.hours / free.hours - 1):+.1f}" for free, ruled in runs)
        row = {"model": model, "changes on 4, 8, 16 GPUs, any gain": free, f"gain above {CHANGE_ABOVE}": ruled}
        rows.append(row | {"time with the rule [%]": times})
    return Part({"A6 least gain for which a batch is changed": min(gains)}, rows)


class FollowedBatches(NamedTuple):
    """A training under the rule. gains: goodput after each change of the batch relative to before."""

    hours: float
    gains: list[float]


def _followed(model: str, gpus: int, rules: Sequence[float]) -> list[FollowedBatches]:
    """Trainings under each rule. A rule is the least gain for which the batch is changed."""
    profile = BUILTIN.profile(model)
    base = profile.batch.with_chosen().base
    facts = BUILTIN.batch_performance(JobType(model), (4,) * (gpus // 4))
    batches, scales = facts.batches, facts.batches.weighed / base
    nodes = np.full(len(scales), gpus // 4)
    seconds = profile.throughput.step_time(nodes, batches.gpus, batches.local, batches.accumulation)
    believed = np.where(batches.usable, batches.weighed / seconds, 0.0)
    seen = facts.grad_sqr[0, 0], facts.grad_var[0, 0]
    first = choose(believed, scales, np.ones(len(scales)), *seen, ChoiceRule(), -1)
    found = []
    for above in rules:
        rates, choices = np.zeros(profile.epochs), np.zeros(profile.epochs, dtype=np.int64)
        truth = (facts.grad_sqr, facts.grad_var, facts.rates)
        follow_choices(believed, scales, *truth, 0, first, ChoiceRule(above=above), rates, choices)
        changed = np.flatnonzero(np.diff(choices))
        goodput = believed[:, None] * efficiency(profile.noise(changed), batches.weighed[:, None], base)
        before, after = (goodput[choices[changed + at], np.arange(len(changed))] for at in (0, 1))
        found.append(FollowedBatches(float((1 / rates).sum()), (after / before).tolist()))
    return found
