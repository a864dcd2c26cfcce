"""Many simulated clusters that step together: compiled code over a pool of workloads.

Cluster b runs one workload of the pool at a time. This is the loop of `rlpto.core.loop.DecisionLoop`, compiled, over
the same compiled parts: order, view, admit, advance, terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rlpto.core.cluster import ClusterShape
from rlpto.core.gpu_types import GpuTypes
from rlpto.core.job_store import JobStore
from rlpto.core.jobs import JOB, EstimateNoise, FinishedJob, Job
from rlpto.core.queues import QueueSettings
from rlpto.core.records import INTERVAL
from rlpto.core.renting import NO_RENT, TICK_S, RentPlan
from rlpto.core.rewards import TERMS, RewardWeights, weigh
from rlpto.envs.observation import Observation, encode
from rlpto.io.arrays import AnyArray, BoolArray, FloatArray, IntArray
from rlpto.io.by_reference import by_reference
from rlpto.io.compiled import copy_rows, kernel, njit
from rlpto.io.errors import ConfigError
from rlpto.knowledge.by_size import ALL_KNOWN, CompiledEstimates
from rlpto.knowledge.history import History, compile_history
from rlpto.performance.tables import SpeedTables
from rlpto.simulator.arrays import World, build_world
from rlpto.simulator.batch_loop import (
    Loop,
    build_loop,
    carry_out,
    copy_of,
    decide_and_run,
    forget,
    look_around,
    look_at_queue,
)
from rlpto.simulator.cluster import check_jobs_fit
from rlpto.simulator.failures import schedule_failures
from rlpto.simulator.kernels import advance, clear_sums, is_over
from rlpto.simulator.renting import decide_on_nodes
from rlpto.simulator.settings import SimulatorSettings

PARTS = len(TERMS)
"""Terms of the reward."""
NO_TRACE = np.zeros((0, 2))
"""Trace for `run_clusters` that records no decision."""


@dataclass(frozen=True)
class Workload:
    """The jobs and surroundings of one episode.

    name: window and seed. jobs: sorted by submit time. seed: seed of the node failures. hours: duration in which jobs
    are submitted. noise: errors of the estimates that policies get, or None. group: number of the workload's load among
    the training loads. forecast: [T, H x FORECAST_FEATURES] float32 observed entries; row t holds the predicted task
    volume from second t x `forecast_step` on. Default: no forecast. past: jobs that had finished before.
    """

    name: str
    jobs: tuple[Job, ...]
    seed: int
    hours: float
    noise: EstimateNoise | None = None
    group: int = 0
    forecast: AnyArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    forecast_step: float = 600.0
    past: tuple[FinishedJob, ...] = ()


@by_reference
class CompiledBatch(NamedTuple):
    """Everything that compiled code needs. B: clusters, W: workloads, M: most jobs in a workload.

    loop: the simulators and the inputs of decisions. blank: world of one cluster before any time has passed.
    pool: [W, M] JOB. counts, seeds: [W] of each workload. forecast: [W, T, F] float32, one row each forecast_step [s].
    reward: [1] `rlpto.core.rewards.WEIGHTS`. rent: decisions on rented nodes, G = 0 if there are none.
    """

    loop: Loop
    blank: World
    pool: AnyArray
    counts: IntArray
    seeds: IntArray
    forecast: AnyArray
    forecast_step: float
    reward: AnyArray
    rent: RentPlan

    @property
    def world(self) -> World:
        """The simulators."""
        return self.loop.world


def build_batch(
    count: int,
    shape: ClusterShape,
    workloads: Sequence[Workload],
    tables: SpeedTables,
    simulator: SimulatorSettings,
    queue: QueueSettings,
    reward: RewardWeights,
    *,
    estimates: CompiledEstimates = ALL_KNOWN,
    rent: RentPlan = NO_RENT,
) -> CompiledBatch:
    """Build a batch of `count` clusters. Raises ConfigError or JobError if a workload cannot run on them.

    estimates: estimates that policies get, except for the noise of workloads. rent: decisions on rented nodes.
    """
    _check_supported(shape, workloads, tables, queue)
    tables = tables.with_rescale_delay(simulator.rescale_delay)
    counts = np.array([len(workload.jobs) for workload in workloads], dtype=np.int64)
    most = int(counts.max())
    pool = np.zeros((len(workloads), most), dtype=JOB)
    pool["max_gpus"] = 1
    for row, workload in zip(pool, workloads, strict=True):
        row[: len(workload.jobs)] = JobStore.from_jobs(workload.jobs, tables).records

    def world(clusters: int) -> World:
        slots = np.zeros((clusters, most), dtype=JOB)
        slots["max_gpus"] = pool["max_gpus"].max(initial=1)  # room for the largest job of any workload
        return build_world(slots, shape, tables, simulator, 0, keep_log=False, follow_accuracy=reward.shortfall > 0)

    noise = _joint_noise(workloads, most, tables.max_gpus + 1)
    history = joint_history(workloads, tables)
    parts = (queue, shape.gpus_per_node, noise, estimates, GpuTypes.of(shape, tables), history)
    return CompiledBatch(
        loop=build_loop(world(count), tables, *parts),
        blank=world(1),
        pool=pool,
        counts=counts,
        seeds=np.array([workload.seed for workload in workloads], dtype=np.int64),
        forecast=_joint_forecasts(workloads),
        forecast_step=_joint_step(workloads),
        reward=reward.record(),
        rent=rent,
    )


def copy_of_batch(batch: CompiledBatch) -> CompiledBatch:
    """Copy a batch for another thread, without sharing anything that running it changes."""
    scratch = {name: getattr(batch.rent, name).copy() for name in ("look", "wanted", "nodes")}
    return batch._replace(loop=copy_of(batch.loop), rent=batch.rent._replace(**scratch))


def _check_supported(
    shape: ClusterShape, workloads: Sequence[Workload], tables: SpeedTables, queue: QueueSettings
) -> None:
    """Raise ConfigError or JobError for inputs that compiled code does not support."""
    if not workloads:
        raise ConfigError("no workloads to learn from: expected training windows with jobs")
    if queue.inside != "fifo":
        raise ConfigError(
            f"queue.inside: {queue.inside}, but where agents learn and constants are tuned each class is served fifo"
        )
    if tables.has_servers or any(node.background or node.background_cpus for node in shape):
        raise ConfigError(
            "simulators in a batch know neither parameter servers nor background load: expected models that train "
            "without servers, and no workload.background, where an agent learns"
        )
    for workload in workloads:
        check_jobs_fit(workload.jobs, shape.most_gpus)


def _joint_noise(workloads: Sequence[Workload], most: int, width: int) -> FloatArray:
    """[W, most, 2 + width] `rlpto.core.jobs.EstimateNoise.factors` of all workloads; empty without noise."""
    if all(workload.noise is None for workload in workloads):
        return np.zeros((len(workloads), 0, 0))
    noise = np.ones((len(workloads), most, 2 + width))
    for factors, workload in zip(noise, workloads, strict=True):
        if workload.noise is not None:
            factors[: len(workload.jobs)] = workload.noise.factors(width)
    return noise


def joint_history(workloads: Sequence[Workload], tables: SpeedTables) -> History:
    """The jobs that had finished before each workload, which is a window of the history."""
    return compile_history([own.past for own in workloads], tables)


def _joint_forecasts(workloads: Sequence[Workload]) -> AnyArray:
    """[W, T, F] of all workloads, the last row repeated for shorter ones; empty if all are zero."""
    every = [workload.forecast for workload in workloads]
    longest = max(every, key=len)
    if not any(own.any() for own in every):
        return np.zeros((0, 0, 0), dtype=longest.dtype)
    joint = np.zeros((len(every), *longest.shape), dtype=longest.dtype)
    for row, own in zip(joint, every, strict=True):
        if len(own):
            row[: len(own)], row[len(own) :] = own, own[-1]
    return joint


def _joint_step(workloads: Sequence[Workload]) -> float:
    """Seconds of a forecast's step. Raises ConfigError unless all workloads with a forecast have the same."""
    steps = {workload.forecast_step for workload in workloads if workload.forecast.size}
    if len(steps) > 1:
        listed = " and ".join(f"{step:g}" for step in sorted(steps))
        raise ConfigError(f"workloads with forecasts every {listed} s, expected the same in all")
    return steps.pop() if steps else workloads[0].forecast_step


