"""Many simulated clusters that learn together: compiled code over a pool of workloads.

Cluster b of the fleet runs one workload of the pool at a time. The functions here do for a cluster of
the batch what `rlpto.scheduler` and `rlpto.queues` do for a single one, with the same compiled parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rlpto.arrays import AnyArray, FloatArray, IntArray
from rlpto.cluster import Node, total_gpus
from rlpto.compiled import kernel, njit
from rlpto.envs.observation import Observation, encode
from rlpto.envs.view import JobView
from rlpto.errors import ConfigError
from rlpto.jobs import EstimateNoise, Job, JobStore
from rlpto.performance.tables import SpeedTables
from rlpto.policies.steering import JobColumns, steer
from rlpto.queues import QueueSettings, hold_back, limit_converging, order_rows, trim
from rlpto.rewards import RewardWeights
from rlpto.simulator.arrays import JOB, World, build_world
from rlpto.simulator.cluster import check_jobs_fit, shared_store
from rlpto.simulator.failures import schedule_failures
from rlpto.simulator.kernels import advance, apply_allocation, clear_sums
from rlpto.simulator.settings import SimulatorSettings
from rlpto.simulator.training import accuracy_at

HOUR = 3600.0
PARTS = 4
"""Parts of the reward: accuracy, time, resources, rescale."""


@dataclass(frozen=True)
class Workload:
    """What one episode can be made of.

    name: window and seed. jobs: sorted by submit time. seed: of node failures. hours: that jobs are submitted in.
    noise: errors of what policies are told, or None. group: number of its load among those learned at.
    forecast: [T, H x FORECAST_FEATURES] float32, what is seen of the predicted task volume from second
    t x `forecast_step` on; empty: nothing. reserve: [T] GPUs to hold back from then on; empty: none.
    """

    name: str
    jobs: tuple[Job, ...]
    seed: int
    hours: float
    noise: EstimateNoise | None = None
    group: int = 0
    forecast: AnyArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    forecast_step: float = 600.0
    reserve: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


class Fleet(NamedTuple):
    """Everything compiled code needs. B clusters, W workloads, M jobs at most in one.

    world: the simulators. blank: one cluster's world before any time has passed.
    pool: [W, M] JOB, counts, seeds: [W] of each workload. forecast: [W, T, F] float32, forecast_step [s].
    reserve: [W, T] GPUs to hold back, or empty.
    current: [B] workload that each cluster runs. promoted: [B, M] as `rlpto.queues.order_rows` keeps it.
    packed: [T, K + 1] rows of the speed tables. known_remaining, known_speed: as in the speed tables, or empty.
    noise: [W, M, 2 + K + 1] factors on remaining, on speed, and further on speed with 0..K GPUs; or empty.
    aging: [2] s, normal and low. shrink_lower. converging: [2] share of accuracy gained, and GPUs to keep.
    reward: [7] weights, see `weigh`.
    """

    world: World
    blank: World
    pool: AnyArray
    counts: IntArray
    seeds: IntArray
    forecast: AnyArray
    forecast_step: float
    reserve: IntArray
    current: IntArray
    promoted: IntArray
    packed: IntArray
    known_remaining: FloatArray
    known_speed: FloatArray
    noise: FloatArray
    aging: FloatArray
    shrink_lower: bool
    converging: FloatArray
    reward: FloatArray
    gpus_per_node: int


def build_fleet(
    count: int,
    nodes: tuple[Node, ...],
    workloads: Sequence[Workload],
    tables: SpeedTables,
    simulator: SimulatorSettings,
    queue: QueueSettings,
    reward: RewardWeights,
) -> Fleet:
    """A fleet of `count` clusters. Raises ConfigError or JobError if a workload cannot run on them."""
    if not workloads:
        raise ConfigError("no workloads to learn from: expected training windows with jobs")
    if queue.inside != "fifo":
        raise ConfigError(f"queue.inside: an environment serves each class fifo, not {queue.inside}")
    for workload in workloads:
        check_jobs_fit(workload.jobs, total_gpus(nodes))
    tables = tables.with_rescale_delay(simulator.rescale_delay)
    most = max(len(workload.jobs) for workload in workloads)
    pool = np.zeros((len(workloads), most), dtype=JOB)
    pool["max_gpus"] = 1
    for row, workload in zip(pool, workloads, strict=True):
        row[: len(workload.jobs)] = shared_store(JobStore.from_jobs(workload.jobs, tables))[1]
    sizes = np.array([node.gpus for node in nodes], dtype=np.int64)
    slots = np.zeros((count, most), dtype=JOB)
    slots["max_gpus"] = pool["max_gpus"].max(initial=1)  # room for the largest job of any workload
    gpus_per_node = int(sizes.max())
    packed = np.ascontiguousarray(tables.packed_rows(gpus_per_node))  # one layout, so that code is compiled once
    empty = np.zeros((0, 0))
    return Fleet(
        world=build_world(slots, sizes, tables, simulator, 0, keep_log=False),
        blank=build_world(slots[:1].copy(), sizes, tables, simulator, 0, keep_log=False),
        pool=pool,
        counts=np.array([len(workload.jobs) for workload in workloads], dtype=np.int64),
        seeds=np.array([workload.seed for workload in workloads], dtype=np.int64),
        forecast=_joint_forecast(workloads),
        forecast_step=_joint_step(workloads),
        reserve=_joint_reserve(workloads),
        current=np.zeros(count, dtype=np.int64),
        promoted=np.zeros((count, most), dtype=np.int64),
        packed=packed,
        known_remaining=empty if tables.known_remaining is None else np.ascontiguousarray(tables.known_remaining),
        known_speed=empty if tables.known_speed is None else np.ascontiguousarray(tables.known_speed),
        noise=_joint_noise(workloads, most, packed.shape[1]),
        aging=np.array([queue.aging_normal, queue.aging_low]),
        shrink_lower=queue.shrink_lower,
        converging=np.array([queue.converging.gained, queue.converging.keep]),
        reward=reward_vector(reward),
        gpus_per_node=gpus_per_node,
    )


def reward_vector(weights: RewardWeights) -> FloatArray:
    """[7] weights of accuracy, time, resources and rescale, then of the classes, for `weigh`."""
    return np.array([weights.accuracy, weights.time, weights.resources, weights.rescale, *weights.classes])


def _joint_noise(workloads: Sequence[Workload], most: int, width: int) -> FloatArray:
    """[W, most, 2 + width] errors of all workloads, as `rlpto.jobs.JobTable` applies them: powers by NumPy, whose
    last bit is not that of compiled code."""
    if all(workload.noise is None for workload in workloads):
        return np.zeros((0, 0, 0))
    noise = np.ones((len(workloads), most, 2 + width))
    gpus = np.maximum(np.arange(width), 1)
    for factors, workload in zip(noise, workloads, strict=True):
        if (errors := workload.noise) is not None:
            own = factors[: len(workload.jobs)]
            own[:, 0], own[:, 1] = errors.remaining, errors.speed
            own[:, 2:] = gpus[None, :] ** errors.scaling[:, None]
    return noise


def _joint_forecast(workloads: Sequence[Workload]) -> AnyArray:
    """[W, T, F] forecasts of all workloads, zeros where there is none; the last one is kept where one ends early."""
    known = [workload.forecast for workload in workloads if workload.forecast.size]
    if not known:
        return np.zeros((0, 0, 0), dtype=np.float32)
    joint = np.zeros((len(workloads), max(map(len, known)), known[0].shape[1]), dtype=np.float32)
    for rows, workload in zip(joint, workloads, strict=True):
        if (own := workload.forecast).size:
            rows[: len(own)], rows[len(own) :] = own, own[-1]
    return joint


def _joint_reserve(workloads: Sequence[Workload]) -> IntArray:
    """[W, T] GPUs to hold back in all workloads, as `_joint_forecast` puts them together; empty if there are none."""
    longest = max(len(workload.reserve) for workload in workloads)
    if not any(workload.reserve.any() for workload in workloads):
        return np.zeros((0, 0), dtype=np.int64)
    joint = np.zeros((len(workloads), longest), dtype=np.int64)
    for row, workload in zip(joint, workloads, strict=True):
        if len(own := workload.reserve):
            row[: len(own)], row[len(own) :] = own, own[-1]
    return joint


def _joint_step(workloads: Sequence[Workload]) -> float:
    """Seconds of a forecast's step, the same in all workloads that have one. Raises ConfigError."""
    steps = {workload.forecast_step for workload in workloads if workload.forecast.size or len(workload.reserve)}
    if len(steps) > 1:
        listed = " and ".join(f"{step:g}" for step in sorted(steps))
        raise ConfigError(f"workloads with forecasts every {listed} s, expected the same in all")
    return steps.pop() if steps else workloads[0].forecast_step


