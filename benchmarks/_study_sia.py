"""Sia and Gavel: docs/systems/sia.md. About six minutes of CPU time."""

from __future__ import annotations

import time
from itertools import chain, islice, permutations

import _common
import numpy as np
import pandas as pd
from _studies import Part, Plan, Row, finished, play
from speed import decided

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.gpu_types import room_of
from rlpto.core.jobs import Job
from rlpto.core.queues import Queue, QueueSettings
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.knowledge.known import BatchCache, Knowledge
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.measured import MeasuredProfiles
from rlpto.performance.tables import JobType
from rlpto.policies.registry import make_policy
from rlpto.policies.sia import Choices, configurations, costs, solve
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

PUBLISHED_JCT_S = 1086.633
"""Mean JCT of Sia's own simulator on the parity case (result.txt in the case's folder)."""
POLICIES = ("fifo", "tiresias", "equal_share", "max_throughput", "optimus", "index", "gavel", "sia", "planner")
SLOWDOWNS, SLOWDOWN = {"cifar10": 1.8}, 1.2
"""Divisors of speeds in Sia's simulator, by model and for all others."""
PARITY_NODES = [Node(4, gpu="aws")] * 6, [Node(8, gpu="dgx-ext")] * 2, [Node(8, gpu="rtx")] * 3
"""Nodes of the parity case, by GPU type."""
LATENCY_JOBS, LATENCY_DECISIONS, PROGRAMMES = 160, 150, 50


def compared(plan: Plan) -> Part:
    """Every policy on configs/kinds.yaml: means over its windows, and decision times of two policies."""
    config = load_config(_common.CONFIGS / "kinds.yaml")
    shape = Experiment(config).shape
    done = {policy: finished(plan, config, [policy], "kinds") for policy in POLICIES}
    means = {policy: pd.DataFrame([one.metrics for one in cells]).mean() for policy, cells in done.items()}
    jct = {policy: round(float(mean["jct_mean"]) / 60, 1) for policy, mean in means.items()}
    figures = {
        "sia, p99 of a decision for 160 jobs on 64 GPUs of three types": p99(latencies(shape, "sia")),
        "sia, p99 of the programme alone, 3,040 choices open": p99(programme_seconds(shape)),
        "gavel, p99 of a decision, likewise": p99(latencies(shape, "gavel")),
        "mean JCT under sia by that under gavel": jct["sia"] / jct["gavel"],
    }
    rows: list[Row] = [
        {
            "policy": policy,
            "mean JCT [min]": jct[policy],
            "p95 JCT [h]": round(float(mean["jct_p95"]) / 3600, 2),
            "GPU-hours": round(float(mean["gpu_hours"]), 1),
            "restarts a job": round(float(mean["rescales_per_job"]), 2),
        }
        for policy, mean in means.items()
    ]
    return Part(figures, rows)


def p99(seconds: list[float]) -> float:
    return float(np.quantile(seconds, 0.99))


def latencies(shape: ClusterShape, name: str) -> list[float]:
    """Seconds of the first decisions while 160 adaptive jobs are active, without the very first, which imports."""
    profiles = load_profiles(None)
    models = list(profiles.models) * LATENCY_JOBS
    tables = compile_tables(
        profiles, [JobType(model) for model in profiles.models], shape.most_gpus, 8, gpu_types=shape.node_sizes
    )
    facts = [profiles.facts(model) for model in models[:LATENCY_JOBS]]
    jobs = [
        Job(str(number), 0.0, models[number], 1000.0 * fact.epochs, fact.samples, 1, 1, shape.most_gpus)
        for number, fact in enumerate(facts)
    ]
    cluster, policy = SimulatedCluster(shape, jobs, tables, SimulatorSettings(decide_on="interval")), make_policy(name)
    policy.reset(0)
    cluster.advance()
    decisions = islice(decided(cluster, Queue(QueueSettings()), policy), LATENCY_DECISIONS + 1)
    taken = [alone for alone, _ in decisions]
    if cluster.active_jobs < LATENCY_JOBS:
        raise RuntimeError(f"{name}: {LATENCY_JOBS - cluster.active_jobs} jobs have finished: the bound is for all")
    return taken[1:]


