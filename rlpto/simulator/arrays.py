"""The simulator's state: arrays of records with a leading batch axis, so compiled code can hold all of it.

B clusters, each with its own M jobs (in order of submission) on N nodes; a job holds at most G GPUs. Few arrays of
records are used instead of many plain ones, because passing an array to compiled code costs a quarter of a microsecond,
and a decision takes a handful of such calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlpto.core.cluster import ClusterShape, HeldByOthers
from rlpto.core.gpu_types import rented_groups_of
from rlpto.core.records import INTERVAL
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.by_reference import by_reference
from rlpto.performance.tables import SpeedTables
from rlpto.simulator.settings import SimulatorSettings

CLUSTER = np.dtype(
    [
        ("time", "f8"),
        ("next_toggle", "f8"),
        ("next_rent", "f8"),
        ("rent", "f8"),
        ("jobs", "i8"),
        ("arrived", "i8"),
        ("active", "i8"),
        ("capacity", "i8"),
        ("held", "i8"),
        ("changed", "i8"),
        ("logged", "i8"),
        ("seed", "i8"),
    ],
    align=True,
)
"""One cluster: time [s], next_toggle [s] (next failure or repair of any node), next_rent [s] (next decision on rented
nodes; infinity without any, -1 before the first advance), rent (price of all rented nodes per second), numbers of jobs
in its workload, of arrived and of active jobs, GPUs on nodes that are up, GPUs held; changed: 1 if a job arrived or
finished or a node changed in the last advance; logged: entries in the log; seed of its nodes' failures."""

NODE = np.dtype(
    [
        ("toggle_at", "f8"),
        ("size", "i8"),
        ("up", "i8"),
        ("toggles", "i8"),
        ("node", "i8"),
        ("mtbf", "f8"),
        ("spot", "f8"),
        ("away", "f8"),
        ("notice", "f8"),
        ("price", "f8"),
    ],
    align=True,
)
"""One node. toggle_at [s]: next failure or repair. size: its GPUs that jobs may hold. up: 1 while it is up. toggles:
failures and repairs so far. node: its number. mtbf [s]: mean time between failures, 0 if it never fails. spot, away,
notice [s]: of a spot node, mean time until it is reclaimed, mean time until it returns, and notice; 0 for other nodes.
price: of a GPU-second, 0 on rented nodes. A record may instead stand for background load: toggle_at is its end, size
its GPUs, node the number of its node; up is 0 until the load ends, and all other fields are 0."""

RENTAL = np.dtype(
    [
        ("group", "i8"),
        ("gpu_type", "i8"),
        ("asked", "f8"),
        ("empty_since", "f8"),
        ("boot", "f8"),
        ("spread", "f8"),
        ("idle", "f8"),
        ("minimum", "f8"),
        ("price", "f8"),
    ],
    align=True,
)
"""Rental of one node. group: number of its group, or -1 if the node is permanent. gpu_type: number of its GPU type.
asked [s]: time of the request (infinity if it is not rented). empty_since [s]: time since which it has no jobs
(infinity if it has some). boot, idle, minimum [s], spread (no unit): `RentedSettings`, where spread is boot_spread.
price: of all its GPUs, per second."""

CHANGE = np.dtype([("time", "f8"), ("accuracy", "f8"), ("job", "i8"), ("gpus", "i8")], align=True)
"""A change of a job's GPUs, the record behind `rlpto.core.records.AllocationChanges`."""

RULES = np.dtype(
    [
        ("interval", "f8"),
        ("resolution", "f8"),
        ("limit", "f8"),
        ("mttr", "f8"),
        ("restart_share", "f8"),
        ("lemon_share", "f8"),
        ("lemon_factor", "f8"),
        ("checkpoint_interval", "f8"),
        ("checkpoint_seconds", "f8"),
        ("best_interval", "i8"),
        ("may_fail", "i8"),
        ("priced", "i8"),
        ("on_events", "i8"),
        ("most_free", "i8"),
        ("overlap", "i8"),
        ("follow_accuracy", "i8"),
    ],
    align=True,
)
"""SimulatorSettings as numbers; times in seconds, limit: when every cluster stops. best_interval: 1 if jobs choose the
interval of checkpoints by Young, 2 by Daly. may_fail: 1 if nodes fail or are reclaimed; priced: 1 if a node has a
price. follow_accuracy: 1 if the times of accuracy gains are recorded (`rlpto.simulator.shortfall`)."""