@kernel()
def weigh(
    high: float, normal: float, low: float, unfinished: float, gpu_seconds: float, delay: float, weights: FloatArray,
    out: FloatArray,
) -> None:  # fmt: skip
    """Fill `out` [4] with accuracy, time, resources and rescale parts; see `rlpto.rewards.reward_parts`."""
    out[0] = weights[0] * (high * weights[4] + normal * weights[5] + low * weights[6])
    out[1] = -weights[1] * unfinished / HOUR
    out[2] = -weights[2] * gpu_seconds / HOUR
    out[3] = -weights[3] * delay / HOUR


@njit()
def begin(f: Fleet, b: int, workload: int) -> None:
    """Put cluster b at the start of a workload and run it to its first decision."""
    w = f.world
    w.jobs[b] = f.pool[workload]
    w.clusters[b] = f.blank.clusters[0]
    w.clusters[b].jobs = f.counts[workload]
    w.clusters[b].seed = f.seeds[workload]
    w.machines[b] = f.blank.machines[0]
    w.free[b] = f.blank.free[0]
    f.promoted[b] = 0
    f.current[b] = workload
    clear_sums(w, b)
    schedule_failures(w, b)
    advance(w, b)


@njit()
def over(f: Fleet, b: int) -> bool:
    """True once every job of cluster b has finished, or its time is up."""
    cluster = f.world.clusters[b]
    if cluster.active > 0 and cluster.time < f.world.rules[0].limit:
        return False
    return bool(cluster.arrived == cluster.jobs or cluster.time >= f.world.rules[0].limit)