@njit()
def begin(f: CompiledBatch, b: int, workload: int) -> None:
    """Put cluster b at the start of a workload, run it to its first decision, and look around."""
    w = f.loop.world
    copy_rows(w.jobs[b], f.pool[workload])
    w.clusters[b] = f.blank.clusters[0]
    w.clusters[b].jobs = f.counts[workload]
    w.clusters[b].seed = f.seeds[workload]
    copy_rows(w.machines[b], f.blank.machines[0])
    copy_rows(w.free[b], f.blank.free[0])
    copy_rows(w.rentals[b], f.blank.rentals[0])
    copy_rows(w.worked[b], f.blank.worked[0])
    f.loop.current[b] = workload
    f.loop.estimates.seen[b] = 0
    forget(f.loop, b)
    clear_sums(w, b)
    schedule_failures(w, b)
    advance(w, b)
    look_around(f.loop, b)
    rent_by_plan(f, b)


@njit()
def rent_by_plan(f: CompiledBatch, b: int) -> None:
    """Decide on the rented nodes of cluster b if a decision is due. The last minute of a plan stands from then on."""
    w, plan, workload = f.loop.world, f.rent, f.loop.current[b]
    if len(plan.size) == 0 or w.clusters[b].time < w.clusters[b].next_rent or is_over(w, b):
        return
    minute = min(int(w.clusters[b].time / TICK_S + 1e-6), plan.further.shape[1] - 1)
    if decide_on_nodes(w, b, plan, workload, minute, np.zeros(6)):
        look_around(f.loop, b)


