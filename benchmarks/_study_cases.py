"""A small case for agents: more data gets more GPUs."""

from __future__ import annotations

from itertools import product

import numpy as np
from _cells import AGENT, TUNED, agents, shown
from _plan import Part, Plan, Workload
from scipy.stats import spearmanr

from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.evaluation.statistics import bootstrap_interval
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment, prepare
from rlpto.io.arrays import FloatArray
from rlpto.performance.solo import seconds_to_finish
from rlpto.performance.tables import JobType
from rlpto.policies.spec import policy_label
from rlpto.simulator.cluster import SimulatedCluster

HOME: Workload = "synthetic"
BUSY = 0.9
POLICIES = (TUNED, "optimus", "hesrpt", "equal_share")
"""Compared with the agents."""
SIZES = (0.1, 0.316, 1.0, 3.16, 10.0)
"""Sizes of the data, times that of the middle job."""
MIDDLE_HOURS, MIDDLE_GPUS = 1.0, 4
"""Time of the middle job, and its GPUs meanwhile."""
REPEATS = 4
"""Windows of each model: with the five jobs in another order."""


def data(plan: Plan) -> Part:
    """Five jobs of one model whose data differ by a factor of 100, submitted at once to an empty cluster.

    Mean of the most GPUs a job held at once by the size of its data; Spearman's correlation of size with these means,
    and the mean of that inside windows (ties take their mean rank; 0 where all peaks are equal).
    """
    config = plan.config(HOME, BUSY)
    experiment = prepare(config)
    own = {policy_label(spec): [spec] for spec in config.policies}
    models = sorted({kind.model for kind in experiment.tables().types})
    cases = [_five_jobs(experiment, model, repeat) for model, repeat in product(models, range(REPEATS))]
    part = Part()
    for name, specs in ({name: own[name] for name in POLICIES} | {AGENT: agents(plan, HOME)}).items():
        # [cases, sizes], the mean over the agents of all seeds.
        peaks = np.mean([[_peaks(experiment, config, spec, jobs) for jobs in cases] for spec in specs], axis=0)
        means, inside = peaks.mean(axis=0), np.array([_correlation(row) for row in peaks])
        held = {f"x {size:g}": f"{mean:.1f}" for size, mean in zip(SIZES, means, strict=True)}
        overall, each = _correlation(means), shown(bootstrap_interval(inside), ".2f")
        part.rows.append({"policy": name, **held, "of the means": f"{overall:.2f}", "inside windows": each})
        if name == AGENT:
            part.figures["more data, more GPUs: Spearman of data size and mean peak GPUs"] = overall
    return part


def _five_jobs(experiment: Experiment, model: str, repeat: int) -> list[Job]:
    """Whole trainings of one model, in random order."""
    tables = experiment.tables()
    kind = tables.type_index(JobType(model))
    epochs, per_node = float(tables.epochs[kind]), experiment.shape.gpus_per_node
    alone = float(seconds_to_finish(tables, kind, 1.0, tables.epochs[kind], MIDDLE_GPUS, per_node))
    middle = float(tables.samples[kind] * (MIDDLE_HOURS * 3600) / alone)
    sizes = np.random.default_rng([repeat, kind]).permutation(SIZES).tolist()
    return [
        Job(f"{model}-{size:g}", 0.0, model, epochs, middle * size, MIDDLE_GPUS, max_gpus=tables.max_gpus)
        for size in sizes
    ]


def _peaks(experiment: Experiment, config: Config, spec: str, jobs: list[Job]) -> FloatArray:
    """[sizes] most GPUs that a job held, by the size of its data."""
    cluster = SimulatedCluster(experiment.shape, jobs, experiment.tables(), config.simulator, config.seed)
    done = run(cluster, experiment.policy(spec), config.queue, config.reward, window="data", seed=config.seed).jobs
    return done.peak_gpus[np.argsort(done.data_size)].astype(np.float64)


def _correlation(peaks: FloatArray) -> float:
    return float(spearmanr(SIZES, peaks).statistic) if np.ptp(peaks) > 0 else 0.0
