"""What docs/systems/sia.md claims of Sia and Gavel, measured. About a minute of CPU time."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import _common
import numpy as np

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.gpu_kinds import room_of
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.runner import Cell
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
"""Mean JCT of Sia's own simulator on the parity case (result.txt beside it)."""
POLICIES = ("fifo", "tiresias", "equal_share", "max_throughput", "optimus", "index", "gavel", "sia", "planner")
SLOWDOWNS, SLOWDOWN = {"cifar10": 1.8}, 1.2
"""What Sia's simulator divides speeds by, by model and of all others."""
LATENCY_JOBS, LATENCY_DECISIONS, PROGRAMMES = 160, 150, 50
Table = list[dict[str, object]]


def measure(data: Path | None) -> tuple[list[_common.Check], dict[str, Table]]:
    """Checks, and the tables of the page. data: folder with Sia's parity case; None: that part is left out."""
    experiment = Experiment(load_config(_common.CONFIGS / "kinds.yaml"))
    compared = compare(experiment)
    jct = {str(row["policy"]): float(str(row["mean JCT [min]"])) for row in compared}
    sia, gavel = (latencies(experiment.shape, policy) for policy in ("sia", "gavel"))
    programmes = programme_seconds(experiment.shape)
    checks = [
        _common.Check(
            "sia, p99 of a decision for 160 jobs on 64 GPUs of three kinds",
            float(np.quantile(sia, 0.99)),
            "s",
            1.0,
            False,
        ),
        _common.Check(
            "sia, p99 of the programme alone, 3,040 choices open", float(np.quantile(programmes, 0.99)), "s", 1.0, False
        ),
        _common.Check("gavel, p99 of a decision, likewise", float(np.quantile(gavel, 0.99)), "s", 1.0, False),
        _common.Check("mean JCT under sia by that under gavel", jct["sia"] / jct["gavel"], "", 0.9, False),
    ]
    tables = {"policies on three kinds, exact knowledge": compared}
    if data is not None and (data / "sia" / "philly-3-first30.csv").is_file():
        rows, off = parity(data / "sia")
        checks += [
            _common.Check(f"parity case of Sia, {policy}, mean JCT off by", value, "%", 3.0, False)
            for policy, value in off.items()
        ]
        tables["parity case of Sia, own online fits"] = rows
    return checks, tables


def compare(experiment: Experiment) -> Table:
    """Every policy on the windows of configs/kinds.yaml: means over windows."""
    rows: Table = []
    for policy in POLICIES:
        records = [experiment.run_cell(Cell(policy, window, 0)).jobs for window in experiment.windows()]
        jct = [jobs.finish_time - jobs.submit_time for jobs in records]
        rows.append(
            {
                "policy": policy,
                "mean JCT [min]": round(float(np.mean([times.mean() for times in jct])) / 60, 1),
                "p95 JCT [h]": round(float(np.mean([np.quantile(times, 0.95) for times in jct])) / 3600, 2),
                "GPU-hours": round(float(np.mean([jobs.gpu_seconds.sum() for jobs in records])) / 3600, 1),
                "restarts a job": round(float(np.mean([jobs.rescales.mean() for jobs in records])), 2),
            }
        )
    return rows


def latencies(shape: ClusterShape, name: str) -> list[float]:
    """Seconds of each of the first decisions while 160 adaptive jobs are active; without the first, which imports."""
    profiles = load_profiles(None)
    models = list(profiles.models) * LATENCY_JOBS
    tables = compile_tables(
        profiles, [JobType(model) for model in profiles.models], shape.most_gpus, 8, kinds=shape.kind_sizes
    )
    facts = [profiles.facts(model) for model in models[:LATENCY_JOBS]]
    jobs = [
        Job(str(number), 0.0, models[number], 1000.0 * fact.epochs, fact.samples, 1, 1, shape.most_gpus)
        for number, fact in enumerate(facts)
    ]
    cluster, queue = (
        SimulatedCluster(shape, jobs, tables, SimulatorSettings(decide_on="interval")),
        Queue(QueueSettings()),
    )
    policy, taken = make_policy(name), []
    policy.reset(0)
    for _ in range(LATENCY_DECISIONS + 1):
        if not cluster.active_jobs:
            cluster.advance()
        state = queue.order(cluster.state())
        began = time.perf_counter()
        allocation = policy(state)
        taken.append(time.perf_counter() - began)
        cluster.apply(state, queue.admit(state, allocation, name))
        cluster.advance()
    if cluster.active_jobs < LATENCY_JOBS:
        raise RuntimeError(f"{name}: {LATENCY_JOBS - cluster.active_jobs} jobs have finished: the bound is for all")
    return taken[1:]


