"""Schedulearn against its acceptance behaviours S1 to S4 in simulation; about one CPU-minute.

Jobs are the original's: its speed curves (configs/schedulearn/mnist.yaml) on 3 servers of 4 GPUs, and its two
experiments, four-GPU jobs of one framework every ten seconds and 30 mixed jobs. Every policy meets the same jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from _common import CONFIGS, Check

from rlpto.core.cluster import Allocation, ClusterState, Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.policy import Policy
from rlpto.core.queues import QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.statistics import Interval, bootstrap_interval
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.solo import seconds_to_finish
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.policies.registry import make_policy
from rlpto.policies.switching import switching
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

Row = dict[str, object]

SERVERS, GPUS = 3, 4
CURVES_S = {
    "mnist_pytorch": (157.0, 89.0, 66.0, 54.0),
    "mnist_tf_keras": (107.0, 69.0, 52.5, 45.0),
    "mnist_tensorflow": (67.0, 52.0, 42.0, 37.0),
    "mnist_mxnet": (28.7, 24.3, 22.2, 21.6),
}
"""Seconds of a training on 1, 2, 3 and 4 GPUs (reference, section 5.4)."""
PUBLISHED_S = {
    "mnist_pytorch": ((337.0, 257.0), (131.0, 115.0)),
    "mnist_tensorflow": ((249.0, 239.0), (74.0, 48.0)),
    "mnist_mxnet": ((213.0, 212.0), (24.5, 23.0)),
}
"""Makespan and mean JCT of twenty jobs under FIFO and under round robin (reference, section 5.4)."""
SHARE, SLOWDOWN, SLOWDOWN_MXNET = 3, 0.6, 0.05
"""Jobs that share a GPU, and how much they slow each other: chosen here so that PyTorch's and TensorFlow's mean JCT
come near the published ones; MXNet's trainings, hardly faster on four GPUs than on one, hardly use them."""
RESTART_S = 5.0
MIXED_JOBS, GAP_S = 30, (1.0, 30.0)
LOADS = (0.6, 0.8, 1.0, 1.2, 1.5)
"""GPU-time that jobs ask for over capacity; the original's gaps, 1 to 30 s, make 0.8."""
GAPS_LOAD = 0.8
SEEDS = 20
FIFO, ELASTIC, ROUND_ROBIN = "fifo:one_node=true", "elastic_fifo:one_node=true", "round_robin"
SWITCH_AT_S = (120.0, 240.0, 360.0)


@dataclass(frozen=True)
class TracedDecision:
    """What a policy decided: who, when, and for running jobs whether it left them as they are.

    time: s. job, node: [n] jobs that start, and the node of each that has most of its GPUs. touched: running jobs that
    were given other GPUs than they held.
    """

    time: float
    policy: str
    job: IntArray
    node: IntArray
    touched: int


