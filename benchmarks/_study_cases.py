"""Two small cases for agents: more data gets more GPUs, and a converging job gives GPUs to another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from _cells import AGENT, KEEPING, TUNED, agents, kept_cells, label_of, make, shown, with_mean_agent
from _plan import Part, Plan
from scipy.stats import spearmanr

from rlpto.core.cluster import Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.records import RunRecord
from rlpto.evaluation.runner import Cell, FinishedCell
from rlpto.evaluation.statistics import bootstrap_interval
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment, prepare
from rlpto.performance.solo import seconds_to_finish
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.simulator.cluster import SimulatedCluster

POLICIES = (TUNED, "optimus", "hesrpt", "equal_share")
"""Compared with the agents where jobs differ in their data."""
SIZES = (0.1, 0.316, 1.0, 3.16, 10.0)
"""Sizes of the data, times that of the middle job."""
MIDDLE_HOURS, MIDDLE_GPUS = 1.0, 4
"""Time of the middle job, and its GPUs meanwhile."""
REPEATS = 4
"""Windows of each model: with the five jobs in another order."""

NODE, CASE_GPUS = 4, 16
CASE_NODES = (Node(NODE, 0),) * (CASE_GPUS // NODE)
CONVERGING_GPUS = 8
"""Half of the GPUs; 9 of 16 there, but here a ninth would be on a node of its own, which slows it down."""
SLOWER = 6.0
"""The case of two jobs, times as long: our rescales cost 10 s and more, there they cost less."""
GAINED = 0.9
"""Share of its accuracy from which a job counts as converging, where the queue has that rule."""
ALONE, RULED = "on its own", "with the rule"
WAYS = {ALONE: (), RULED: (f"queue.converging.gained={GAINED:g}",)}
"""Settings under which jobs may shrink."""
FIRST, SECOND_FIRST, SECOND_ALONE, SECOND_AT = 551.0, 351.0, 431.0, 200.0
"""Seconds in that case without shrinking: of the converging job on its GPUs; of the other on the rest meanwhile, then
on all; and the moment the other comes."""


class Case(NamedTuple):
    """Jobs on machines of their own, to be scheduled once."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]


def data(plan: Plan) -> Part:
    """Five jobs of one model whose data differ by a factor of 100, submitted at once to an empty cluster.

    Mean of the most GPUs a job held at once by the size of its data; Spearman's correlation of size with these means,
    and the mean of that inside windows (ties take their mean rank; 0 where all peaks are equal).
    """
    config = plan.config(plan.home, plan.busy)
    experiment = prepare(config)
    cases = {
        f"{model}-{repeat}": Case(experiment.shape, _five_jobs(experiment, model, repeat))
        for model in sorted({kind.model for kind in experiment.tables().types})
        for repeat in range(REPEATS)
    }
    done = run_cases(plan, config, cases, specs_of(plan, config, POLICIES), "data")
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


def _five_jobs(experiment: Experiment, model: str, repeat: int) -> tuple[Job, ...]:
    """Jobs of one model, in random order."""
    tables = experiment.tables()
    kind = tables.type_index(JobType(model))
    middle = _size_for(tables, kind, MIDDLE_GPUS, MIDDLE_HOURS * 3600, experiment.shape.gpus_per_node)
    sizes = np.random.default_rng([repeat, kind]).permutation(SIZES).tolist()
    return tuple(_job(tables, kind, f"{model}-{size:g}", middle * size, MIDDLE_GPUS, tables.max_gpus) for size in sizes)


def _job(tables: SpeedTables, kind: int, name: str, data_size: float, gpus: int, most: int, submit: float = 0.0) -> Job:
    """A whole training of a type. gpus: that it asks for."""
    model, epochs = tables.types[kind].model, float(tables.epochs[kind])
    return Job(name, submit, model, epochs, data_size, gpus, max_gpus=most)


def _size_for(tables: SpeedTables, kind: int, gpus: int, seconds: float, gpus_per_node: int) -> float:
    """Samples with which a job of a type takes `seconds` on that many packed GPUs."""
    return float(tables.samples[kind] * seconds / _alone(tables, kind, gpus, gpus_per_node))


def _alone(tables: SpeedTables, kind: int, gpus: int, gpus_per_node: int) -> float:
    """Seconds that a job of a type takes on that many packed GPUs, with the data of its profile."""
    return float(seconds_to_finish(tables, kind, 1.0, tables.epochs[kind], gpus, gpus_per_node))


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


