"""Estimated speeds by the largest observed number of GPUs: a table instead of a fit for every job.

Compiled clusters, on which agents learn and constants are tuned, cannot run fits during a simulation. The fits of every
job type are made in advance: to the true steps with 1, 2, 4, ... GPUs up to each size, halfway through the training.
Jobs that run their own fits may have skipped sizes, and observe changing gradient statistics.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.io.arrays import FloatArray
from rlpto.knowledge.bayes_fit import prior_for
from rlpto.knowledge.estimates import ThroughputFit
from rlpto.knowledge.evidence import Statistics, Step
from rlpto.knowledge.known import BatchCache, EstimateRules, Knowledge
from rlpto.knowledge.remaining import RemainingKnowledge
from rlpto.performance.efficiency import useful_gpus
from rlpto.performance.metrics import METRICS
from rlpto.performance.tables import SpeedTables, packed_groups


def levels_of(most: int) -> int:
    """Number of observation levels with at most `most` GPUs: 0 for no observation, then up to 1, 3, 7, ... GPUs."""
    return most.bit_length() + 1


def estimated_by_size(truth: BatchCache, rules: EstimateRules, tables: SpeedTables, gpus_per_node: int) -> FloatArray:
    """[T, L, K + 1] estimated over true speed of jobs of each type with k GPUs, packed, by observation level.

    truth: performance of batches. gpus_per_node: size of the nodes on which jobs are packed. An observation on one GPU
    type counts for all, and on a GPU type on which a model does not fit estimates are true.
    """
    factor = np.ones((len(tables.types), levels_of(tables.max_gpus), tables.max_gpus + 1))
    packed = tables.packed_rows(gpus_per_node)
    first = tables.by_gpu_type[tables.pooled, tables.gpu_type]
    for number in np.unique(first).tolist():
        if not tables.floor_size.size or tables.floor_size[number].any():
            middle, nodes = int(tables.epochs[number]) // 2, int(min(gpus_per_node, tables.node_gpus[number]))
            true = tables.shown_rates[packed[number], min(middle, tables.rates.shape[1] - 1)]
            worth = float(truth.source.epoch_samples(tables.types[number].model)[middle])
            estimated = _speeds(number, truth, rules, tables, nodes, middle) / worth
            np.divide(estimated, true, out=factor[number], where=(true > 0) & (estimated > 0))
    return factor[first]


def _speeds(
    number: int, truth: BatchCache, rules: EstimateRules, tables: SpeedTables, gpus_per_node: int, epoch: int
) -> FloatArray:
    """[L, K + 1] estimated samples per second of a type, converted to the base batch, from steps in an epoch."""
    job_type, most, gpu_type = tables.types[number], tables.max_gpus, tables.gpu_types[tables.gpu_type[number]]
    limits, exponent = truth.source.limits(job_type.model, gpu_type), METRICS[job_type.metric].exponent
    unit = tables.unit(number)
    prior = prior_for(job_type.model, unit) if rules.method == "bayes" else None
    fit = ThroughputFit(limits, job_type.batch_size, most, exponent, prior, max(unit, 1))
    spans = (np.arange(1, most + 1) > gpus_per_node).astype(np.int64)
    found, seen = np.zeros((levels_of(most), most + 1)), (1.0, 0.0)
    for level in range(levels_of(most)):
        gpus = 1 << level >> 1
        if 0 < gpus <= useful_gpus(job_type.batch_size, most, limits):
            placement = packed_groups(gpus, gpus_per_node)
            true = truth(job_type, placement, gpu_type)
            choice = int(np.argmax(true.rates[:, epoch]))
            size = len(placement), gpus, int(true.batches.taken[choice])
            if fit.observe(Step(*size, float(true.step[choice]), float(true.sync[choice]))):
                fit.fit()
            gradients = float(true.grad_sqr[choice, epoch]), float(true.grad_var[choice, epoch])
            scale = float(true.batches.weighed[choice]) / limits.base
            seen = Statistics(*gradients, scale).at_base(rules.noise_slope)
        found[level, 1:] = fit.score(*seen, rules.noise_slope).best[spans, np.arange(most)]
    return found


class CompiledEstimates(NamedTuple):
    """Rules of estimates in a compiled loop.

    guessed, learnt, tail: rule for remaining work that is not declared, in `rlpto.knowledge.remaining.RemainingWork`.
    by_size: [T, L, K + 1] estimated over true speed by observation level, from `rlpto.knowledge.by_size`. Default:
    speeds are known. shared: jobs of a type share observations. unseen: remaining seconds that jobs seem to have before
    any observation, with any number of GPUs; with 0, `by_size` applies.
    """

    guessed: bool = False
    learnt: bool = False
    tail: float = 1.0
    by_size: FloatArray = np.zeros((0, 0, 0))
    shared: bool = False
    unseen: float = 0.0

    @classmethod
    def of(cls, knowledge: Knowledge, tables: SpeedTables, gpus_per_node: int) -> CompiledEstimates:
        """Compile knowledge whose `remaining` is in COMPILED_WORK; noise is given by workload instead."""
        work = knowledge.remaining != "declared", knowledge.remaining == "learnt", knowledge.tail
        if knowledge.performance is None:
            return cls(*work)
        rules = knowledge.rules
        by_size = estimated_by_size(knowledge.performance, rules, tables, gpus_per_node)
        return cls(*work, by_size, rules.shared, 3600.0 * (rules.unseen_hours or 0.0))


COMPILED_WORK: tuple[RemainingKnowledge, ...] = ("declared", "learnt", "unknown")
"""Rules for remaining work that compiled loops support."""
ALL_KNOWN = CompiledEstimates()
"""Rules with exact knowledge."""
