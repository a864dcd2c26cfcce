"""AdaptDL with selectable metrics: its acceptance behaviours, from profiles, from simulations and from real training.

About 70 CPU-seconds, 50 of them real training of scikit-learn's digits. Without the folder of shared data the
figures come from the built-in fits alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from _adaptdl_formulas import COUNTS, MODELS, Row, formula_checks
from _common import Check

from rlpto.core.cluster import Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import FloatArray
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.efficiency import BatchLimits, choose_batch, efficiency
from rlpto.performance.fitted import SPANS, FittedProfiles, choices_by_size
from rlpto.performance.metrics import EFFICIENCY_BAND, METRIC_NAMES, METRICS, STOCK_BAND, MetricName, UtilityBand
from rlpto.performance.profiles import ProfileSource
from rlpto.performance.solo import TrainingEstimate, chosen_gpus, predict_training
from rlpto.performance.tables import JobType
from rlpto.performance.throughput import ThroughputParams
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

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
"""Percent by which the throughput metric is slower on `COUNTS` GPUs, as the reference has computed it."""
RAISED = {"cifar10": "16 to 4, +152, -37", "deepspeech2": "+147, -38", "imagenet": "64 to 20, +127, -29"}
"""GPUs, time and GPU-hours in percent of raised thresholds, likewise."""


def measure(data: Path | None) -> tuple[list[Check], dict[str, list[Row]]]:
    """Checks of A1 to A6, and their tables."""
    fitted = load_profiles(None)
    assert isinstance(fitted, FittedProfiles)
    source: ProfileSource = fitted if data is None else load_profiles(data / "profiles")
    checks, tables = [], {}
    for part in (
        _training_checks(),
        _stock_checks(fitted),
        _throughput_checks(source, fitted),
        _threshold_checks(source, measured=data is not None),
        formula_checks(fitted),
    ):
        checks += part[0]
        tables |= part[1]
    return checks, tables


# A1: real training --------------------------------------------------------------------------------------------------

LAW = ThroughputParams(0.01, 1e-3, 0.02, 5e-4, 0.01, 5e-4, 2.0)
"""Step times of the GPUs that training pretends to have: 1 ms a sample, 10 to 40 ms to synchronise."""
LIMITS = BatchLimits(base=64, largest=512, min_local=8, max_local=512)
EXTREME = replace(LIMITS, largest=1024)
"""A batch of most of the data: shown, not claimed."""
USUAL_NOISE = 200.0
"""Samples; about what the digits' noise scale comes to, for the choice of GPUs."""
PROGRAMS = (
    ("DigitsMlp", "adascale", 20.0, 10),
    ("DigitsCnn", "sqrt", 6.0, 5),
)
"""Training program, rule of the learning rate, scale-invariant epochs, seeds."""
DIGITS = 1437