class DecisionTrace:
    """Decides as another policy does, and notes what it decided."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self._policy = switching(policy)
        self.decisions: list[TracedDecision] = []

    def reset(self, seed: int) -> None:
        self._policy.reset(seed)

    def stands_until(self, state: ClusterState) -> float:
        return self._policy.stands_until(state)

    def __call__(self, state: ClusterState) -> Allocation:
        allocation = self._policy(state)
        if allocation.placement is not None:
            running = state.jobs.gpus > 0
            starts = np.flatnonzero(~running & (allocation.gpus > 0))
            touched = (allocation.placement != state.held_nodes).any(axis=1) & running
            self.decisions.append(
                TracedDecision(
                    state.time,
                    self._policy.present(state.time).name,
                    state.jobs.index[starts],
                    allocation.placement[starts].argmax(axis=1),
                    int(touched.sum()),
                )
            )
        return allocation


def measure(data: Path | None) -> tuple[list[Check], dict[str, list[Row]]]:  # noqa: ARG001
    """Checks and tables; `data` is not needed."""
    checks: list[Check] = []
    tables: dict[str, list[Row]] = {}
    for part in (curves, switched, elastic, shared, sensitivity, exclusive):
        found, name, rows = part()
        checks += found
        tables[name] = rows
    return checks, tables


def curves() -> tuple[list[Check], str, list[Row]]:
    """How near the profiles come to the published seconds."""
    tables, gpus, rows, worst = speed_tables(), np.arange(1, GPUS + 1), [], 0.0
    for model, published in CURVES_S.items():
        kind = tables.type_index(JobType(model))
        seconds = seconds_to_finish(tables, kind, 1.0, tables.epochs[kind], gpus, GPUS)
        error = float(np.abs(seconds / published - 1).max())
        worst = max(worst, error)
        rows.append(
            {
                "jobs": model,
                "published [s]": " / ".join(f"{value:g}" for value in published),
                "profile [s]": " / ".join(f"{value:.1f}" for value in seconds),
                "largest error": f"{error:.1%}",
            }
        )
    return [Check("speed curves: largest error of a profile", 100 * worst, "%", 5.0, False)], "speed curves", rows


def switched() -> tuple[list[Check], str, list[Row]]:
    """S1: four policies one after the other while jobs run."""
    spec = ">".join(
        [FIFO, *(f"{at:g}:{name}" for at, name in zip(SWITCH_AT_S, (ELASTIC, ROUND_ROBIN, FIFO), strict=True))]
    )
    finished, ends, late, touched, grown, decided = [], [], 0.0, 0, 0, []
    for seed in range(SEEDS):
        record, watched = play(mixed(GAPS_LOAD, seed), spec)
        finished.append(int(np.isfinite(record.jobs.finish_time).sum()))
        ends.append(int((record.changes.gpus == 0).sum()))
        for at, name in zip(SWITCH_AT_S, (ELASTIC, ROUND_ROBIN, FIFO), strict=True):
            first = next(decision for decision in watched.decisions if decision.time >= at)
            decided.append(first.policy == name)
            late = max(late, first.time - at)
            if name == ELASTIC:
                grown += first.touched
            else:
                touched += first.touched
    row: Row = {
        "runs": SEEDS,
        "jobs each": MIXED_JOBS,
        "completed, fewest": min(finished),
        "ends of jobs, most": max(ends),
        "next decision by the new policy": f"{sum(decided)} of {len(decided)}",
        "after at most [s]": f"{late:g}",
        "running jobs touched by the first decision of round robin or FIFO": touched,
        "the same of Elastic FIFO, all runs together": grown,
    }
    checks = [
        Check("S1: jobs completed, of 30, fewest of any run", min(finished), "jobs", MIXED_JOBS, True),
        Check("S1: ends of jobs, of 30, most of any run", max(ends), "ends", MIXED_JOBS, False),
        Check("S1: switches after which the new policy decides next", float(np.mean(decided)), "share", 1.0, True),
        Check("S1: running jobs touched by the switch to round robin or FIFO", touched, "jobs", 0.0, False),
    ]
    return checks, "live switching", [row]


def elastic() -> tuple[list[Check], str, list[Row]]:
    """S2 and S4: Elastic FIFO against FIFO, on one server each as there, and where jobs may span servers."""
    rows: list[Row] = []
    busy, makespan, jct, inversions = [], [], [], 0
    for ours, rival in ((ELASTIC, FIFO), ("elastic_fifo", "fifo")):
        for load in LOADS:
            pairs = []
            for seed in range(SEEDS):
                jobs = mixed(load, seed)
                (with_it, _), (without, _) = play(jobs, ours), play(jobs, rival)
                pairs.append((*figures(with_it), *figures(without)))
                inversions += start_inversions(without)
            found = np.array(pairs)
            change = found[:, 1:3] / found[:, 4:6] - 1
            if ours == ELASTIC:
                busy.append(found[:, 0].mean())
                makespan.append(change[:, 0])
                jct.append(change[:, 1])
            rows.append(
                {
                    "jobs on": "one server each" if ours == ELASTIC else "any servers",
                    "load": load,
                    "busy, FIFO": f"{found[:, 3].mean():.2f}",
                    "busy, Elastic FIFO": f"{found[:, 0].mean():.2f}",
                    "makespan": percent(interval(change[:, 0])),
                    "mean JCT": percent(interval(change[:, 1])),
                }
            )
    spans, turns = interval(np.concatenate(makespan)), interval(np.concatenate(jct))
    all_loads: Row = {
        "jobs on": "one server each",
        "load": "all",
        "makespan": percent(spans),
        "mean JCT": percent(turns),
    }
    rows.insert(len(LOADS), all_loads)
    checks = [
        Check("S2: GPUs busy of those that jobs could use, least of five loads", min(busy), "share", 0.93, True),
        Check("S2: makespan against FIFO, mean over loads", 100 * spans.estimate, "%", -10.0, False),
        Check("S2: mean JCT against FIFO, mean over loads", 100 * turns.estimate, "%", -12.0, False),
        Check("S4: pairs of jobs that FIFO started in another order than submitted", inversions, "pairs", 0.0, False),
    ]
    return checks, "elastic FIFO against FIFO", rows


def shared() -> tuple[list[Check], str, list[Row]]:
    """S3 where jobs share GPUs: the original's experiment."""
    rows: list[Row] = []
    checks, uneven = [], 0
    for model, slowdown in (
        ("mnist_pytorch", SLOWDOWN),
        ("mnist_tensorflow", SLOWDOWN),
        ("mnist_mxnet", SLOWDOWN),
        ("mnist_mxnet", SLOWDOWN_MXNET),
    ):
        row, change, spread = rotated(model, SHARE, slowdown)
        rows.append(row)
        uneven = max(uneven, spread)
        if model in ("mnist_pytorch", "mnist_tensorflow"):
            checks += [
                Check(f"S3: mean JCT of {model} against FIFO, shared GPUs", 100 * change[1], "%", -10.0, False),
                Check(f"S3: makespan of {model} against FIFO, shared GPUs", 100 * change[0], "%", -1.0, False),
            ]
    checks.append(Check("S3: jobs per server, largest difference, shared GPUs", uneven, "jobs", 1.0, False))
    return checks, "round robin against FIFO, shared GPUs", rows


