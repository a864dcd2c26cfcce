"""Agents trained on whole windows, against the tuned index that they start from. The page is docs/agent.md.

Ways to learn are compared by one training for each seed of the study, the twelve cells by one training of each
workload. Every figure is for test windows that nothing was trained or tuned on, played whole. Only time is rewarded,
and classes are weighted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from _studies import MORE, TIME_ONLY, Part, Plan, Workload, shown, trained, tuned

from rlpto.agents.archive import FORMATS, index_weights_of
from rlpto.agents.policy import run_file
from rlpto.envs.whole_windows import WindowPool
from rlpto.evaluation.statistics import Interval, bootstrap_interval
from rlpto.experiments.environments import training_setup
from rlpto.experiments.experiment import Experiment
from rlpto.io.archive import read_archive
from rlpto.io.arrays import FloatArray

DRAWS = 60
"""Windows drawn from each file of Pollux's workloads, for testing."""
SEEDS = 4
"""Repetitions of each test window of the other workloads, with other models and work of the jobs."""
CONSTANTS, BOTH, EVOLUTION = "index weights alone, by PPO", "both, by PPO", "both, by evolution"
WAYS: dict[str, tuple[str, ...]] = {
    CONSTANTS: ("agent.whole_windows.network=0",),
    BOTH: (),
    EVOLUTION: ("agent.whole_windows.trainer=evolution",),
}
COMPARED = 3
"""Most trainings by evolution."""
FRESH_SEED = "seed=83"
"""Draws test windows that nothing was compared on before."""
EVERY = (*TIME_ONLY, "queue.classes=weighted")


def jct(plan: Plan) -> Part:
    """Mean JCT of the agent relative to the tuned index, at every load."""
    part, estimates = Part(), []
    for workload in plan.workloads:
        vectors = [vector_of(plan, workload, "JCT", (), 0)]
        for load in plan.loads:
            interval = relative(losses_at(plan, workload, load, vectors))
            estimates.append(interval)
            row = {"workload": workload, "load": load, "windows": interval.samples}
            part.rows.append({**row, "agent / tuned index": shown(interval, ".3f")})
    mean = float(np.exp(np.mean(np.log([interval.estimate for interval in estimates]))))
    below = sum(interval.high < 1 for interval in estimates)
    part.figures = {"geometric mean of the cells": mean, "cells whose interval lies below 1": float(below)}
    return part


def ways(plan: Plan) -> Part:
    """Ways to learn at equal numbers of windows: Pollux's workloads at all loads."""
    part, workload, learnt = Part(), plan.workloads[-1], {}
    for way, overrides in WAYS.items():
        variant = way if overrides else "JCT"  # the agent of the first table
        seeds = range(min(plan.seeds, COMPARED) if way == EVOLUTION else plan.seeds)
        vectors = [vector_of(plan, workload, variant, overrides, seed) for seed in seeds]
        learnt[way] = [losses_at(plan, workload, load, vectors) for load in plan.loads]
        add_row(part, plan, way, learnt)
    ratio = relative_to(learnt[BOTH], learnt[EVOLUTION])
    part.figures[f"{BOTH}, all loads"] = relative(np.concatenate(learnt[BOTH])).estimate
    part.figures["PPO over evolution, lower end"] = ratio.low
    part.rows.append({"learnt": "PPO over evolution", "all loads": shown(ratio, ".3f")})
    return part


def add_row(part: Part, plan: Plan, way: str, learnt: Mapping[str, Sequence[FloatArray]]) -> None:
    """Add the row of one way to learn, against the tuned index and against index weights alone.

    learnt: by way the losses of every load, each [windows, seeds].
    """
    by_load = {
        f"load {load:g}": f"{relative(losses).estimate:.3f}"
        for load, losses in zip(plan.loads, learnt[way], strict=True)
    }
    pooled, against = relative(np.concatenate(learnt[way])), relative_to(learnt[way], learnt[CONSTANTS])
    over = {"over index weights alone": "" if way == CONSTANTS else shown(against, ".3f")}
    part.rows.append({"learnt": way, **by_load, "all loads": shown(pooled, ".3f"), **over})
    part.figures[f"{way}, upper end"] = pooled.high


def relative_to(losses: Sequence[FloatArray], others: Sequence[FloatArray]) -> Interval:
    """The mean JCT of one way to learn over the other's, from losses of every load, each [windows, seeds], for the
    seeds that both have."""
    mine, theirs = np.concatenate(losses), np.concatenate(others)
    seeds = min(mine.shape[1], theirs.shape[1])
    mine, theirs = mine[:, :seeds], theirs[:, :seeds]
    return relative((mine - theirs) / (1 + theirs))


def vector_of(plan: Plan, workload: Workload, variant: str, overrides: Sequence[str], seed: int) -> FloatArray:
    """[S] the best index weights of a training, which is run first if necessary."""
    file = run_file(run_of(plan, workload, variant, overrides, seed))
    return index_weights_of(read_archive(file, FORMATS), file)


def run_of(plan: Plan, workload: Workload, variant: str, overrides: Sequence[str], seed: int) -> Path:
    """Folder of a training, which is run first if necessary."""
    label = variant.replace(" ", "-").replace(",", "").replace(":", "")
    given = (*EVERY, *MORE.get(workload, ()), started(workload), *overrides)
    return trained(plan, workload, f"windows-{label}", given, seed)


def started(workload: Workload) -> str:
    """The override that names the tuned index."""
    return f"env.start={tuned(f'{workload}-jct-weighted').partition('=')[2]}"


def losses_at(plan: Plan, workload: Workload, load: float, vectors: Sequence[FloatArray]) -> FloatArray:
    """[windows, vectors] losses against the tuned index at a load; repetitions of a window count as one sample."""
    more = (f"workload.draws={DRAWS}",) if workload == "pollux" else ()
    given = (FRESH_SEED, *EVERY, started(workload), *more)
    experiment = Experiment(plan.config(workload, load, *given, windows=10**6))
    seeds = range(1 if workload == "pollux" else SEEDS)
    pool = WindowPool(training_setup(experiment, plan.split, [experiment.config.seed + seed for seed in seeds]))
    every = np.arange(len(pool))
    lost = [pool.losses(np.repeat(vector[None], len(every), axis=0), every) for vector in vectors]
    names = np.array([name.rpartition("/")[0] for name in pool.names])
    return np.stack([[mine[names == name].mean() for name in dict.fromkeys(names)] for mine in lost], axis=1)


def relative(losses: FloatArray) -> Interval:
    """Geometric mean over windows and training seeds of 1 + loss [W, S]; windows and seeds are resampled separately."""
    logs, random = np.log1p(losses), np.random.default_rng(0)
    seeds = logs.shape[1]

    def mean(_: FloatArray, counts: FloatArray) -> FloatArray:
        drawn = np.ones((len(counts), seeds))
        if len(counts) > 1 and seeds > 1:
            drawn = random.multinomial(seeds - 1, np.full(seeds, 1 / seeds), len(counts)).astype(float)
        means: FloatArray = np.exp((counts @ logs * drawn).sum(axis=1) / (counts.sum(axis=1) * drawn.sum(axis=1)))
        return means

    return bootstrap_interval(np.arange(len(logs), dtype=np.float64), statistic=mean)