def converge(plan: Plan) -> Part:
    """Two jobs: what the second gains, and the first loses, if the first may be shrunk as it converges."""
    config = plan.config(plan.home, plan.busy)
    experiment = prepare(config)
    models = [kind.model for kind in experiment.tables().types]
    scaling = [model for number, model in enumerate(models) if _scales(experiment.tables(), number)]
    cases = {
        f"{model}-{other}": Case(CASE_NODES, _pair(experiment, model, other)) for model in models for other in scaling
    }
    specs = specs_of(plan, config, (TUNED,))
    kept = run_cases(plan, config, cases, [KEEPING + spec for spec in specs], "converge-keeping")
    part = Part()
    for way, settings in WAYS.items():
        own = plan.config(plan.home, plan.busy, *settings)
        done = run_cases(plan, own, cases, specs, f"converge-{way.replace(' ', '-')}")
        effects = [_effect(shrunk, whole) for shrunk, whole in zip(done, kept, strict=True)]
        cells = with_mean_agent(pd.DataFrame(effects), ["window"], alone=True)
        for policy, mine in cells.groupby("policy", sort=False):
            part.rows.append(
                {
                    "policy": policy,
                    "shrinks": way,
                    "JCT of the other": _change(mine["other"]),
                    "JCT of the converging one": _change(mine["converging"]),
                    "makespan": _change(mine["makespan"]),
                    "accuracy": f"{100 * mine['accuracy'].abs().max():.2f}",
                }
            )
            if policy == AGENT:
                part.figures[f"a converging job shrinks {way}: JCT of the other"] = 100 * float(mine["other"].mean())
                if way == RULED:
                    part.figures[f"... {way}: JCT of the converging one"] = 100 * float(mine["converging"].mean())
                    part.figures[f"... {way}: final accuracy"] = 100 * float(mine["accuracy"].max())
    return part


def specs_of(plan: Plan, config: Config, policies: Sequence[str]) -> list[str]:
    """Specs of the agents, and of policies by the names that they have in tables."""
    own = {label_of(spec): spec for spec in config.policies}
    return [*agents(plan, plan.home), *(own[name] for name in policies)]


def _change(shares: pd.Series[float]) -> str:
    """Mean with interval over cases, as a signed share."""
    return shown(bootstrap_interval(shares.to_numpy(dtype=np.float64)), "+.1%")


def _scales(tables: SpeedTables, kind: int) -> bool:
    """True if the case's machines run a type at half of linear speed-up or more: others have no use for them."""
    return _alone(tables, kind, 1, NODE) / _alone(tables, kind, CASE_GPUS, NODE) >= CASE_GPUS / 2


def _pair(experiment: Experiment, model: str, other: str) -> tuple[Job, Job]:
    """The job that comes first, and converges; and the one that comes later, and can use all GPUs."""
    tables = experiment.tables()
    first, second = (tables.type_index(JobType(name)) for name in (model, other))
    size = _size_for(tables, first, CONVERGING_GPUS, SLOWER * FIRST, NODE)
    rest = CASE_GPUS - CONVERGING_GPUS
    # The other is done in FIRST next to the converging job and SECOND_ALONE after it: its shares add up to one.
    share = SECOND_FIRST / _alone(tables, second, rest, NODE) + SECOND_ALONE / _alone(tables, second, CASE_GPUS, NODE)
    data = float(tables.samples[second]) * SLOWER * share
    return (
        _job(tables, first, "converging", size, CONVERGING_GPUS, CONVERGING_GPUS),
        _job(tables, second, "other", data, rest, CASE_GPUS, SLOWER * SECOND_AT),
    )


def _effect(shrunk: FinishedCell, whole: FinishedCell) -> dict[str, object]:
    """Relative changes that shrinking makes. The first job is the converging one."""
    after, before = shrunk.record().jobs, whole.record().jobs
    change = (after.finish_time - after.submit_time) / (before.finish_time - before.submit_time) - 1
    return {
        "policy": shrunk.cell.policy,
        "window": shrunk.cell.window,
        "other": float(change[1]),
        "converging": float(change[0]),
        "makespan": float(after.finish_time.max() / before.finish_time.max() - 1),
        "accuracy": float(np.abs(after.final_accuracy - before.final_accuracy).max()),
    }


def run_cases(
    plan: Plan, config: Config, cases: dict[str, Case], specs: Sequence[str], name: str
) -> list[FinishedCell]:
    """Every policy on every case, kept like the cells of an evaluation; policies in order, cases inside."""
    outcome = prepare(config).outcome() | {"cases": {key: repr(case) for key, case in cases.items()}}
    cells = [Cell(spec, case, config.seed) for spec in specs for case in cases]
    return kept_cells(plan, cells, partial(_run_case, config, cases), outcome, name, config)


def _run_case(config: Config, cases: dict[str, Case], cell: Cell) -> RunRecord:
    experiment, case = prepare(config), cases[cell.window]
    cluster = SimulatedCluster(case.nodes, list(case.jobs), experiment.tables(), config.simulator, cell.seed)
    policy = make(experiment, cell.policy)
    return run(cluster, policy, config.queue, config.reward, window=cell.window, seed=cell.seed)
