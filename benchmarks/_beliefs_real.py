"""The two fits of throughput on what real jobs report: speeds of a few sizes, with noise, and no synchronisation.

Truth is a built-in model's law, or Pollux's measurements of it. A job reports the speeds of some of 16 sizes, packed on
nodes of 4 GPUs; the error is that of the speed at the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from _common import Check

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.knowledge.online_fit import fit_observed
from rlpto.performance.compile import load_profiles
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.measured import MeasuredProfiles
from rlpto.performance.throughput import StepMeasurements, ThroughputParams, fit_throughput
from rlpto.ray_cluster.measuring.measured_profile import steps_of
from rlpto.ray_cluster.messages import Measured
from rlpto.ray_cluster.settings import ProgramSettings

MODELS = ("cifar10", "deepspeech2", "yolov3", "imagenet", "bert")
SIZES, PER_NODE = np.arange(1, 17), 4
NODES = -(-SIZES // PER_NODE)
JOBS_EACH = 5
NOISE = 0.1
SEEN = (3, 6)
RULES = ("fixed", "per_worker")
Row = dict[str, object]


def compare(data: Path | None) -> tuple[list[Check], list[Row]]:
    """Rows of the comparison, and the check that it still says what was decided: the robust fit predicts better.

    data: the folder of shared data; None: laws are all the truth there is.
    """
    law = load_profiles(None)
    assert isinstance(law, FittedProfiles)
    truths: dict[str, FittedProfiles | MeasuredProfiles] = {"law": law}
    if data is not None:
        truths = {"measured": MeasuredProfiles(data / "profiles")} | truths
    rows: list[Row] = []
    means: list[FloatArray] = []
    for (name, truth), rule in product(truths.items(), RULES):
        row: Row = {"truth": name, "batch": rule}
        for seen in SEEN:
            errors = np.array(list(errors_of(truth, rule, seen)))
            means.append(errors.mean(axis=0))
            for column, fit in zip(errors.T, ("online fit", "robust"), strict=True):
                row[f"{fit}, {seen} sizes"] = f"{column.mean():.2f} ({np.quantile(column, 0.9):.2f})"
        rows.append(row)
    online, robust = np.mean(means, axis=0)
    return [Check("error of the robust fit over the online fit's, mean of all", robust / online, "", 1.0, False)], rows


def errors_of(truth: FittedProfiles | MeasuredProfiles, rule: str, seen: int) -> Iterator[tuple[float, float]]:
    """Mean relative error of speeds at sizes that were not seen, by the online and by the robust fit, for each job."""
    for number, (model, job) in enumerate(product(MODELS, range(JOBS_EACH))):
        rng = np.random.default_rng([31, number, job])
        limits = truth.limits(model)
        batch = limits.base if rule == "fixed" else min(limits.base, limits.max_local)
        total = batch * SIZES if rule == "per_worker" else np.full(len(SIZES), batch)
        local = total / SIZES
        seconds = step_seconds(truth, model, local)
        speed = total / seconds
        at = np.sort(rng.choice(len(SIZES), seen, replace=False))
        told = speed[at] * rng.lognormal(0.0, NOISE, seen)
        program = ProgramSettings(training="none:None", batch_size=batch, batch_rule=rule)  # type: ignore[arg-type]
        steps = reported(program, at, told)
        online = fit_observed(with_sync(steps, program))
        others = np.setdiff1d(np.arange(len(SIZES)), at)
        yield tuple(error(fit, local, speed, others) for fit in (online, fit_throughput(steps)))  # type: ignore[misc]


def step_seconds(truth: FittedProfiles | MeasuredProfiles, model: str, local: FloatArray) -> FloatArray:
    """[16] true seconds of a step by size."""
    if isinstance(truth, FittedProfiles):
        return np.asarray(truth.profile(model).throughput.step_time(NODES, SIZES, local))
    return truth.model(model).size_steps(NODES, SIZES, np.ceil(local).astype(np.int64)).step


def reported(program: ProgramSettings, at: IntArray, speed: FloatArray) -> StepMeasurements:
    """Steps as a scheduler takes them from reports of speeds at sizes number `at`; see `estimated_throughput`."""
    sizes = [Measured(int(SIZES[i]), int(NODES[i]), float(one), 100) for i, one in zip(at, speed, strict=True)]
    if sizes[0].workers > 1:
        sizes.insert(0, Measured(1, 1, sizes[0].samples_per_second / sizes[0].workers, 100))
    return steps_of(program, tuple(sizes))


def with_sync(steps: StepMeasurements, program: ProgramSettings) -> StepMeasurements:
    """With the synchronisation that Pollux's fit asks for: a share of the batch is taken to need that share of a lone
    worker's step to compute."""
    compute = steps.step_time[0] * steps.local_batch / program.batch_size
    return replace(steps, sync_time=np.maximum(steps.step_time - compute, 0.0))


def error(fit: ThroughputParams, local: FloatArray, speed: FloatArray, others: IntArray) -> float:
    """Mean relative error of the speeds at the other sizes."""
    believed = local * SIZES / fit.step_time(NODES, SIZES, local)
    return float(np.abs(believed / speed - 1)[others].mean())
