"""Schedulearn against its acceptance behaviours S1 to S4 in simulation; about one CPU-minute.

Jobs come from the original: its speed curves (configs/schedulearn/mnist.yaml) on 3 servers of 4 GPUs, and its two
experiments, four-GPU jobs of one framework every ten seconds and 30 mixed jobs. Every policy gets the same jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from _common import CONFIGS
from _studies import Part, Plan, Row, play

from rlpto.core.cluster import Allocation, ClusterState, Node
from rlpto.core.jobs import Job
from rlpto.core.policy import Policy
from rlpto.core.records import RunRecord
from rlpto.evaluation.statistics import bootstrap_interval
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.policies.registry import make_policy
from rlpto.policies.switching import switching
from rlpto.simulator.settings import SimulatorSettings

SERVERS, GPUS = 3, 4
EQUAL_MODELS = ("mnist_pytorch", "mnist_tensorflow", "mnist_mxnet")
MIXED_MODELS = EQUAL_MODELS[:2]
RESTART_S = 5.0
MIXED_JOBS, GAP_S = 30, (1.0, 30.0)
LOADS = (0.6, 0.8, 1.0, 1.2, 1.5)
"""GPU-time that jobs request relative to capacity; the original's gaps, 1 to 30 s, make 0.8."""
GAPS_LOAD = 0.8
SEEDS = 20
FIFO, ELASTIC, ROUND_ROBIN = "fifo:one_node=true", "elastic_fifo:one_node=true", "round_robin"
SWITCHES = {120.0: ELASTIC, 240.0: ROUND_ROBIN, 360.0: FIFO}
"""Policies after FIFO, by the second of the switch."""
SPREAD = "jobs per server, largest difference"


def switched(_: Plan) -> Part:
    """S1: four policies in succession while jobs run."""
    spec = ">".join([FIFO, *(f"{at:g}:{name}" for at, name in SWITCHES.items())])
    runs = [traced(mixed(GAPS_LOAD, seed), spec) for seed in range(SEEDS)]
    firsts = [
        (at, name, next(decision for decision in watched.decisions if decision.time >= at))
        for _, watched in runs
        for at, name in SWITCHES.items()
    ]
    finished = min(int(np.isfinite(record.jobs.finish_time).sum()) for record, _ in runs)
    ends = max(int((record.changes.gpus == 0).sum()) for record, _ in runs)
    decided = [first.policy == name for _, name, first in firsts]
    touched = {
        elastic: sum(first.touched for _, name, first in firsts if (name == ELASTIC) == elastic)
        for elastic in (False, True)
    }
    figures = {
        "S1: jobs completed, of 30, fewest of any run": finished,
        "S1: ends of jobs, of 30, most of any run": ends,
        "S1: switches after which the new policy decides next": float(np.mean(decided)),
        "S1: running jobs touched by the switch to round robin or FIFO": touched[False],
    }
    row = {
        "runs": SEEDS,
        "jobs each": MIXED_JOBS,
        "completed, fewest": finished,
        "ends of jobs, most": ends,
        "next decision by the new policy": f"{sum(decided)} of {len(decided)}",
        "after at most [s]": f"{max(first.time - at for at, _, first in firsts):g}",
        "running jobs touched by the first decision of round robin or FIFO": touched[False],
        "the same of Elastic FIFO, all runs together": touched[True],
    }
    return Part(figures, [row])


def elastic(_: Plan) -> Part:
    """S2 and S4: Elastic FIFO against FIFO, with each job on one server as in the original, and with any servers."""
    rows: list[Row] = []
    changes, least_busy, inversions = [], 1.0, 0
    for on, ours, rival in (("one server each", ELASTIC, FIFO), ("any servers", "elastic_fifo", "fifo")):
        for load in LOADS:
            pairs = [(traced(jobs, ours)[0], traced(jobs, rival)[0]) for jobs in (mixed(load, i) for i in range(SEEDS))]
            found = np.array([[totals(record) for record in pair] for pair in pairs])
            starts = [without.jobs.start_time for _, without in pairs]
            inversions += sum(int(np.triu(start[:, None] > start, 1).sum()) for start in starts)
            busy, change = found[:, :, 0].mean(axis=0), found[:, 0, 1:] / found[:, 1, 1:] - 1
            row = {"jobs on": on, "load": load, "busy, FIFO": f"{busy[1]:.2f}", "busy, Elastic FIFO": f"{busy[0]:.2f}"}
            rows.append(row | in_percent(change))
            if ours == ELASTIC:
                changes.append(change)
                least_busy = min(least_busy, float(busy[0]))
    rows.insert(len(LOADS), {"jobs on": "one server each", "load": "all", **in_percent(np.concatenate(changes))})
    makespan, jct = 100 * np.mean(changes, axis=(0, 1))
    figures = {
        "S2: GPUs busy of those that jobs could use, least of five loads": least_busy,
        "S2: makespan against FIFO, mean over loads": float(makespan),
        "S2: mean JCT against FIFO, mean over loads": float(jct),
        "S4: pairs of jobs that FIFO started in another order than submitted": inversions,
    }
    return Part(figures, rows)


def exclusive(_: Plan) -> Part:
    """S3 if jobs have GPUs to themselves: equal jobs, and mixed ones."""
    equal = [rotated(model) for model in EQUAL_MODELS]
    rows, widest = list[Row](equal), max(row[SPREAD] for row in equal)
    changes, spreads = [], []
    for seed in range(SEEDS):
        jobs = mixed(GAPS_LOAD, seed)
        (rotating, watched), packed = traced(jobs, ROUND_ROBIN), traced(jobs, FIFO)[0]
        changes.append(np.array(totals(rotating)[1:]) / totals(packed)[1:] - 1)
        spreads.append(spread_over_servers(watched))
    spread = f"{np.mean(spreads):.1f} on average, {max(spreads)} at most"
    rows.append({"jobs": f"mixed, {SEEDS} runs", **in_percent(np.array(changes)), SPREAD: spread})
    figures = {
        f"S3: {SPREAD}, equal jobs on GPUs of their own": widest,
        "S3: mean JCT of mixed jobs against FIFO, GPUs of their own": 100 * float(np.mean(changes, axis=0)[1]),
    }
    return Part(figures, rows)