@by_reference
class World(NamedTuple):
    """All arrays that compiled code needs.

    jobs: [B, M] `core.jobs.JOB`. nodes: [B, M, G] int32, node of each GPU a job holds, grouped by node.
    clusters: [B] CLUSTER. active: [B, M] numbers of the active jobs, in order of submission.
    sums: [B] `core.records.INTERVAL` since the last decision point. machines: [B, N + H] NODE: N nodes, then H records
    of background load.
    rentals: [B, N] RENTAL, or [B, 0] if no node is rented. worked: [B, M] work of each job at the last decision on
    nodes, as seconds of training with its requested GPUs; also [B, 0] if no node is rented.
    free: [B, N] free GPUs of nodes that are up (0 on others). log: [B, L] CHANGE; L = 0 if no log is kept.
    rates, elapsed, row, exact_keys, exact_rows, accuracy: arrays of `rlpto.performance.tables.SpeedTables`.
    types: [T] `rlpto.performance.tables.TYPE`. rented: [T] first group of rented nodes with a GPU type that jobs of the
    type may use, or -1. rules: [1] RULES.
    scratch: [M] scratch memory for compiled code.
    """

    jobs: AnyArray
    nodes: AnyArray
    clusters: AnyArray
    active: IntArray
    sums: AnyArray
    machines: AnyArray
    rentals: AnyArray
    worked: FloatArray
    free: IntArray
    log: AnyArray
    rates: FloatArray
    elapsed: FloatArray
    row: AnyArray
    exact_keys: IntArray
    exact_rows: AnyArray
    accuracy: FloatArray
    types: AnyArray
    rented: IntArray
    rules: AnyArray
    scratch: IntArray


def build_world(
    jobs: AnyArray,
    shape: ClusterShape,
    tables: SpeedTables,
    settings: SimulatorSettings,
    seed: int,
    *,
    keep_log: bool,
    follow_accuracy: bool,
    background: Sequence[HeldByOthers] = (),
) -> World:
    """Build the world of a batch of equal clusters at time 0.

    jobs: [B, M] JOB, filled with the workloads. seed: cluster b samples failures with seed + b. keep_log: if true, log
    every change of GPUs; the caller must empty the log when it is half full.
    follow_accuracy: if true, add up `shortfall` and record when jobs reach levels of accuracy. Otherwise `shortfall`
    stays 0 and the times stay NaN, so reward weights must not include `shortfall`.
    background: background load on the nodes of shape.
    """
    batch, count = jobs.shape
    node_gpus = shape.node_gpus
    nodes, most = len(node_gpus), int(min(node_gpus.sum(), jobs["max_gpus"].max(initial=1)))
    freed = np.zeros(len(background), dtype=NODE)
    for row, part in zip(freed, background, strict=True):
        row["toggle_at"], row["size"], row["node"] = part.until, part.gpus, part.node
    all_gpus = node_gpus.tolist()
    node_gpus = node_gpus - np.bincount(freed["node"], freed["size"], nodes).astype(np.int64)
    clusters = np.zeros(batch, dtype=CLUSTER)
    clusters["jobs"] = count
    clusters["next_rent"] = np.inf
    clusters["next_toggle"] = freed["toggle_at"].min(initial=np.inf)
    clusters["seed"] = seed + np.arange(batch)
    machines = np.zeros((batch, nodes + len(freed)), dtype=NODE)
    machines["size"][:, :nodes] = node_gpus
    # Only rented nodes may be down at time 0; ResumedCluster sets the others later.
    machines["up"][:, :nodes] = [node.up or node.rented is None for node in shape]
    machines["toggle_at"][:, :nodes] = np.inf
    machines["node"][:, :nodes] = np.arange(nodes)
    machines["mtbf"][:, :nodes] = [3600.0 * settings.failures.node_mtbf(gpus) for gpus in all_gpus]
    machines["price"][:, :nodes] = [node.price / 3600.0 for node in shape]
    for n, spot in enumerate(node.spot for node in shape):
        if spot is not None:
            machines["spot"][:, n], machines["away"][:, n] = 3600.0 * spot.mean_hours, 3600.0 * spot.away_hours
            machines["notice"][:, n] = spot.notice_seconds
    machines[:, nodes:] = freed
    free = node_gpus * machines["up"][:, :nodes]
    clusters["capacity"] = free.sum(axis=1)
    rentals = np.zeros((batch, nodes if shape.rented_groups else 0), dtype=RENTAL)
    if shape.rented_groups:
        rentals[:] = rental_records(shape)
        clusters["next_rent"], clusters["rent"] = -1.0, (rentals["price"] * np.isfinite(rentals["asked"])).sum(axis=1)
        machines["price"][:, :nodes][:, rentals["group"][0] >= 0] = 0.0  # paid through `rent`, even without jobs
    rules = compile_rules(settings, follow_accuracy)
    rules["may_fail"] = settings.failures.on or machines["spot"].any()
    rules["priced"] = machines["price"].any()
    return World(
        jobs=jobs,
        nodes=np.zeros((batch, count, most), dtype=np.int32),
        clusters=clusters,
        active=np.zeros((batch, max(count, 1)), dtype=np.int64),
        sums=np.zeros(batch, dtype=INTERVAL),
        machines=machines,
        rentals=rentals,
        worked=np.zeros((batch, count if shape.rented_groups else 0)),
        free=free,
        log=np.zeros((batch, 4 * count + 64 if keep_log else 0), dtype=CHANGE),
        rates=np.ascontiguousarray(tables.rates),
        elapsed=np.ascontiguousarray(tables.elapsed),
        row=np.ascontiguousarray(tables.row, dtype=np.int32),
        exact_keys=np.ascontiguousarray(tables.exact_keys, dtype=np.int64),
        exact_rows=np.ascontiguousarray(tables.exact_rows, dtype=np.int32),
        accuracy=np.ascontiguousarray(tables.accuracy),
        types=tables.type_records,
        rented=rented_groups_of(shape, tables),
        rules=rules,
        scratch=np.zeros(max(count, 1), dtype=np.int64),
    )