@njit()
def view_of(f: Fleet, b: int) -> JobView:
    """The active jobs of cluster b in queue order, as `rlpto.envs.view.view_state` gives them of a single cluster."""
    w = f.world
    cluster, jobs = w.clusters[b], w.jobs[b]
    n = cluster.active
    active = w.active[b, :n]
    priority, since = np.empty(n, np.int64), np.empty(n)
    for i in range(n):
        priority[i] = jobs[active[i]].priority
        since[i] = jobs[active[i]].wait_start
    rows, classes = np.empty(n, np.int64), np.empty(n, np.int64)
    order_rows(active, priority, since, cluster.time, f.aging[0], f.aging[1], f.promoted[b], rows, classes)
    width = f.packed.shape[1]
    index, effective = np.empty(n, np.int64), np.empty(n, np.int64)
    speed = np.zeros((n, width))
    real, whole = np.empty((11, n)), np.empty((5, n), np.int64)
    for i in range(n):
        j = active[rows[i]]
        job = jobs[j]
        kind = job.type_index
        index[i] = j
        effective[i] = classes[rows[i]]
        epochs = w.types[kind].epochs
        epoch = min(int(job.progress), epochs - 1)
        left = job.epochs - job.progress
        if f.known_remaining.size:
            left = f.known_remaining[kind, epoch]
        used = min(job.max_gpus, width - 1) + 1  # nothing looks further, and every entry is a stride away in memory
        for k in range(used):
            if f.known_speed.size:
                speed[i, k] = f.known_speed[kind, k]
            else:
                speed[i, k] = w.rates[f.packed[kind, k], epoch] * job.scale
        if f.noise.size:
            errors = f.noise[f.current[b], j]
            left = left * errors[0]
            for k in range(used):
                speed[i, k] = speed[i, k] * errors[1] * errors[2 + k]
        whole[0, i] = job.min_gpus
        whole[1, i] = job.max_gpus
        whole[2, i] = job.gpus
        whole[3, i] = job.requested_gpus
        whole[4, i] = job.peak_gpus
        real[0, i] = left
        real[1, i] = job.submit_time
        real[2, i] = job.attained_service
        real[3, i] = w.types[kind].delay
        real[4, i] = job.wait_start
        real[5, i] = job.rescale_left
        real[6, i] = job.progress
        real[7, i] = job.epochs
        real[8, i] = accuracy_at(w.accuracy, kind, epochs, job.progress)
        real[9, i] = accuracy_at(w.accuracy, kind, epochs, 0.0)
        real[10, i] = accuracy_at(w.accuracy, kind, epochs, job.epochs)
    size = np.empty(n)
    for i in range(n):
        size[i] = jobs[index[i]].data_size
    if f.converging[0] < 1:
        limit_converging(
            real[9], real[8], real[10], whole[2], whole[4], whole[0], whole[1], f.converging[0], f.converging[1]
        )
        whole[3] = np.minimum(whole[3], whole[1])
    columns = JobColumns(speed, real[0], whole[0], whole[1], whole[2], effective, real[1], real[2], real[3])
    return JobView(index, columns, whole[3], real[4], real[5], real[6], real[7], real[8], real[9], real[10], size)


