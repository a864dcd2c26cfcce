"""A small case for agents: more data gets more GPUs."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from _cells import AGENT, TUNED, agents, kept_cells, shown, with_mean_agent
from _plan import Part, Plan
from scipy.stats import spearmanr

from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.records import RunRecord
from rlpto.evaluation.runner import Cell, FinishedCell
from rlpto.evaluation.statistics import bootstrap_interval
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment, prepare
from rlpto.performance.solo import seconds_to_finish
from rlpto.performance.tables import JobType
from rlpto.policies.spec import policy_label
from rlpto.simulator.cluster import SimulatedCluster

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
    config = plan.config(plan.home, plan.busy)
    experiment = prepare(config)
    own = {policy_label(spec): spec for spec in config.policies}
    specs = [*agents(plan, plan.home), *(own[name] for name in POLICIES)]
    windows = product(sorted({kind.model for kind in experiment.tables().types}), range(REPEATS))
    cases = {f"{model}-{repeat}": _five_jobs(experiment, model, repeat) for model, repeat in windows}
    outcome = experiment.outcome() | {"cases": {key: repr(jobs) for key, jobs in cases.items()}}
    cells = [Cell(spec, case, config.seed) for spec in specs for case in cases]
    done = kept_cells(plan, cells, partial(_run_case, config, cases), outcome, "data", config)
    found = with_mean_agent(pd.DataFrame([_peaks(cell) for cell in done]), ["window"], alone=True)
    sizes = [f"{size:g}" for size in SIZES]
    part = Part()
    for policy, mine in found.groupby("policy", sort=False):
        means = mine[sizes].mean()
        overall = float(np.nan_to_num(spearmanr(SIZES, means).statistic))
        each = bootstrap_interval(mine["spearman"].to_numpy(dtype=np.float64))
        peaks = {f"x {size}": f"{means[size]:.1f}" for size in sizes}
        part.rows.append(
            {"policy": policy, **peaks, "of the means": f"{overall:.2f}", "inside windows": shown(each, ".2f")}
        )
        if policy == AGENT:
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


def _peaks(done: FinishedCell) -> dict[str, object]:
    """Peak GPUs by data size of a cell, and their correlation."""
    jobs = done.record().jobs
    order = np.argsort(jobs.data_size)
    peaks = jobs.peak_gpus[order]
    tied = len(set(peaks.tolist())) == 1
    return {
        "policy": done.cell.policy,
        "window": done.cell.window,
        **{f"{size:g}": float(peak) for size, peak in zip(SIZES, peaks, strict=True)},
        "spearman": 0.0 if tied else float(spearmanr(jobs.data_size[order], peaks).statistic),
    }


def _run_case(config: Config, cases: dict[str, list[Job]], cell: Cell) -> RunRecord:
    experiment = prepare(config)
    jobs = cases[cell.window]
    cluster = SimulatedCluster(experiment.shape, jobs, experiment.tables(), config.simulator, cell.seed)
    policy = experiment.policy(cell.policy)
    return run(cluster, policy, config.queue, config.reward, window=cell.window, seed=cell.seed)
