"""AdaptDL's formulas and its rule for changing a batch (A6); part of `_study_adaptdl.py`."""

from __future__ import annotations

import math

import numpy as np
from _common import Check

from rlpto.knowledge.beliefs import choose, follow_choices
from rlpto.performance.efficiency import BatchLimits, efficiency
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.tables import JobType
from rlpto.performance.throughput import StepMeasurements, ThroughputParams, fit_throughput, gradient_time, sync_time

Row = dict[str, object]
MODELS = ("cifar10", "deepspeech2", "yolov3", "imagenet", "bert")
COUNTS = (4, 8, 16)
CHANGE_ABOVE = 1.05
"""AdaptDL changes a running job's batch size only where the new one is better by this factor."""


def formula_checks(fitted: FittedProfiles) -> tuple[list[Check], dict[str, list[Row]]]:
    profiles = [fitted.profile(model) for model in MODELS]
    base, rising, alone, recovered = 0.0, 0, 0.0, 0.0
    for profile in profiles:
        noise, limits = profile.noise(0), profile.batch
        useful = efficiency(noise, np.geomspace(limits.base, limits.largest, 50), limits.base)
        base, rising = max(base, abs(float(useful[0]) - 1)), rising + int(np.count_nonzero(np.diff(useful) >= 0))
        law = profile.throughput
        assert isinstance(law, ThroughputParams)
        alone = max(alone, float(sync_time(law, 1, 1)))
        recovered = max(recovered, _fit_error(law, limits))
    checks = [
        Check("A6 EFF at the base batch, distance from 1", base, "", 1e-12, least=False),
        Check("A6 larger batches that are not less efficient", rising, "", 0, least=False),
        Check("A6 synchronisation of one GPU", alone, "s", 0, least=False),
        Check("A6 throughput recovered by the fit, worst error", 100 * recovered, "%", 5, least=False),
    ]
    found = [_hysteresis(fitted, profile.name) for profile in profiles]
    least = min(gain for _, gain in found)
    checks.append(Check("A6 least gain for which a batch is changed", least, "times", CHANGE_ABOVE, least=True))
    return checks, {f"A6: changing the batch only above {CHANGE_ABOVE}": [row for row, _ in found]}


def _fit_error(law: ThroughputParams, limits: BatchLimits) -> float:
    """Worst relative error of the throughput of a fit to synthetic steps, at sizes that it has not seen too."""
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


def _hysteresis(fitted: FittedProfiles, model: str) -> tuple[Row, float]:
    """What AdaptDL's rule changes: batch sizes and time of a training that knows its true speeds. And the least gain
    for which a batch was changed under it."""
    profile, least = fitted.profile(model), math.inf
    limits = profile.batch.with_chosen()
    changes: dict[float, list[int]] = {1.0: [], CHANGE_ABOVE: []}
    slower = []
    for gpus in COUNTS:
        facts = fitted.batch_performance(JobType(model), (4,) * (gpus // 4))
        batches, scales = facts.batches, facts.batches.weighed / limits.base
        nodes = np.full(len(scales), gpus // 4)
        seconds = profile.throughput.step_time(nodes, batches.gpus, batches.local, batches.accumulation)
        believed = np.where(batches.usable, batches.weighed / seconds, 0.0)
        hours = {}
        for above in changes:
            rates, choices = np.zeros(profile.epochs), np.zeros(profile.epochs, dtype=np.int64)
            first = choose(believed, scales, facts.grad_sqr[0, 0], facts.grad_var[0, 0], 1.0)
            truth = (facts.grad_sqr, facts.grad_var, facts.rates)
            follow_choices(believed, scales, *truth, 0, first, 1.0, above, rates, choices)
            hours[above] = float((1 / rates).sum())
            changed = np.flatnonzero(np.diff(choices))
            changes[above].append(len(changed))
            if above == CHANGE_ABOVE:
                goodput = believed[:, None] * efficiency(profile.noise(changed), batches.weighed[:, None], limits.base)
                before, after = (goodput[choices[changed + at], np.arange(len(changed))] for at in (0, 1))
                least = min(least, float((after / before).min(initial=math.inf)))
        slower.append(100 * (hours[CHANGE_ABOVE] / hours[1.0] - 1))
    row: Row = {
        "model": model,
        "changes on 4, 8, 16 GPUs, any gain": ", ".join(map(str, changes[1.0])),
        f"gain above {CHANGE_ABOVE}": ", ".join(map(str, changes[CHANGE_ABOVE])),
        "time with the rule [%]": ", ".join(f"{value:+.1f}" for value in slower),
    }
    return row, least