def rotated(model: str) -> dict[str, Any]:
    """Row for twenty four-GPU jobs, one every ten seconds, under FIFO and under round robin."""
    jobs = [job(10.0 * i, model, GPUS, i) for i in range(20)]
    settings = SimulatorSettings(interval=1.0, rescale_delay=0.0)
    (rotating, watched), (packed, _) = traced(jobs, ROUND_ROBIN, settings), traced(jobs, FIFO, settings)
    row: dict[str, Any] = {"jobs": model}
    for name, old, new in zip(("makespan", "mean JCT"), totals(packed)[1:], totals(rotating)[1:], strict=True):
        row[f"{name} [s]"] = f"{old:.0f} -> {new:.0f} ({new / old - 1:+.0%})"
    return row | {SPREAD: spread_over_servers(watched)}


# Jobs, runs and their figures ---------------------------------------------------------------------------------------


@cache
def speed_tables() -> SpeedTables:
    """Speed tables of all four frameworks."""
    profiles = load_profiles(CONFIGS / "schedulearn" / "mnist.yaml")
    return compile_tables(profiles, [JobType(model) for model in profiles.models], GPUS, GPUS)


def job(submit: float, model: str, gpus: int, number: int) -> Job:
    """A whole training that can use 1 to 4 GPUs."""
    return Job(f"job{number}", submit, model, epochs=10.0, data_size=60000.0, requested_gpus=gpus, max_gpus=GPUS)


def mixed(load: float, seed: int) -> list[Job]:
    """30 jobs of PyTorch or TensorFlow that request 1 to 4 GPUs, with gaps that give this load."""
    rng = np.random.default_rng([17, seed])
    models = rng.choice(MIXED_MODELS, MIXED_JOBS).tolist()
    gpus = rng.integers(1, GPUS + 1, MIXED_JOBS).tolist()
    submits = (np.cumsum(rng.uniform(*GAP_S, MIXED_JOBS)) * GAPS_LOAD / load).tolist()
    return [job(*given) for given in zip(submits, models, gpus, range(MIXED_JOBS), strict=True)]


class TracedDecision(NamedTuple):
    """time [s]. node: [n] node with most GPUs of each job that starts. touched: running jobs whose GPUs change."""

    time: float
    policy: str
    node: IntArray
    touched: int


class DecisionTrace:
    """Decides as another policy does, and records the decisions."""

    def __init__(self, policy: Policy) -> None:
        self.name, self.reset = policy.name, policy.reset
        self._policies = switching(policy)
        self.stands_until = self._policies.stands_until
        self.decisions: list[TracedDecision] = []

    def __call__(self, state: ClusterState) -> Allocation:
        allocation = self._policies(state)
        if allocation.placement is not None:
            running = state.jobs.gpus > 0
            starts = np.flatnonzero(~running & (allocation.gpus > 0))
            touched = (allocation.placement != state.held_nodes).any(axis=1) & running
            name, node = self._policies.present(state.time).name, allocation.placement[starts].argmax(axis=1)
            self.decisions.append(TracedDecision(state.time, name, node, int(touched.sum())))
        return allocation


def traced(
    jobs: Sequence[Job], spec: str, settings: SimulatorSettings | None = None
) -> tuple[RunRecord, DecisionTrace]:
    """Let a policy schedule the jobs. Without settings a change of a job's GPUs takes `RESTART_S`."""
    settings = settings or SimulatorSettings(interval=1.0, rescale_delay=RESTART_S)
    watched = DecisionTrace(make_policy(spec))
    return play((Node(GPUS),) * SERVERS, jobs, speed_tables(), watched, settings), watched


def totals(record: RunRecord) -> tuple[float, float, float]:
    """GPU-seconds held relative to usable GPU-seconds, makespan [s], mean JCT [s].

    Usable are all GPUs, or the sum of the present jobs' max_gpus if that is smaller.
    """
    jobs = record.jobs
    ends = np.concatenate([jobs.submit_time, jobs.finish_time])
    by_time = np.argsort(ends, kind="stable")
    usable = np.cumsum(np.concatenate([jobs.max_gpus, -jobs.max_gpus])[by_time])[:-1]
    useful = (np.minimum(usable, record.capacity) * np.diff(ends[by_time])).sum()
    makespan = float(jobs.finish_time.max() - jobs.submit_time.min())
    return float(jobs.gpu_seconds.sum() / useful), makespan, float((jobs.finish_time - jobs.submit_time).mean())


def spread_over_servers(watched: DecisionTrace) -> int:
    """Difference between the most and the fewest jobs that were started on a server."""
    nodes = np.concatenate([decision.node for decision in watched.decisions])
    return int(np.ptp(np.bincount(nodes, minlength=SERVERS)))


def in_percent(changes: FloatArray) -> dict[str, str]:
    """Mean changes [20 * loads, 2] of makespan and mean JCT with intervals; loads of one seed count as one sample."""
    seeds = [at % SEEDS for at in range(len(changes))]
    intervals = [bootstrap_interval(column, seeds) for column in changes.T]
    texts = [f"{found.estimate:+.1%} ({found.low:+.1%} to {found.high:+.1%})" for found in intervals]
    return dict(zip(("makespan", "mean JCT"), texts, strict=True))