def sensitivity() -> tuple[list[Check], str, list[Row]]:
    """How the gain of round robin depends on the two parameters of sharing that no source gives."""
    rows: list[Row] = []
    for share in (2, 3, 4):
        for slowdown in (0.3, 0.6):
            row: Row = {"jobs a GPU": share, "slowdown": slowdown}
            for model in ("mnist_pytorch", "mnist_tensorflow"):
                _, change, _ = rotated(model, share, slowdown)
                row[f"{model}: makespan"] = f"{change[0]:+.0%}"
                row[f"{model}: mean JCT"] = f"{change[1]:+.0%}"
            rows.append(row)
    return [], "round robin against FIFO under other parameters of sharing", rows


def exclusive() -> tuple[list[Check], str, list[Row]]:
    """S3 where jobs have GPUs to themselves: equal jobs, and mixed ones."""
    rows: list[Row] = []
    uneven = 0
    for model in PUBLISHED_S:
        row, _, spread = rotated(model, 1, SLOWDOWN)
        rows.append({name: row[name] for name in row if not name.startswith("published")})
        uneven = max(uneven, spread)
    changes, spreads = [], []
    for seed in range(SEEDS):
        jobs = mixed(GAPS_LOAD, seed)
        (rotating, watched), (packed, _) = play(jobs, ROUND_ROBIN), play(jobs, FIFO)
        changes.append(np.array(figures(rotating)[1:]) / figures(packed)[1:] - 1)
        spreads.append(spread_over_servers(watched))
    found = np.array(changes)
    rows.append(
        {
            "jobs": f"mixed, {SEEDS} runs",
            "makespan": percent(interval(found[:, 0])),
            "mean JCT": percent(interval(found[:, 1])),
            "jobs per server, largest difference": f"{np.mean(spreads):.1f} on average, {max(spreads)} at most",
        }
    )
    checks = [
        Check("S3: jobs per server, largest difference, equal jobs on GPUs of their own", uneven, "jobs", 1.0, False),
        Check("S3: mean JCT of mixed jobs against FIFO, GPUs of their own", 100 * found[:, 1].mean(), "%", 5.0, False),
    ]
    return checks, "round robin against FIFO, GPUs of their own", rows


def rotated(model: str, share: int, slowdown: float) -> tuple[Row, FloatArray, int]:
    """Twenty four-GPU jobs, one every ten seconds: a row, changes of makespan and mean JCT, jobs per server."""
    jobs = [job(f"job{i}", 10.0 * i, model, GPUS) for i in range(20)]
    settings = SimulatorSettings(interval=1.0, rescale_delay=0.0, share=share, share_slowdown=slowdown)
    (rotating, watched), (packed, _) = play(jobs, ROUND_ROBIN, settings), play(jobs, FIFO, settings)
    after, before = figures(rotating)[1:], figures(packed)[1:]
    (makespan, published_makespan), (jct, published_jct) = (
        (f"{old:.0f} -> {new:.0f} ({new / old - 1:+.0%})", published)
        for old, new, published in zip(before, after, PUBLISHED_S[model], strict=True)
    )
    spread = spread_over_servers(watched)
    row: Row = {
        "jobs": model + (f", slowdown {slowdown:g}" if share > 1 else ""),
        "makespan [s]": makespan,
        "published makespan [s]": told(published_makespan),
        "mean JCT [s]": jct,
        "published mean JCT [s]": told(published_jct),
        "jobs per server, largest difference": spread,
    }
    return row, np.array(after) / before - 1, spread


