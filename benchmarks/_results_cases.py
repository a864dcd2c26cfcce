"""Two small cases of the proof: more data gets more GPUs, and a converging job gives GPUs to another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from _results_page import Claim, Section, save_section, shown, table
from _results_plan import AGENT, TUNED, Plan
from _results_runs import KEEPING, MEMBER, agents, billed, kept_cells, label_of, make
from scipy.stats import spearmanr

from rlpto.cluster import Node
from rlpto.config import Config
from rlpto.evaluation.runner import Cell, FinishedCell
from rlpto.evaluation.statistics import bootstrap_interval
from rlpto.experiment import Experiment, prepare
from rlpto.jobs import Job
from rlpto.performance.solo import seconds_to_finish
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.records import RunRecord
from rlpto.scheduler import run
from rlpto.simulator.cluster import SimulatedCluster

SIZES = (0.1, 0.316, 1.0, 3.16, 10.0)
"""Sizes of the data, times that of the middle job."""
MIDDLE_HOURS, MIDDLE_GPUS = 1.0, 4
"""The middle job takes so many hours on so many GPUs."""
REPEATS = 4
"""Windows of each model: with the five jobs in another order."""

GAINED = 0.9
"""Share of its accuracy from which a job counts as converging, where the queue has that rule."""
CASE_NODES = tuple(Node(4, 0) for _ in range(4))
CONVERGING_GPUS = 8
"""Half of the GPUs; 9 of 16 there, but here a ninth would be on a node of its own, which slows it down."""
SLOWER = 6.0
"""The case of two jobs, times so many: our rescales cost 10 s and more, there they cost less."""
FIRST, SECOND_BESIDE, SECOND_ALONE, SECOND_AT = 551.0, 351.0, 431.0, 200.0
"""Seconds in that case without shrinking: of the converging job on its GPUs; of the other on the rest beside
it, then on all; and the moment the other comes."""


class Case(NamedTuple):
    """Jobs on machines of their own, to be scheduled once."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]


def data(plan: Plan) -> Section:
    """Peak GPUs of jobs that differ in their data alone."""
    config = plan.config(plan.home, plan.busy)
    experiment = prepare(config)
    cases = {
        f"{model}-{repeat}": Case(experiment.shape, _five_jobs(experiment, model, repeat))
        for model in sorted({kind.model for kind in experiment.tables.types})
        for repeat in range(REPEATS)
    }
    specs = [*agents(plan, plan.home), *_tuned(config), "optimus", "hesrpt", "equal_share"]
    done = run_cases(plan, config, cases, specs, "data")
    found = pd.DataFrame([_peaks(cell) for cell in done])
    found = pd.concat([found, _mean_agent(found, "window")], ignore_index=True)
    sizes = [f"{size:g}" for size in SIZES]
    rows, overall = [], {}
    for policy, mine in found.groupby("policy", sort=False):
        means = mine[sizes].mean()
        overall[policy] = float(np.nan_to_num(spearmanr(SIZES, means).statistic))
        each = bootstrap_interval(mine["spearman"].to_numpy(dtype=np.float64))
        rows.append([str(policy), *(f"{mean:.1f}" for mean in means), f"{overall[policy]:.2f}", shown(each, 2)])
    claim = Claim(
        "3. More data, more GPUs: Spearman of data size and peak GPUs at least .9",
        f"{overall[AGENT]:.2f}",
        overall[AGENT] >= 0.9,
    )
    text = (
        f"Five jobs of one model whose data differ by a factor of 100, submitted at once in random order to an "
        f"empty cluster of {experiment.shape.capacity} GPUs; the middle one takes {MIDDLE_HOURS:g} h on {MIDDLE_GPUS} "
        f"GPUs. {len(cases)} windows (every model, {REPEATS} orders). Mean of the most GPUs a job held at once, "
        "by the size of its data; Spearman's correlation of size with these means, and the mean of that inside windows "
        "(ties take their mean rank; 0 where all peaks are equal).\n\n"
    ) + table(["policy", *(f"x {size}" for size in sizes), "of the means", "inside windows"], rows)
    section = Section("data", "More data, more GPUs", text, [claim])
    save_section(plan.folder, section, {"data": found})
    return section


