"""What is known of a large model's throughput before it was seen: how others scale from their smallest size on."""

from __future__ import annotations

from functools import cache

import numpy as np

from rlpto.knowledge.bayes_fit import fit_with_prior
from rlpto.knowledge.prior import ThroughputPrior, prior_of, prior_without, reference_batch
from rlpto.performance.profiles import PLAN_MARK, large_profiles
from rlpto.performance.size_table import SizeTable
from rlpto.performance.throughput import StepMeasurements

FEWEST_SIZES = 3
"""Measured sizes that say how a model scales."""


def prior_for(model: str, unit: int) -> ThroughputPrior:
    """The prior of a model that runs on multiples of `unit` GPUs; 0: on any number."""
    return size_prior_without(model) if unit else prior_without(model)


@cache
def size_prior_without(model: str) -> ThroughputPrior:
    """The prior from the tables of sizes of all models that come with RLPTO, on all their kinds of GPU, but the one of
    that name. A unit of GPUs, which all sizes of a model are multiples of, takes the place of one GPU."""
    points = [
        fit_with_prior(_rows(table, unit, limits.base), prior_without(model), reference_batch(limits, unit)).point
        for name, profile in large_profiles().items()
        if name != model.partition(PLAN_MARK)[0]
        for limits, table in ((profile.on(kind).batch, speed.throughput) for kind, speed in profile.kinds.items())
        if isinstance(table, SizeTable) and len(table.sizes) >= FEWEST_SIZES
        for unit in (int(np.gcd.reduce(table.sizes)),)
    ]
    return prior_of(np.array(points))


def _rows(table: SizeTable, unit: int, batch: int) -> StepMeasurements:
    """The measured steps of a total batch, in units; how much of them is synchronising is not known."""
    nodes, gpus, seconds = np.array(table.steps, dtype=np.float64).T
    units = gpus / unit
    return StepMeasurements(
        np.where(units > 1.0, nodes, 1.0), units, batch / units, seconds, np.full(len(units), np.nan)
    )