@cache
def speed_tables() -> SpeedTables:
    """Of all four frameworks."""
    profiles = load_profiles(CONFIGS / "schedulearn" / "mnist.yaml")
    return compile_tables(profiles, [JobType(model) for model in profiles.models], GPUS, GPUS)


def job(name: str, submit: float, model: str, gpus: int) -> Job:
    """A whole training that can use 1 to 4 GPUs."""
    return Job(name, submit, model, epochs=10.0, data_size=60000.0, requested_gpus=gpus, max_gpus=GPUS)


def mixed(load: float, seed: int) -> list[Job]:
    """30 jobs of PyTorch or TensorFlow that ask for 1 to 4 GPUs, with gaps that make this load."""
    rng = np.random.default_rng([17, seed])
    models = rng.choice(["mnist_pytorch", "mnist_tensorflow"], MIXED_JOBS).tolist()
    gpus = rng.integers(1, GPUS + 1, MIXED_JOBS).tolist()
    submits = (np.cumsum(rng.uniform(*GAP_S, MIXED_JOBS)) * GAPS_LOAD / load).tolist()
    return [job(f"job{i}", *given) for i, given in enumerate(zip(submits, models, gpus, strict=True))]


def play(jobs: Sequence[Job], spec: str, settings: SimulatorSettings | None = None) -> tuple[RunRecord, DecisionTrace]:
    """Let a policy schedule the jobs. Without settings a change of a job's GPUs takes `RESTART_S`."""
    settings = settings or SimulatorSettings(interval=1.0, rescale_delay=RESTART_S)
    cluster = SimulatedCluster((Node(GPUS),) * SERVERS, jobs, speed_tables(), settings)
    watched = DecisionTrace(make_policy(spec))
    return run(cluster, watched, QueueSettings(), RewardWeights()), watched


def figures(record: RunRecord) -> tuple[float, float, float]:
    """GPUs busy of those that jobs could use, makespan [s], mean JCT [s]."""
    jobs = record.jobs
    return (
        busy_share(record),
        float(jobs.finish_time.max() - jobs.submit_time.min()),
        float((jobs.finish_time - jobs.submit_time).mean()),
    )


def busy_share(record: RunRecord) -> float:
    """GPU-seconds held over those that could be of use: all GPUs, or the most that the jobs that are there can use."""
    jobs = record.jobs
    ends = np.concatenate([jobs.submit_time, jobs.finish_time])
    by_time = np.argsort(ends, kind="stable")
    usable = np.cumsum(np.concatenate([jobs.max_gpus, -jobs.max_gpus])[by_time])[:-1]
    useful = (np.minimum(usable, record.capacity) * np.diff(ends[by_time])).sum()
    return float(jobs.gpu_seconds.sum() / useful)


def start_inversions(record: RunRecord) -> int:
    """Pairs of jobs of which the later one was started before the earlier one."""
    start = record.jobs.start_time
    return int(np.triu(start[:, None] > start[None, :], 1).sum())


def spread_over_servers(watched: DecisionTrace) -> int:
    """Difference between the most and the fewest jobs that were started on a server."""
    nodes = np.concatenate([decision.node for decision in watched.decisions])
    return int(np.ptp(np.bincount(nodes, minlength=SERVERS)))


def interval(values: FloatArray) -> Interval:
    """The mean with its 95 % interval; values: [20 * loads], those of one seed at several loads count as one."""
    return bootstrap_interval(values, [at % SEEDS for at in range(len(values))])


def percent(found: Interval) -> str:
    """A change in percent with its interval."""
    return f"{found.estimate:+.1%} ({found.low:+.1%} to {found.high:+.1%})"


def told(pair: tuple[float, float]) -> str:
    """A published figure under FIFO and under round robin."""
    before, after = pair
    return f"{before:g} -> {after:g} ({after / before - 1:+.0%})"
