"""Agents trained on whole windows, by total reward, against all policies; on other sizes of cluster, and in a small
case.

The page is docs/results.md. The reward is the quickstart's. All policies know true speeds and remaining work.
"""

from __future__ import annotations

from itertools import product

import _common
import numpy as np
import pandas as pd
import speed
from _studies import (
    AGENT,
    MEMBER,
    MISSION,
    TUNED,
    Part,
    Plan,
    Row,
    Workload,
    agents,
    best_of,
    by_window,
    difference,
    finished,
    shown,
    with_mean_agent,
)
from scipy.stats import spearmanr

from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.evaluation.metrics import LOWER_BOUND
from rlpto.evaluation.statistics import bootstrap_interval
from rlpto.evaluation.tables import frame
from rlpto.experiments.config import Config, load_config
from rlpto.experiments.experiment import Experiment, prepare
from rlpto.io.arrays import FloatArray
from rlpto.performance.solo import seconds_to_finish
from rlpto.performance.tables import JobType
from rlpto.policies.spec import policy_label
from rlpto.simulator.cluster import SimulatedCluster

CONTENDERS = 3
"""Number of policies that get all draws, as the agents do: the best on the first draw."""
SCALED: tuple[Workload, float] = ("synthetic", 0.9)
"""Workload and load for other sizes of cluster, and for the small case."""
SIZES = {4: 8, 16: 8, 64: 8, 256: 4}
"""Most windows by number of nodes of 4 GPUs."""
HOME_NODES = 16
"""Nodes where the agents were trained."""
DECISIONS = 100
"""Decisions whose latency is measured at 1,000 nodes."""
POLICIES = (TUNED, "optimus", "hesrpt", "equal_share")
"""Policies compared with the agents if jobs differ by the size of their data."""
DATA_SIZES = (0.1, 0.316, 1.0, 3.16, 10.0)
"""Sizes of the data relative to the middle job."""
MIDDLE_HOURS, MIDDLE_GPUS = 1.0, 4
"""Hours that the middle job takes on this number of GPUs."""
REPEATS = 4
"""Windows of each model, with the five jobs in different order."""


def rewards(plan: Plan) -> Part:
    """Lead of the agent over the best of all other policies, on every workload and load."""
    rows, ahead, beyond = list[Row](), 0.0, 0.0
    for workload, load in plan.places():
        cells = cells_at(plan, workload, load)
        draws = cells.groupby("policy")["seed"].nunique()
        rivals = [name for name in draws.index if not (name in (AGENT, LOWER_BOUND) or MEMBER.fullmatch(name))]
        second = best_of(cells, [name for name in rivals if draws[name] == draws.max()])[0]
        against, learnt = difference(cells, AGENT, second), difference(cells, AGENT, TUNED)
        ahead, beyond = ahead + (against.low > 0), beyond + (learnt.low > 0)
        mean, best = by_window(cells, AGENT, "reward"), by_window(cells, second, "reward")
        seeds = [by_window(cells, f"{AGENT}-{seed}", "reward").mean() for seed in range(plan.seeds)]
        rows.append(
            {"workload": workload, "load": load, "windows x draws": f"{against.samples} x {draws.max()}"}
            | {"agent": f"{mean.mean():.1f}" + (f" ({min(seeds):.1f} to {max(seeds):.1f})" if len(seeds) > 1 else "")}
            | {"runner-up": f"{second} {best.mean():.1f}", "agent - runner-up": shown(against, "+.2f")}
            | {"windows won": f"{(mean > best).mean():.0%}", "agent - tuned index": shown(learnt, "+.2f")}
            | {"bound": f"{by_window(cells, LOWER_BOUND, 'reward').mean():.1f}"}
        )
    figures = {
        "cells where the agent's total reward is above every other policy's": ahead,
        "cells where it is above the tuned index's": beyond,
    }
    return Part(figures, rows)


def by_policy(plan: Plan) -> Part:
    """Mean reward of every policy on the first draw of each window, best first."""
    means: dict[str, dict[str, float]] = {}
    for workload, load in plan.places():
        cells = cells_at(plan, workload, load)
        for policy, mine in cells[cells["seed"] == cells["seed"].min()].groupby("policy"):
            if not MEMBER.fullmatch(policy):
                means.setdefault(policy, {})[f"{workload} {load:g}"] = float(mine["reward"].mean())
    ranked = pd.DataFrame(means).rank(axis=1).mean().sort_values(ascending=False)
    return Part(
        rows=[{"policy": name, **{at: f"{mean:.1f}" for at, mean in means[name].items()}} for name in ranked.index]
    )


def cells_at(plan: Plan, workload: Workload, load: float) -> pd.DataFrame:
    """Metrics of all policies, the mean agent and the lower bound: one row a policy, window and draw.

    The first draw of each window is for all policies. The best ones and the agents get more draws, which narrow the
    comparison on windows where the draw of the jobs matters.
    """
    config, name = plan.config(workload, load, *MISSION), f"{workload}-{load:g}"
    own, known = agents(plan, workload), config.knowledge.mode
    first = frame(finished(plan, config, [*config.policies, *own], name, [config.seed]), known)
    best = best_of(first, list(map(policy_label, config.policies)))[:CONTENDERS]
    further = [*(spec for spec in config.policies if policy_label(spec) in best), *own]
    drawn = frame(finished(plan, config, further, name, range(config.seed + 1, config.seed + plan.draws)), known)
    return with_mean_agent(pd.concat([first, drawn], ignore_index=True))