def _five_jobs(experiment: Experiment, model: str, repeat: int) -> tuple[Job, ...]:
    """Jobs of one model, in random order."""
    tables = experiment.tables
    kind = tables.type_index(JobType(model))
    middle = _size_for(tables, kind, MIDDLE_GPUS, MIDDLE_HOURS * 3600, experiment.shape.gpus_per_node)
    rng = np.random.default_rng([repeat, kind])
    jobs = [
        Job(
            name=f"{model}-{size:g}",
            submit_time=0.0,
            model=model,
            epochs=float(tables.epochs[kind]),
            data_size=middle * size,
            requested_gpus=MIDDLE_GPUS,
            max_gpus=tables.max_gpus,
        )
        for size in rng.permutation(SIZES).tolist()
    ]
    return tuple(jobs)


def _size_for(tables: SpeedTables, kind: int, gpus: int, seconds: float, gpus_per_node: int) -> float:
    """Samples with which a job of a type takes `seconds` on so many packed GPUs."""
    own = float(seconds_to_finish(tables, kind, 1.0, tables.epochs[kind], gpus, gpus_per_node))
    return float(tables.samples[kind] * seconds / own)


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


def converge(plan: Plan) -> Section:
    """Two jobs: what the second gains, and the first loses, if the first may be shrunk as it converges."""
    config = plan.config(plan.home, plan.busy)
    ruled = plan.config(plan.home, plan.busy, f"queue.converging.gained={GAINED:g}")
    experiment = prepare(config)
    models = [kind.model for kind in experiment.tables.types]
    scaling = [kind.model for kind in experiment.tables.types if _scales(experiment.tables, kind)]
    cases = {
        f"{model}-{other}": Case(CASE_NODES, (_converging_job(experiment, model), _other_job(experiment, other)))
        for model in models
        for other in scaling
    }
    free = [*agents(plan, plan.home), *_tuned(config)]
    kept = run_cases(plan, config, cases, [KEEPING + spec for spec in free], "converge-keeping")
    ways = {
        "by itself": run_cases(plan, config, cases, free, "converge"),
        "with the rule": run_cases(plan, ruled, cases, free, "converge-ruled"),
    }
    found = pd.concat([_compared(way, done, kept) for way, done in ways.items()], ignore_index=True)
    columns = ("other", "converging", "makespan", "accuracy")
    rows = [
        [str(policy), way, *(_percent(mine[name]) for name in columns[:3]), f"{100 * mine['accuracy'].abs().max():.2f}"]
        for (way, policy), mine in found.groupby(["way", "policy"], sort=False)
    ]
    means = found[found["policy"] == AGENT].groupby("way")[list(columns)].mean()
    mine, alone = means.loc["with the rule"], means.loc["by itself"]
    claims = [
        Claim(
            "4. A converging job shrinks: the other at least 8 % faster",
            f"{mine['other']:+.1%} with the queue's rule; {alone['other']:+.1%} by what the agent has learned",
            mine["other"] <= -0.08,
        ),
        Claim(
            "4. ... the converging one at most 25 % slower",
            f"{mine['converging']:+.1%} with the rule; {alone['converging']:+.1%} without",
            mine["converging"] <= 0.25,
        ),
        Claim(
            "4. ... final accuracy within .5 points", f"{100 * mine['accuracy']:+.2f}", abs(mine["accuracy"]) <= 0.005
        ),
    ]
    text = (
        f"A job that may hold {CONVERGING_GPUS} of 16 GPUs has had a third of its time when another one comes, which "
        f"can use all 16: {len(cases)} cases, each model as the converging one beside each that uses 16 GPUs well "
        f"({', '.join(scaling)}). Changes of JCT and makespan relative to the same policy where no job gives up GPUs "
        "before it finishes (then the second has the rest until the first is done), and the largest change of a final "
        f"accuracy in points. *With the rule*: `queue.converging.gained={GAINED:g}`, by which jobs that have gained so "
        "much of their accuracy hold three quarters, later half, of their most GPUs while others could use them, "
        "whatever the policy. Jobs train all their epochs in every case.\n\n"
    ) + table(["policy", "shrinks", "JCT of the other", "JCT of the converging one", "makespan", "accuracy"], rows)
    section = Section("converge", "A converging job gives GPUs to another", text, claims)
    save_section(plan.folder, section, {"converge": found})
    return section