def rental_records(shape: ClusterShape) -> AnyArray:
    """[N] RENTAL of a cluster's nodes at second 0; nodes that are up count as rented."""
    records = np.zeros(len(shape), dtype=RENTAL)
    records["group"], records["empty_since"] = -1, np.inf
    records["asked"], records["gpu_type"] = np.inf, shape.node_gpu_types
    for number, group in enumerate(shape.rented_groups):
        records["group"][group] = number
    for record, node in zip(records, shape, strict=True):
        if (rented := node.rented) is not None:
            record["asked"] = 0.0 if node.up else np.inf
            record["price"] = node.gpus * node.price / 3600.0
            for name in ("boot", "idle", "minimum"):
                record[name] = getattr(rented, name)
            record["spread"] = rented.boot_spread
    return records


def with_jobs(world: World, jobs: AnyArray, count: int, most: int) -> World:
    """Return the world of one cluster after jobs were added. jobs: [1, M] JOB, of which the first `count` exist.

    most: largest number of GPUs that a job may hold. The log must be empty.
    """
    if jobs.shape[1] > world.jobs.shape[1] or most > world.nodes.shape[2]:
        room = jobs.shape[1]
        nodes = np.zeros((1, room, max(most, world.nodes.shape[2])), dtype=np.int32)
        nodes[:, : world.nodes.shape[1], : world.nodes.shape[2]] = world.nodes
        active = np.zeros((1, room), dtype=np.int64)
        active[:, : world.active.shape[1]] = world.active
        log = np.zeros((1, 4 * room + 64 if world.log.shape[1] else 0), dtype=CHANGE)
        worked = np.zeros((1, room if world.rentals.shape[1] else 0))
        worked[:, : world.worked.shape[1]] = world.worked
        parts = {"nodes": nodes, "active": active, "log": log, "worked": worked}
        world = world._replace(**parts, scratch=np.zeros(room, dtype=np.int64))
    world.clusters["jobs"] = count
    return world._replace(jobs=jobs)


def compile_rules(settings: SimulatorSettings, follow_accuracy: bool) -> AnyArray:
    """[1] RULES from the settings."""
    rules = np.zeros(1, dtype=RULES)
    rules["interval"] = settings.interval
    rules["resolution"] = settings.epoch_resolution
    rules["limit"] = np.inf if settings.max_hours is None else settings.max_hours * 3600.0
    failures = settings.failures
    rules["mttr"] = failures.mttr_hours * 3600.0
    for name in ("restart_share", "lemon_share", "lemon_factor", "checkpoint_seconds"):
        rules[name] = getattr(failures, name)
    if isinstance(failures.checkpoint_interval, str):
        rules["best_interval"] = 1 + (failures.checkpoint_interval == "daly")
    else:
        rules["checkpoint_interval"] = failures.checkpoint_interval
    rules["on_events"] = settings.decide_on == "events"
    rules["most_free"] = settings.placement == "most_free"
    rules["overlap"] = settings.growth == "overlap"
    rules["follow_accuracy"] = follow_accuracy
    return rules