def _training_checks() -> tuple[list[Check], dict[str, list[Row]]]:
    """Final accuracy of real training whose batch sizes the metrics choose from the measured noise scale."""
    import torch

    torch.set_num_threads(1)
    checks: list[Check] = []
    rows: list[Row] = []
    for program, rule, epochs, seeds in PROGRAMS:
        stock = np.zeros(0)
        for metric, limits in (*((metric, LIMITS) for metric in METRIC_NAMES), ("throughput", EXTREME)):
            gpus = _gpus_for(metric, limits)
            runs = [_train(program, rule, epochs, metric, limits, gpus, seed) for seed in range(seeds)]
            accuracy, seconds, batch = (np.array(column) for column in zip(*runs, strict=True))
            stock = stock if len(stock) else accuracy
            difference, spread = 100 * float(accuracy.mean() - stock.mean()), 100 * float(stock.std(ddof=1))
            if metric != "goodput" and limits is LIMITS:
                name = f"A1 {program}: accuracy, {metric} against goodput"
                checks.append(Check(name, abs(difference), "points", max(0.5, 2 * spread), least=False))
            rows.append(
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
    return checks, {"A1: real training of digits": rows}


def _gpus_for(metric: MetricName, limits: BatchLimits) -> int:
    """GPUs of 1 to 16 that the metric's thresholds ask for."""
    found = choose_batch(LAW, np.array([USUAL_NOISE]), limits, SPANS, 16, None, METRICS[metric].exponent)
    score = np.array([found.score[_nodes(gpus) - 1, gpus - 1, 0] for gpus in range(1, 17)])
    return chosen_gpus(score / score[0] / np.arange(1, 17), range(1, 17), METRICS[metric].band)


def _nodes(gpus: int) -> int:
    """One node, or several, of 4 GPUs each."""
    return min(-(-gpus // 4), SPANS)


def _train(
    program: str, rule: str, epochs: float, metric: MetricName, limits: BatchLimits, gpus: int, seed: int
) -> tuple[float, float, int]:
    """Final accuracy, seconds by the modelled step times, and the last batch size."""
    from rlpto.ray_cluster.messages import JobSpec
    from rlpto.ray_cluster.worker.training import Trainer

    spec = JobSpec(
        id="a1",
        name="a1",
        session="a1",
        training=f"rlpto.ray_cluster.programs.digits:{program}",
        folder="none",
        batch_size=limits.base,
        epochs=epochs,
        data_size=DIGITS,
        lr_rule=rule,  # type: ignore[arg-type]
        seed=seed,
        device="cpu",
    )
    trainer, seconds, batch = Trainer(spec), 0.0, limits.base
    while not trainer.finished:
        noise = trainer.noise.noise_scale
        if math.isfinite(noise) and noise > 0:
            found = choose_batch(LAW, np.array([noise]), limits, SPANS, gpus, None, METRICS[metric].exponent)
            batch = int(found.batch[_nodes(gpus) - 1, gpus - 1, 0])
        done = trainer.run(trainer.position.step + max(DIGITS // batch, 1), batch)
        seconds += done.steps * float(LAW.step_time(_nodes(gpus), gpus, batch / gpus))
    return trainer.evaluate(), seconds, batch


# A2: the option by itself -------------------------------------------------------------------------------------------


def _stock_checks(fitted: FittedProfiles) -> tuple[list[Check], dict[str, list[Row]]]:
    """Decisions and times of jobs that name goodput, in tables that hold all metrics, against jobs without metrics."""
    rows: list[Row] = []
    worst_change, worst_time = 0.0, 0.0
    for policy in ("equal_share", "max_throughput", "optimus", "srtf"):
        stock, named = (_simulated(fitted, policy, "goodput", every) for every in (False, True))
        same = len(stock[1]) == len(named[1]) and bool(np.array_equal(stock[1], named[1]))
        worst_change = max(worst_change, 0.0 if same else 1.0)
        worst_time = max(worst_time, abs(named[0] / stock[0] - 1))
        others = {metric: _simulated(fitted, policy, metric, every=True)[0] for metric in METRIC_NAMES[1:]}
        rows.append(
            {
                "policy": policy,
                "stock: mean JCT [s]": round(stock[0], 1),
                "goodput": round(named[0], 1),
                **{metric: round(value, 1) for metric, value in others.items()},
                "decisions as stock": "all" if same else "not all",
            }
        )
    checks = [
        Check("A2 policies whose decisions differ with metric goodput", worst_change, "", 0, least=False),
        Check("A2 mean JCT with metric goodput against stock", 100 * worst_time, "%", 3, least=False),
    ]
    return checks, {"A2: the option by itself (24 jobs on 8 nodes of 4 GPUs)": rows}


def _simulated(fitted: FittedProfiles, policy: str, metric: MetricName, every: bool) -> tuple[float, FloatArray]:
    """Mean JCT [s] and [n, 3] every change of GPUs. every: tables hold types of all metrics."""
    rng = np.random.default_rng(17)
    submit = np.sort(rng.uniform(0, 4 * 3600, 24))
    models = [MODELS[i] for i in rng.choice((0, 1, 4), 24)]
    facts = {model: fitted.facts(model) for model in MODELS}
    jobs = [
        Job(f"job-{i}", float(submit[i]), model, float(facts[model].epochs), facts[model].samples, 1, 1, 16)
        for i, model in enumerate(models)
    ]
    jobs = [replace(job, metric=metric) for job in jobs]
    names = METRIC_NAMES if every else (metric,)
    tables = compile_tables(fitted, [JobType(model, None, name) for model in MODELS for name in names], 32, 4)
    cluster = SimulatedCluster((Node(4),) * 8, jobs, tables, SimulatorSettings())
    record = run(cluster, make_policy(policy), QueueSettings(), RewardWeights())
    changes = record.changes
    jct = float(np.mean(cluster.store.finish_time - cluster.store.submit_time))
    return jct, np.column_stack([changes.time, changes.job, changes.gpus]).astype(np.float64)


# A3: the throughput metric ------------------------------------------------------------------------------------------


def _throughput_checks(source: ProfileSource, fitted: FittedProfiles) -> tuple[list[Check], dict[str, list[Row]]]:
    rows: list[Row] = []
    faster: list[float] = []
    slower: list[float] = []
    off: list[float] = []
    for model in MODELS:
        found = predict_training(source, model, COUNTS, ("goodput", "throughput"))
        longer = [late.hours / soon.hours for soon, late in zip(found, found[len(COUNTS) :], strict=False)]
        more = [
            _samples_per_second(fitted, model, "throughput", gpus) / _samples_per_second(fitted, model, "goodput", gpus)
            for gpus in COUNTS
        ]
        faster += more
        slower += longer
        off += [abs(100 * (ratio - 1) - known) for ratio, known in zip(longer, SLOWER[model], strict=True)]
        rows.append(
            {
                "model": model,
                "samples/s on 4, 8, 16 GPUs [%] (fits)": _listed(100 * (ratio - 1) for ratio in more),
                "time to target [%]": _listed(100 * (ratio - 1) for ratio in longer),
                "reference [%]": _listed(SLOWER[model]),
            }
        )
    checks = [
        Check("A3 least samples/s with throughput against goodput", min(faster), "", 1 - 1e-9, least=True),
        Check("A3 least time to target with throughput against goodput", min(slower), "", 1 - 1e-9, least=True),
    ]
    if source is not fitted:
        checks.append(Check("A3 largest difference from the reference", max(off), "points", 3, least=False))
    return checks, {"A3: throughput metric against goodput, same GPUs": rows}


def _listed(percent: Iterable[float]) -> str:
    return ", ".join(f"{value:+.0f}" for value in percent)


def _samples_per_second(fitted: FittedProfiles, model: str, metric: MetricName, gpus: int) -> float:
    """Mean over a training's epochs with the batch sizes that a metric chooses, on whole nodes of 4."""
    profile = fitted.profile(model)
    found = choices_by_size(profile, JobType(model, None, metric), gpus)
    at = (_nodes(gpus) - 1, gpus - 1)
    useful = efficiency(profile.noise(np.arange(profile.epochs)), found.batch[at], profile.batch.base)
    samples = profile.samples / useful
    return float(samples.sum() / (profile.samples / found.progress[at]).sum())


# A4, A5: thresholds -------------------------------------------------------------------------------------------------


def _threshold_checks(source: ProfileSource, measured: bool) -> tuple[list[Check], dict[str, list[Row]]]:
    rows: list[Row] = []
    longer, cheaper, useful = [], [], []
    grown = outside = 0
    for model in MODELS:
        by_gpus = predict_training(source, model, NODES, ("goodput",))
        stock = _chosen(by_gpus, STOCK_BAND)
        for band in (STOCK_BAND, UtilityBand(0.5, 0.8), EFFICIENCY_BAND):
            raised = _chosen(by_gpus, band)
            figures = [
                100 * (getattr(raised, column) / getattr(stock, column) - 1)
                for column in ("hours", "gpu_hours", "utility")
            ]
            if model in PUBLISHED and band is EFFICIENCY_BAND:
                for kept, figure in zip((longer, cheaper, useful), figures, strict=True):
                    kept.append(figure)
            rows.append(
                {
                    "model": model,
                    "thresholds": f"{band.min_util:.2f}-{band.max_util:.2f}",
                    "GPUs": raised.gpus,
                    "utility": round(raised.utility, 2),
                    "hours": round(raised.hours, 2),
                    "GPU-hours": round(raised.gpu_hours, 1),
                    "time": f"{figures[0]:+.0f} %",
                    "GPU-hours against stock": f"{figures[1]:+.0f} %",
                    "utility against stock": f"{figures[2]:+.0f} %",
                    "reference": RAISED.get(model, "") if band is EFFICIENCY_BAND else "",
                }
            )
        grown += _grown(by_gpus)
        outside += any(STOCK_BAND.holds(row.utility) for row in by_gpus) and not STOCK_BAND.holds(stock.utility)
    mean = [float(np.mean(figures)) for figures in (longer, cheaper, useful)]
    of_measurements = [
        Check("A4 time with thresholds 0.6-0.9, mean of three models, at least", mean[0], "%", 60, least=True),
        Check("A4 time with thresholds 0.6-0.9, mean of three models, at most", mean[0], "%", 150, least=False),
        Check("A4 GPU-hours saved, mean of three models, at least", -mean[1], "%", 15, least=True),
        Check("A4 GPU-hours saved, mean of three models, at most", -mean[1], "%", 40, least=False),
        Check("A4 utility of a GPU, least gain of three models", min(useful), "%", 15, least=True),
    ]
    checks = [
        Check("A5 raised thresholds that add GPUs", grown, "cases", 0, least=False),
        Check("A5 models outside the stock thresholds where they can be kept", outside, "models", 0, least=False),
    ]
    return of_measurements * measured + checks, {"A4: raised thresholds, whole nodes of 4 GPUs": rows}


def _chosen(by_gpus: Sequence[TrainingEstimate], band: UtilityBand) -> TrainingEstimate:
    utility = np.zeros(max(row.gpus for row in by_gpus))
    utility[[row.gpus - 1 for row in by_gpus]] = [row.utility for row in by_gpus]
    best = chosen_gpus(utility, [row.gpus for row in by_gpus], band)
    return next(row for row in by_gpus if row.gpus == best)


def _grown(by_gpus: Sequence[TrainingEstimate]) -> int:
    """Pairs of thresholds of which those that are nowhere lower choose more GPUs."""
    steps = [round(0.05 * i, 2) for i in range(2, 21)]
    bands = [UtilityBand(low, high) for low, high in itertools.combinations(steps, 2)]
    gpus = {band: _chosen(by_gpus, band).gpus for band in bands}
    return sum(
        gpus[higher] > gpus[lower]
        for lower, higher in itertools.product(bands, bands)
        if higher.min_util >= lower.min_util and higher.max_util >= lower.max_util
    )