def _compared(way: str, done: Sequence[FinishedCell], kept: Sequence[FinishedCell]) -> pd.DataFrame:
    """What shrinking in one way does, a row a policy and case, those of the mean agent among them."""
    found = pd.DataFrame([_effect(shrunk, whole) for shrunk, whole in zip(done, kept, strict=True)])
    return pd.concat([found, _mean_agent(found, "window")], ignore_index=True).assign(way=way)


def _scales(tables: SpeedTables, kind: JobType) -> bool:
    """True if the case's machines run a type at half of linear speed-up or more: others have no use for them."""
    at, gpus = tables.type_index(kind), np.array([1, sum(machine.gpus for machine in CASE_NODES)])
    one, every = seconds_to_finish(tables, at, 1.0, tables.epochs[at], gpus, CASE_NODES[0].gpus)
    return bool(one / every >= gpus[1] / 2)


def _converging_job(experiment: Experiment, model: str) -> Job:
    """The job that comes first, and converges."""
    tables, node = experiment.tables, CASE_NODES[0].gpus
    kind = tables.type_index(JobType(model))
    return Job(
        name="converging",
        submit_time=0.0,
        model=model,
        epochs=float(tables.epochs[kind]),
        data_size=_size_for(tables, kind, CONVERGING_GPUS, SLOWER * FIRST, node),
        requested_gpus=CONVERGING_GPUS,
        max_gpus=CONVERGING_GPUS,
    )


def _other_job(experiment: Experiment, model: str) -> Job:
    """The job that comes later, and can use all GPUs."""
    tables, node = experiment.tables, CASE_NODES[0].gpus
    kind = tables.type_index(JobType(model))
    epochs, capacity = float(tables.epochs[kind]), sum(machine.gpus for machine in CASE_NODES)

    def alone(gpus: int) -> float:
        return float(seconds_to_finish(tables, kind, 1.0, epochs, gpus, node))

    # Done in FIRST beside the converging job and SECOND_ALONE after it: the shares of its work add up to one.
    share = SECOND_BESIDE / alone(capacity - CONVERGING_GPUS) + SECOND_ALONE / alone(capacity)
    return Job(
        name="other",
        submit_time=SLOWER * SECOND_AT,
        model=model,
        epochs=epochs,
        data_size=float(tables.samples[kind]) * SLOWER * share,
        requested_gpus=capacity - CONVERGING_GPUS,
        max_gpus=capacity,
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
    with billed(plan, "evaluation"):
        return kept_cells(plan, cells, partial(_run_case, config, cases), outcome, name, config)


def _run_case(config: Config, cases: dict[str, Case], cell: Cell) -> RunRecord:
    experiment, case = prepare(config), cases[cell.window]
    cluster = SimulatedCluster(case.nodes, list(case.jobs), experiment.tables, config.simulator, cell.seed)
    policy = make(experiment, cell.policy)
    return run(cluster, policy, config.queue, config.reward, window=cell.window, seed=cell.seed)


def _tuned(config: Config) -> list[str]:
    return [spec for spec in config.policies if label_of(spec) == TUNED]


def _mean_agent(found: pd.DataFrame, key: str) -> pd.DataFrame:
    """Rows of AGENT: means over the agents of all seeds."""
    members = found[found["policy"].str.fullmatch(MEMBER.pattern)]
    return members.drop(columns="policy").groupby(key, as_index=False).mean().assign(policy=AGENT)


def _percent(values: pd.Series[float]) -> str:
    """Mean with interval over cases, as a signed share."""
    found = bootstrap_interval(np.array(values.to_list(), dtype=np.float64))
    return f"{found.estimate:+.1%} [{found.low:+.1%}, {found.high:+.1%}]"