def scale(plan: Plan) -> Part:
    """The agents on other sizes of cluster, without another training, and the latency of a decision at 1,000 nodes.

    Normalised: FIFO's reward is 0 and the tuned index's, or the lower bound's, is 1.
    """
    rows: list[Row] = []
    normalised: dict[int, float] = {}
    for nodes, windows in SIZES.items():
        size = f"cluster.nodes=[{{count: {nodes}, gpus: 4}}]"
        config = plan.config(*SCALED, *MISSION, size, windows=windows)
        own = {policy_label(spec): spec for spec in config.policies}
        specs = [*agents(plan, SCALED[0]), own[TUNED], own["fifo"]]
        cells = frame(finished(plan, config, specs, f"scale-{nodes}", [config.seed]), config.knowledge.mode)
        cells = with_mean_agent(cells)
        mean = {name: by_window(cells, name, "reward").mean() for name in ("fifo", TUNED, AGENT, LOWER_BOUND)}
        ahead = mean[AGENT] - mean["fifo"]
        normalised[nodes] = ahead / (mean[TUNED] - mean["fifo"])
        rows.append(
            {"GPUs": 4 * nodes, "jobs in a window": f"{by_window(cells, AGENT, 'jobs').mean():.0f}"}
            | {name: f"{value:.1f}" for name, value in mean.items()}
            | {"normalised": f"{normalised[nodes]:.3f}"}
            | {"of the bound": f"{ahead / (mean[LOWER_BOUND] - mean['fifo']):.3f}"}
        )
    figures = {
        "reward at other sizes, normalised: furthest from that at 64 GPUs": max(
            abs(value - normalised[HOME_NODES]) for value in normalised.values()
        ),
        "reward at any size, normalised: least": min(normalised.values()),
        "decision with 10,000 jobs on 1,000 nodes, p99": decision_latency(agents(plan, SCALED[0])[0]),
    }
    return Part(figures, rows)


def decision_latency(spec: str) -> float:
    """99th percentile of a decision's milliseconds at 1,000 nodes with 10,000 active jobs."""
    experiment = Experiment(load_config(_common.CONFIGS / "large.yaml"))
    return float(np.percentile(speed.latencies(experiment, spec, speed.crowd(experiment), DECISIONS), 99))


def data(plan: Plan) -> Part:
    """Five jobs of one model whose data differ by a factor of 100, submitted at once to an empty cluster.

    Mean of a job's largest number of GPUs by the size of its data; Spearman's correlation of size with these means, and
    the mean of the correlation inside windows (ties take their mean rank; 0 if all peaks are equal).
    """
    config = plan.config(*SCALED, *MISSION)
    experiment = prepare(config)
    own = {policy_label(spec): [spec] for spec in config.policies}
    models = sorted({job_type.model for job_type in experiment.tables().types})
    cases = [_five_jobs(experiment, model, repeat) for model, repeat in product(models, range(REPEATS))]
    part = Part()
    for name, specs in ({name: own[name] for name in POLICIES} | {AGENT: agents(plan, SCALED[0])}).items():
        # [cases, sizes], the mean over the agents of all seeds.
        peaks = np.mean([[_peaks(experiment, config, spec, jobs) for jobs in cases] for spec in specs], axis=0)
        means, inside = peaks.mean(axis=0), np.array([_correlation(row) for row in peaks])
        held = {f"x {size:g}": f"{mean:.1f}" for size, mean in zip(DATA_SIZES, means, strict=True)}
        overall, each = _correlation(means), shown(bootstrap_interval(inside), ".2f")
        part.rows.append({"policy": name, **held, "of the means": f"{overall:.2f}", "inside windows": each})
        if name == AGENT:
            # Rounded, because 0.9 may be 0.8999...
            part.figures["more data, more GPUs: Spearman of data size and mean peak GPUs"] = round(overall, 9)
    return part


def _five_jobs(experiment: Experiment, model: str, repeat: int) -> list[Job]:
    """Whole trainings of one model, in random order."""
    tables = experiment.tables()
    job_type = tables.type_index(JobType(model))
    epochs, per_node = float(tables.epochs[job_type]), experiment.shape.gpus_per_node
    alone = float(seconds_to_finish(tables, job_type, 1.0, tables.epochs[job_type], MIDDLE_GPUS, per_node))
    middle = float(tables.samples[job_type] * (MIDDLE_HOURS * 3600) / alone)
    sizes = np.random.default_rng([repeat, job_type]).permutation(DATA_SIZES).tolist()
    return [
        Job(f"{model}-{size:g}", 0.0, model, epochs, middle * size, MIDDLE_GPUS, max_gpus=tables.max_gpus)
        for size in sizes
    ]


def _peaks(experiment: Experiment, config: Config, spec: str, jobs: list[Job]) -> FloatArray:
    """[sizes] largest number of GPUs that a job held, by the size of its data."""
    cluster = SimulatedCluster(experiment.shape, jobs, experiment.tables(), config.simulator, config.seed)
    done = run(cluster, experiment.policy(spec), config.queue, config.reward, window="data", seed=config.seed).jobs
    return done.peak_gpus[np.argsort(done.data_size)].astype(np.float64)


def _correlation(peaks: FloatArray) -> float:
    return float(spearmanr(DATA_SIZES, peaks).statistic) if np.ptp(peaks) > 0 else 0.0