@njit()
def observe_one(f: CompiledBatch, b: int, out: Observation) -> None:
    """Fill row b of a batch of observations from cluster b."""
    cluster, n = f.loop.world.clusters[b], f.loop.world.clusters[b].active
    row = Observation(out.jobs[b], out.mask[b], out.cluster[b], out.forecast[b])
    interval = f.loop.world.rules[0].interval
    view, speed = f.loop.shown.jobs[b, :n], f.loop.shown.speed[b, :n]
    encode(cluster.time, cluster.capacity, f.loop.gpus_per_node, cluster.held, interval, view, speed, row)
    if f.forecast.size:
        at = min(int(cluster.time / f.forecast_step), f.forecast.shape[1] - 1)
        copy_rows(row.forecast, f.forecast[f.loop.current[b], at])


@njit(nogil=True)
def run_clusters(
    f: CompiledBatch,
    first: int,
    workload: int,
    weights: FloatArray,
    until: FloatArray,
    parts: FloatArray,
    out: Observation,
    trace: FloatArray,
) -> BoolArray:
    """Run clusters `first`, `first` + 1, ... under weights [n, WEIGHT_NAMES] until `until` [n] s, or the end.

    workload: if -1, the clusters continue and decide at least once. Otherwise they begin this workload, and decide only
    if `until` is ahead. Fills parts [n, PARTS] with the terms of the reward, and the clusters' rows of out, if it has
    any. trace [L, 2]: if L > 0, it gets the time [s] and the reward of each decision, and the run stops after L
    decisions. Returns [n], whether the workloads are over.
    Python enters compiled code only here: the compiler takes seconds for every such entry.
    """
    w, over = f.loop.world, np.zeros(len(weights), dtype=np.bool_)
    for i in range(len(weights)):
        b, total, traced = first + i, np.zeros(1, INTERVAL), 0
        cluster = w.clusters[b]
        if workload >= 0:
            begin(f, b, workload)
        runs = workload < 0 or (cluster.time < until[i] and not is_over(w, b))
        while runs:
            decide_and_run(f.loop, b, weights[i : i + 1], total)
            rent_by_plan(f, b)
            runs = cluster.time < until[i] and not is_over(w, b)
            if len(trace) > 0:
                weigh(total, f.reward, parts[i])
                trace[traced, 0], trace[traced, 1], total = cluster.time, parts[i].sum(), np.zeros(1, INTERVAL)
                traced += 1
                runs = runs and traced < len(trace)
        weigh(total, f.reward, parts[i])
        if len(out.mask) > 0:
            observe_one(f, b, out)
        over[i] = is_over(w, b)
    return over


@kernel()
def run_requested(f: CompiledBatch, decisions: int) -> int:
    """Take decisions in every cluster with a trivial policy that gives every job its requested GPUs.

    Workloads that are over begin again. Returns the number of decisions with an active job, over all clusters.
    """
    taken, w = 0, f.loop.world
    for b in range(len(w.clusters)):
        cluster = w.clusters[b]
        for _ in range(decisions):
            if is_over(w, b):
                begin(f, b, f.loop.current[b])
            if cluster.active > 0:
                carry_out(f.loop, b, f.loop.shown.jobs[b, : cluster.active]["requested_gpus"])
                taken += 1
            clear_sums(w, b)
            advance(w, b)
            look_at_queue(f.loop, b)
    return taken


@njit()
def look_around_all(f: CompiledBatch) -> None:
    """Look around in every cluster, after their worlds were restored."""
    for b in range(len(f.loop.world.clusters)):
        forget(f.loop, b)
        look_around(f.loop, b)
