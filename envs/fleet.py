"""Many simulated clusters that learn together: compiled code over a pool of workloads.

Cluster b of the fleet runs one workload of the pool at a time. This is the loop of `rlpto.scheduler.DecisionLoop`,
compiled, over the same compiled parts: order, view, admit, advance, terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rlpto.arrays import AnyArray, FloatArray, IntArray
from rlpto.cluster import ClusterShape
from rlpto.compiled import njit
from rlpto.envs.observation import Observation, encode
from rlpto.errors import ConfigError
from rlpto.jobs import JOB, VIEW, EstimateNoise, Job, JobStore, fill_speed, fill_view
from rlpto.performance.tables import SpeedTables
from rlpto.policies.steering import steer
from rlpto.queues import QueueSettings, admit, order_rows, shrink_converging
from rlpto.records import INTERVAL, add_interval
from rlpto.rewards import TERMS, RewardWeights, weigh
from rlpto.simulator.arrays import World, build_world
from rlpto.simulator.cluster import check_jobs_fit
from rlpto.simulator.failures import schedule_failures
from rlpto.simulator.kernels import advance, apply_allocation, clear_sums, is_over
from rlpto.simulator.settings import SimulatorSettings

PARTS = len(TERMS)
"""Terms of the reward."""


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
    current: [B] workload that each cluster runs. shown: [B, M] `rlpto.jobs.VIEW` of its active jobs in queue order, and
    speed: [B, M, K + 1] theirs: as `look_around` left them.
    packed: [T, K + 1] rows of the speed tables. known_remaining, known_speed: as in the speed tables, or empty.
    noise: [W, M, 2 + K + 1] factors on remaining, on speed, and further on speed with 0..K GPUs; or empty.
    aging: [2] s, normal and low. shrink_lower. converging: [2] share of accuracy gained, and GPUs to keep.
    reward: [1] `rlpto.rewards.WEIGHTS`.
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
    shown: AnyArray
    speed: FloatArray
    packed: IntArray
    known_remaining: FloatArray
    known_speed: FloatArray
    noise: FloatArray
    aging: FloatArray
    shrink_lower: bool
    converging: FloatArray
    reward: AnyArray
    gpus_per_node: int


def build_fleet(
    count: int,
    shape: ClusterShape,
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
        check_jobs_fit(workload.jobs, shape.capacity)
    tables = tables.with_rescale_delay(simulator.rescale_delay)
    most = max(len(workload.jobs) for workload in workloads)
    pool = np.zeros((len(workloads), most), dtype=JOB)
    pool["max_gpus"] = 1
    for row, workload in zip(pool, workloads, strict=True):
        row[: len(workload.jobs)] = JobStore.from_jobs(workload.jobs, tables).records
    slots = np.zeros((count, most), dtype=JOB)
    slots["max_gpus"] = pool["max_gpus"].max(initial=1)  # room for the largest job of any workload
    packed = tables.packed_rows(shape.gpus_per_node)
    return Fleet(
        world=build_world(slots, shape.node_gpus, tables, simulator, 0, keep_log=False),
        blank=build_world(slots[:1].copy(), shape.node_gpus, tables, simulator, 0, keep_log=False),
        pool=pool,
        counts=np.array([len(workload.jobs) for workload in workloads], dtype=np.int64),
        seeds=np.array([workload.seed for workload in workloads], dtype=np.int64),
        forecast=_joint_forecast(workloads),
        forecast_step=_joint_step(workloads),
        reserve=_joint_reserve(workloads),
        current=np.zeros(count, dtype=np.int64),
        shown=np.zeros((count, most), dtype=VIEW),
        speed=np.zeros((count, most, packed.shape[1])),
        packed=packed,
        known_remaining=tables.told_remaining,
        known_speed=tables.told_speed,
        noise=_joint_noise(workloads, most, packed.shape[1]),
        aging=np.array([queue.aging_normal, queue.aging_low]),
        shrink_lower=queue.shrink_lower,
        converging=np.array([queue.converging.gained, queue.converging.keep]),
        reward=reward.record(),
        gpus_per_node=shape.gpus_per_node,
    )


def _joint_noise(workloads: Sequence[Workload], most: int, width: int) -> FloatArray:
    """[W, most, 2 + width] errors of all workloads, as `rlpto.jobs.EstimateNoise.factors` has them; or empty."""
    if all(workload.noise is None for workload in workloads):
        return np.zeros((len(workloads), 0, 0))
    noise = np.ones((len(workloads), most, 2 + width))
    for factors, workload in zip(noise, workloads, strict=True):
        if workload.noise is not None:
            factors[: len(workload.jobs)] = workload.noise.factors(width)
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


@njit()
def begin(f: Fleet, b: int, workload: int) -> None:
    """Put cluster b at the start of a workload, run it to its first decision, and look around."""
    w = f.world
    w.jobs[b] = f.pool[workload]
    w.clusters[b] = f.blank.clusters[0]
    w.clusters[b].jobs = f.counts[workload]
    w.clusters[b].seed = f.seeds[workload]
    w.machines[b] = f.blank.machines[0]
    w.free[b] = f.blank.free[0]
    f.current[b] = workload
    clear_sums(w, b)
    schedule_failures(w, b)
    advance(w, b)
    look_around(f, b)


@njit()
def look_around(f: Fleet, b: int) -> None:
    """Fill `shown` and `speed` of cluster b with its active jobs in queue order, as they stand now."""
    see_jobs(f, b)
    w, n = f.world, f.world.clusters[b].active
    # Nothing looks beyond a job's own limit, and every entry is a stride away in memory.
    fill_speed(f.shown[b, :n], w.rates, f.packed, f.known_speed, f.noise[f.current[b]], 0, f.speed[b, :n])
    if f.converging[0] < 1:
        shrink_converging(f.shown[b, :n], f.converging[0], f.converging[1])


@njit()
def see_jobs(f: Fleet, b: int) -> None:
    """Fill `shown` of cluster b: all that policies that heed no speeds want to know."""
    w = f.world
    cluster, jobs, n = w.clusters[b], w.jobs[b], w.clusters[b].active
    active, rows, effective = w.active[b, :n], np.empty(n, np.int64), np.empty(n, np.int64)
    order_rows(jobs, active, cluster.time, f.aging[0], f.aging[1], rows, effective)
    for i in range(n):
        rows[i] = active[rows[i]]
    noise = f.noise[f.current[b]]
    fill_view(jobs, rows, effective, w.types, w.accuracy, f.known_remaining, noise, f.shown[b, :n])


@njit()
def observe_one(f: Fleet, b: int, out: Observation) -> None:
    """Fill row b of a batch of observations with what is seen of cluster b."""
    cluster, n = f.world.clusters[b], f.world.clusters[b].active
    row = Observation(out.jobs[b], out.mask[b], out.cluster[b], out.forecast[b])
    interval = f.world.rules[0].interval
    encode(
        cluster.time, cluster.capacity, f.gpus_per_node, cluster.held, interval, f.shown[b, :n], f.speed[b, :n], row
    )  # fmt: skip
    if f.forecast.size:
        at = min(int(cluster.time / f.forecast_step), f.forecast.shape[1] - 1)
        row.forecast[:] = f.forecast[f.current[b], at]


@njit()
def reserved(f: Fleet, b: int) -> int:
    """GPUs to hold back in cluster b now."""
    if f.reserve.size == 0:
        return 0
    at = min(int(f.world.clusters[b].time / f.forecast_step), f.reserve.shape[1] - 1)
    return int(f.reserve[f.current[b], at])


@njit()
def carry_out(f: Fleet, b: int, wishes: IntArray) -> None:
    """Trim wishes [n] for the jobs in view of cluster b, and carry them out."""
    n = len(wishes)
    view, given, index, order = f.shown[b, :n], np.empty(n, np.int64), np.empty(n, np.int64), np.arange(n)
    admit(view, wishes, f.world.clusters[b].capacity, f.shrink_lower, reserved(f, b), given)
    for i in range(n):
        index[i] = view[i].index
    apply_allocation(f.world, b, index, given, order)


@njit()
def run_hold(f: Fleet, b: int, weights: FloatArray, until: float, terms: FloatArray) -> None:
    """Decide with weights [1, STEERING_FEATURES] until `until` (at least once) or the end.

    Cluster b has been looked at, and is again at the end. Fills terms [TERMS] with the reward.
    """
    w = f.world
    cluster, passed, total = w.clusters[b], w.sums[b : b + 1], np.zeros(1, INTERVAL)
    while True:
        n = cluster.active
        carry_out(f, b, steer(cluster.time, cluster.capacity, f.shown[b, :n], f.speed[b, :n], weights))
        advance(w, b)
        add_interval(total, passed)
        clear_sums(w, b)  # only now: what passed before the first decision of a workload counts too
        look_around(f, b)
        if is_over(w, b) or cluster.time >= until:
            break
    weigh(total, f.reward, terms)


@njit()
def run_requested(f: Fleet, decisions: int) -> int:
    """Take decisions in every cluster with a trivial policy: every job wishes for its requested GPUs.

    Workloads that are over begin anew. Returns how many decisions had an active job, over all clusters.
    """
    taken = 0
    for b in range(len(f.world.clusters)):
        cluster = f.world.clusters[b]
        for _ in range(decisions):
            if is_over(f.world, b):
                begin(f, b, f.current[b])
            if cluster.active > 0:
                carry_out(f, b, f.shown[b, : cluster.active]["requested_gpus"])
                taken += 1
            clear_sums(f.world, b)
            advance(f.world, b)
            see_jobs(f, b)
    return taken


@njit()
def play(f: Fleet, b: int, workload: int, weights: FloatArray, time: FloatArray, total: FloatArray) -> int:
    """Run a whole workload in cluster b with constant index weights.

    Fills time [L] and total [L], the reward up to then, at every decision, and returns how many there
    were (the last of those that fit stands for all that follow).
    """
    begin(f, b, workload)
    terms = np.zeros(PARTS)
    time[0], total[0] = f.world.clusters[b].time, 0.0
    count = 1
    while not is_over(f.world, b):
        run_hold(f, b, weights, -np.inf, terms)
        at = min(count, len(time) - 1)
        total[at] = total[count - 1 if count <= at else at] + terms.sum()
        time[at] = f.world.clusters[b].time
        count = at + 1
    return count
