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
from rlpto.compiled import kernel, njit
from rlpto.envs.observation import Observation, encode
from rlpto.errors import ConfigError
from rlpto.jobs import JOB, VIEW, EstimateNoise, Job, JobStore, fill_estimates, fill_limits, fill_speed
from rlpto.performance.tables import SpeedTables
from rlpto.policies.steering import steer
from rlpto.queues import QueueSettings, admit, next_promotion, order_rows, shrink_converging
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
    packed: [T, K + 1] rows of the speed tables, and told_rates: [R, P] theirs. known_remaining, known_speed: as in the
    speed tables, or empty.
    noise: [W, M, 2 + K + 1] factors on remaining, on speed, and further on speed with 0..K GPUs; or empty.
    aging: [2] s, normal and low. shrink_lower. converging: [2] share of accuracy gained, and GPUs to keep.
    reward: [1] `rlpto.rewards.WEIGHTS`.
    ordered_until: [B] s until when the queue order in `shown` stands unless a job comes or goes.
    numbers, given: [M] memory of one decision: numbers of jobs, and GPUs or classes of them.
    order: [M] 0, 1, ...: rows are placed in queue order.
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
    told_rates: FloatArray
    known_remaining: FloatArray
    known_speed: FloatArray
    noise: FloatArray
    aging: FloatArray
    shrink_lower: bool
    converging: FloatArray
    reward: AnyArray
    gpus_per_node: int
    ordered_until: FloatArray
    numbers: IntArray
    given: IntArray
    order: IntArray


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
    if len(shape.kinds) > 1:
        raise ConfigError(
            f"cluster.nodes: many clusters learn at once on one kind of GPU, not on {', '.join(shape.kinds)}; expected "
            "nodes with the same `gpu`"
        )
    if tables.has_servers or any(node.background or node.background_cpus for node in shape):
        raise ConfigError(
            "simulators in a batch know neither parameter servers nor background load: expected models that train "
            "without servers, and no workload.background, where an agent learns"
        )
    if simulator.share != 1:
        raise ConfigError(f"simulator.share: in an environment jobs share no GPUs, expected 1, not {simulator.share}")
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
        told_rates=np.ascontiguousarray(tables.told_rates),
        known_remaining=tables.told_remaining,
        known_speed=tables.told_speed,
        noise=_joint_noise(workloads, most, packed.shape[1]),
        aging=np.array([queue.aging_normal, queue.aging_low]),
        shrink_lower=queue.shrink_lower,
        converging=np.array([queue.converging.gained, queue.converging.keep]),
        reward=reward.record(),
        gpus_per_node=shape.gpus_per_node,
        ordered_until=np.full(count, -np.inf),
        numbers=np.zeros(most, dtype=np.int64),
        given=np.zeros(most, dtype=np.int64),
        order=np.arange(most),
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
    f.ordered_until[b] = -np.inf
    clear_sums(w, b)
    schedule_failures(w, b)
    advance(w, b)
    look_around(f, b)


@kernel()
def look_around(f: Fleet, b: int) -> None:
    """Fill `shown` and `speed` of cluster b with its active jobs in queue order, as they stand now."""
    look_at_queue(f, b)
    w, n, noise = f.world, f.world.clusters[b].active, f.noise[f.current[b]]
    view, speed = f.shown[b, :n], f.speed[b, :n]
    fill_estimates(w.jobs[b], w.types, w.accuracy, f.known_remaining, noise, view)
    # Nothing looks beyond a job's own limit, and every entry is a stride away in memory.
    fill_speed(view, f.told_rates, f.packed, f.known_speed, noise, 0, speed)
    if f.converging[0] < 1:
        shrink_converging(view, f.converging[0], f.converging[1])


@kernel()
def look_at_queue(f: Fleet, b: int) -> None:
    """Fill what `rlpto.jobs.fill_limits` does of `shown` of cluster b: all that some policies want to know.

    Where the order stands, so does all of that: `carry_out` has noted how many GPUs each job got.
    """
    w, cluster = f.world, f.world.clusters[b]
    if not cluster.changed and cluster.time < f.ordered_until[b] and f.converging[0] >= 1:
        return
    jobs, active, index, effective = w.jobs[b], w.active[b, : cluster.active], f.numbers, f.given
    order_rows(jobs, active, cluster.time, f.aging[0], f.aging[1], index, effective)
    for i in range(len(active)):
        index[i] = active[index[i]]
    fill_limits(jobs, index[: len(active)], effective, f.shown[b])
    # A job that is stopped from now on waits for so long before it rises.
    soonest = cluster.time + min(f.aging[0], f.aging[1])
    f.ordered_until[b] = min(soonest, next_promotion(jobs, active, f.aging[0], f.aging[1]))


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


@kernel()
def reserved(f: Fleet, b: int) -> int:
    """GPUs to hold back in cluster b now."""
    if f.reserve.size == 0:
        return 0
    at = min(int(f.world.clusters[b].time / f.forecast_step), f.reserve.shape[1] - 1)
    return int(f.reserve[f.current[b], at])


@kernel()
def carry_out(f: Fleet, b: int, wishes: IntArray) -> None:
    """Trim wishes [n] for the jobs in view of cluster b, carry out what that changes, and note it in the view."""
    n, changes = len(wishes), 0
    view, index, given = f.shown[b, :n], f.numbers, f.given
    admit(view, wishes, f.world.clusters[b].capacity, f.shrink_lower, reserved(f, b), given[:n])
    for i in range(n):
        if given[i] != view[i].gpus:
            index[changes], given[changes], view[i].gpus = view[i].index, given[i], given[i]
            changes += 1
    if changes:
        apply_allocation(f.world, b, index[:changes], given[:changes], f.order)


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


@kernel()
def run_requested(f: Fleet, decisions: int) -> int:
    """Take decisions in every cluster with a trivial policy: every job wishes for its requested GPUs.

    Workloads that are over begin anew. Returns how many decisions had an active job, over all clusters.
    """
    taken, w = 0, f.world
    for b in range(len(w.clusters)):
        cluster = w.clusters[b]
        for _ in range(decisions):
            if is_over(w, b):
                begin(f, b, f.current[b])
            if cluster.active > 0:
                carry_out(f, b, f.shown[b, : cluster.active]["requested_gpus"])
                taken += 1
            clear_sums(w, b)
            advance(w, b)
            look_at_queue(f, b)
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