def programme_seconds(shape: ClusterShape) -> list[float]:
    """Seconds of Sia's programme with every configuration open to each of 160 jobs, on drawn speed-ups."""
    taken = []
    for seed in range(PROGRAMMES):
        rng, entries, values = np.random.default_rng(seed), [], []
        for row in range(LATENCY_JOBS):
            scaling, factor = rng.uniform(0.2, 1.0), rng.uniform(0.3, 1.0)
            open_to_it = [
                (row, gpu_type, gpus) for gpu_type, sizes in enumerate(configurations(shape)) for gpus in sizes
            ]
            unit = rng.uniform(0.5, 4.0, len(shape.gpu_types))
            speed = np.array(
                [unit[gpu_type] * gpus**scaling * rng.uniform(0.9, 1.1) for _, gpu_type, gpus in open_to_it]
            )
            value = factor * speed / speed.min()
            if rng.random() < 0.3:  # it runs, on one of them
                value[rng.integers(len(value))] /= factor
            entries += open_to_it
            values.append(value)
        row, gpu_type, gpus = np.array(entries).T
        choices = Choices(row, gpu_type, gpus, costs(np.concatenate(values), -0.5))
        began = time.perf_counter()
        solve(choices, room_of(shape), 1.1)
        taken.append(time.perf_counter() - began)
    return taken


def parity(plan: Plan) -> Part:
    """Sia's own parity case compared with its own results, by model.

    The rules are from its simulator: jobs use only their own fits, one for each GPU type. Measured speeds are divided
    by its constants, as if jobs had that much more data. Many solutions of the programme are equally good, and the
    solver's choice among them depends on the order of the GPU types: all six orders are played.
    """
    found = Part()
    assert plan.data is not None
    folder = plan.data / "sia"
    profiles, published = MeasuredProfiles(folder / "traces"), pd.read_csv(folder / "result-jobs.csv")
    submitted = pd.read_csv(folder / "philly-3-first30.csv", dtype={"name": str})
    models = submitted.application.to_numpy()
    settings = SimulatorSettings(interval=60, decide_on="interval", placement="most_free", epoch_resolution=1)
    for policy in ("sia", "sia:restart=30"):
        jct, restarts = [], []
        for order in permutations(PARITY_NODES):
            shape = ClusterShape(tuple(chain.from_iterable(order)))
            jobs = []
            for name, submit, model in submitted[["name", "time", "application"]].to_numpy().tolist():
                facts = profiles.facts(model)
                data = facts.samples * SLOWDOWNS.get(model, SLOWDOWN)
                jobs.append(Job(name, float(submit), model, facts.epochs, data, 1, 1, shape.most_gpus))
            types = [JobType(model) for model in sorted(set(models))]
            tables = compile_tables(profiles, types, shape.most_gpus, 8, gpu_types=shape.node_sizes)
            knowledge, queue = Knowledge(performance=BatchCache(profiles)), QueueSettings(aging_normal=1e9)
            records = play(shape, jobs, tables, make_policy(policy), settings, queue, knowledge=knowledge).jobs
            jct.append(records.finish_time - records.submit_time)
            restarts.append(records.rescales)
        off = 100 * abs(float(np.mean(jct)) / PUBLISHED_JCT_S - 1)
        found.figures[f"parity case of Sia, {policy}, mean JCT off by"] = off
        for model in ("all", *dict.fromkeys(models.tolist())):
            of = np.flatnonzero((models == model) | (model == "all"))
            means = np.array(jct)[:, of].mean(axis=1)
            found.rows.append(
                {
                    "policy": policy,
                    "model": model,
                    "jobs": len(of),
                    "mean JCT [s]": round(float(means.mean()), 1),
                    "least, most of six orders": f"{means.min():.0f}, {means.max():.0f}",
                    "Sia's own [s]": round(float(published["jct_s"][of].mean()), 1),
                    "restarts a job": round(float(np.array(restarts)[:, of].mean()), 2),
                    "Sia's own": round(float(published["restarts"][of].mean()), 2),
                }
            )
    return found