@njit()
def look(f: Fleet, b: int, view: JobView, out: Observation) -> None:
    """Fill row b of a batch of observations with what `view` shows of cluster b."""
    cluster = f.world.clusters[b]
    row = Observation(out.jobs[b], out.mask[b], out.cluster[b], out.forecast[b])
    encode(cluster.time, cluster.capacity, f.gpus_per_node, cluster.held, f.world.rules[0].interval, view, row)
    if f.forecast.size:
        at = min(int(cluster.time / f.forecast_step), f.forecast.shape[1] - 1)
        row.forecast[:] = f.forecast[f.current[b], at]


@njit()
def decide(f: Fleet, b: int, view: JobView, weights: FloatArray) -> None:
    """Take one decision in cluster b: wishes by weights [1, STEERING_FEATURES], trimmed in queue order, carried out."""
    cluster, columns = f.world.clusters[b], view.columns
    wish = steer(cluster.time, cluster.capacity, columns, weights)
    if wish.sum() > cluster.capacity or f.shrink_lower:
        given = np.empty_like(wish)
        trim(wish, columns.lowest, columns.priority, cluster.capacity, f.shrink_lower, given)
        wish = given
    if f.reserve.size:
        at = min(int(cluster.time / f.forecast_step), f.reserve.shape[1] - 1)
        if f.reserve[f.current[b], at] > 0:
            hold_back(
                wish, columns.lowest, columns.held, columns.priority, cluster.capacity, f.reserve[f.current[b], at]
            )
    apply_allocation(f.world, b, view.position, wish, np.arange(len(wish)))


@njit()
def run_hold(f: Fleet, b: int, view: JobView, weights: FloatArray, until: float, parts: FloatArray) -> JobView:
    """Decide with one action until `until` (at least once) or the end; fill `parts` [4] with the reward.

    view: of cluster b now. Returns the view at the end.
    """
    w = f.world
    cluster, gain = w.clusters[b], w.accuracy_gain[b]
    sums = np.zeros(6)
    while True:
        decide(f, b, view, weights)
        advance(w, b)
        sums[0] += gain[0]
        sums[1] += gain[1]
        sums[2] += gain[2]
        sums[3] += cluster.unfinished
        sums[4] += cluster.gpu_seconds
        sums[5] += cluster.rescale_seconds
        clear_sums(w, b)  # only now: what passed before the first decision of a workload counts too
        view = view_of(f, b)
        if over(f, b) or cluster.time >= until:
            break
    weigh(sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], f.reward, parts)
    return view


@njit()
def play(f: Fleet, b: int, workload: int, weights: FloatArray, time: FloatArray, total: FloatArray) -> int:
    """Run a whole workload in cluster b with constant index weights.

    Fills time [L] and total [L], the reward up to then, at every decision, and returns how many there
    were (the last of those that fit stands for all that follow).
    """
    begin(f, b, workload)
    parts = np.zeros(PARTS)
    view = view_of(f, b)
    time[0], total[0] = f.world.clusters[b].time, 0.0
    count = 1
    while not over(f, b):
        view = run_hold(f, b, view, weights, -np.inf, parts)
        at = min(count, len(time) - 1)
        total[at] = total[count - 1 if count <= at else at] + parts.sum()
        time[at] = f.world.clusters[b].time
        count = at + 1
    return count