def programme_seconds(shape: ClusterShape) -> list[float]:
    """Seconds that Sia's programme takes with every configuration open to each of 160 jobs, on drawn speed-ups."""
    taken = []
    for seed in range(PROGRAMMES):
        rng, entries, values = np.random.default_rng(seed), [], []
        for row in range(LATENCY_JOBS):
            scaling, factor = rng.uniform(0.2, 1.0), rng.uniform(0.3, 1.0)
            open_to_it = [(row, kind, gpus) for kind, sizes in enumerate(configurations(shape)) for gpus in sizes]
            unit = rng.uniform(0.5, 4.0, len(shape.kinds))
            speed = np.array([unit[kind] * gpus**scaling * rng.uniform(0.9, 1.1) for _, kind, gpus in open_to_it])
            value = factor * speed / speed.min()
            if rng.random() < 0.3:  # it runs, on one of them
                value[rng.integers(len(value))] /= factor
            entries += open_to_it
            values.append(value)
        choices = Choices(*np.array(entries).T, costs(np.concatenate(values), -0.5))
        began = time.perf_counter()
        solve(choices, room_of(shape), 1.1)
        taken.append(time.perf_counter() - began)
    return taken


def parity(folder: Path) -> tuple[Table, dict[str, float]]:
    """Sia's own parity case beside its own results, by model; and by how many percent the mean JCT is off, by policy.

    By the rules of its simulator: jobs know only their own fits, one for each kind of GPU. Speeds are measured ones,
    divided by its constants: as if jobs had so much more data.
    """
    profiles, published = MeasuredProfiles(folder / "traces"), read_rows(folder / "result-jobs.csv")
    shape = ClusterShape((*[Node(4, gpu="aws")] * 6, *[Node(8, gpu="dgx-ext")] * 2, *[Node(8, gpu="rtx")] * 3))
    jobs = []
    for row in read_rows(folder / "philly-3-first30.csv"):
        model, facts = row["application"], profiles.facts(row["application"])
        data = facts.samples * SLOWDOWNS.get(model, SLOWDOWN)
        jobs.append(Job(row["name"], float(row["time"]), model, facts.epochs, data, 1, 1, shape.most_gpus))
    types = [JobType(model) for model in sorted({job.model for job in jobs})]
    tables = compile_tables(profiles, types, shape.most_gpus, 8, kinds=shape.kind_sizes)
    settings = SimulatorSettings(interval=60, decide_on="interval", placement="most_free", epoch_resolution=1)
    rows: Table = []
    off: dict[str, float] = {}
    for policy in ("sia", "sia:restart=30"):
        cluster = SimulatedCluster(shape, jobs, tables, settings, knowledge=Knowledge(beliefs=BatchCache(profiles)))
        records = run(cluster, make_policy(policy), QueueSettings(aging_normal=1e9), RewardWeights()).jobs
        jct = records.finish_time - records.submit_time
        off[policy] = 100 * abs(float(jct.mean()) / PUBLISHED_JCT_S - 1)
        for model in ("all", *dict.fromkeys(job.model for job in jobs)):
            of = [number for number, job in enumerate(jobs) if model in ("all", job.model)]
            rows.append(
                {
                    "policy": policy,
                    "model": model,
                    "jobs": len(of),
                    "mean JCT [s]": round(float(jct[of].mean()), 1),
                    "Sia's own [s]": round(float(np.mean([float(published[number]["jct_s"]) for number in of])), 1),
                    "restarts a job": round(float(records.rescales[of].mean()), 2),
                    "Sia's own": round(float(np.mean([float(published[number]["restarts"]) for number in of])), 2),
                }
            )
    return rows, off


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
