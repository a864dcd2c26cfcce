"""The presently known state of a cluster, and a scratch cluster that continues from it.

A snapshot contains only data that policies see: speeds are true (`knowledge.mode: exact`), have errors (`noisy`), or
are estimated from the observations of simulated or real jobs (`online`). Future jobs and failures are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlpto.core.cluster import Cluster, ClusterShape, ClusterState, Placement
from rlpto.core.job_store import JobStore
from rlpto.core.job_table import EstimatedSpeeds
from rlpto.core.jobs import Job
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.performance.tables import NO_TYPE, SpeedTables, elapsed_from_rates
from rlpto.simulator.cluster import ResumedCluster
from rlpto.simulator.settings import SimulatorSettings

IDLE_POINTS = 500
"""Decision points in a row without any job holding GPUs, after which none is expected to start any more."""
AT_ONCE = 1e12
"""Epochs per second if an epoch has no work by the estimate."""


class ScratchCluster(ResumedCluster):
    """A simulated cluster that is also done once no job has held GPUs for `IDLE_POINTS` decision points.

    Jobs that want more GPUs than are up would wait for ever, because the time of a node's return is not known.
    """

    _idle = 0

    def advance(self, until: float = -np.inf) -> AnyArray:
        """Run through decision points like `SimulatedCluster.advance`."""
        idle = not self.held_gpus
        passed = super().advance(until)
        self._idle = self._idle + len(passed) if idle else 0
        self.done = self.done or self._idle >= IDLE_POINTS
        return passed


@dataclass(frozen=True)
class Snapshot:
    """Known state of the n active jobs of a cluster, in order of submission.

    time [s]. shape: all nodes, up or down. index: [n] number of each job in the cluster's workload, ascending.
    following: first job number that the cluster has not used. jobs: the n jobs as submitted. columns: state of the n
    jobs. placement: nodes of their GPUs. tables: estimated speeds, indexed by columns.type_index and scaled by
    columns.scale.
    """

    time: float
    shape: ClusterShape
    index: IntArray
    following: int
    jobs: tuple[Job, ...]
    columns: JobStore
    placement: Placement
    tables: SpeedTables

    def restore(self, settings: SimulatorSettings) -> ScratchCluster:
        """Return a scratch cluster in the state of the snapshot. settings: simulator settings; node failures and the
        time limit are switched off.

        Raises ConfigError if no node with GPUs was up.
        """
        columns = self.columns.take(np.arange(len(self.index)))
        times = settings.model_copy(update={"max_hours": None})
        return ScratchCluster(self.time, self.shape, self.jobs, columns, self.placement, self.tables, times)


def take_snapshot(cluster: Cluster, state: ClusterState) -> Snapshot:
    """Return the known state of a cluster. state: its present state, ordered by `rlpto.core.queues.Queue.order`."""
    rows = np.argsort(state.jobs.index, kind="stable")
    table = state.jobs.reordered(rows, state.jobs.effective_priority[rows])
    columns, placement = table.columns(), cluster.placement(table.index)
    estimates = known_speeds(table.estimates(), state.gpus_per_node)
    columns.type_index[:] = columns.estimated_type[:] = estimates.type_index
    columns.scale[:], columns.rescale_left[:], columns.measured_accuracy[:] = estimates.scale, placement.pausing, np.nan
    return Snapshot(
        time=state.time,
        shape=state.shape,
        index=table.index.copy(),
        following=len(cluster.jobs),
        jobs=tuple(cluster.jobs[job] for job in table.index.tolist()),
        columns=columns,
        placement=placement,
        tables=estimates.tables,
    )


def known_speeds(estimates: EstimatedSpeeds, gpus_per_node: int) -> EstimatedSpeeds:
    """Return speed tables in which each of the n jobs has types of its own, one per variant, at its estimated speeds.

    Errors are multiplied into the rates, so the result has no `noise`. Exact estimates in epochs, from tables that no
    job rewrites, are returned unchanged.
    """
    tables, noise = estimates.tables, estimates.noise
    rewritten = tables.written is not None  # jobs keep writing into these arrays while the snapshot is in use
    if noise is None and tables.known_speed is None and not rewritten:
        return estimates
    count, gpus = len(estimates.type_index), np.arange(1, tables.max_gpus + 1)
    choices = tables.variants[estimates.type_index]
    job, column = np.nonzero(choices != NO_TYPE)  # every job has types of its own, one for each of its variants
    job_type, own = choices[job, column], np.searchsorted(job, np.arange(count))
    by_gpus, by_job = np.ones((len(job_type), len(gpus))), np.ones(len(job_type))
    if noise is not None:
        by_gpus, by_job = noise.speed[job][:, None] * gpus ** noise.scaling[job][:, None], noise.remaining[job]
    rates = _known_rates(tables, tables.rates, job_type, gpus_per_node) * by_gpus[:, None, :, None]
    flat, score, speed, remaining = _flat(rates), None, None, None
    if tables.score_rates is not None:
        score = _flat(_known_rates(tables, tables.score_rates, job_type, gpus_per_node) * by_gpus[:, None, :, None])
    if tables.known_speed is not None and tables.known_remaining is not None:
        speed, remaining = tables.known_speed[job_type], tables.known_remaining[job_type] * by_job[:, None]
        speed[:, 1:] *= by_gpus
    row = np.zeros((*rates.shape[:2], len(gpus) + 1), dtype=np.int32)
    row[:, :, 1:] = 1 + np.arange(row[:, :, 1:].size).reshape(rates.shape[:3])
    columns = (
        *("batch_size", "servers", "most_servers", "gpu_type", "node_gpus"),
        *("accuracy", "epochs", "samples", "rescale_delay"),
    )
    known = SpeedTables(
        types=tuple(tables.types[i] for i in job_type.tolist()),
        rates=flat,
        elapsed=elapsed_from_rates(flat),
        row=row,
        exact_keys=np.zeros(0, dtype=np.int64),
        exact_rows=np.zeros(0, dtype=np.int32),
        own=own[job],
        gpu_types=tables.gpu_types,
        score_rates=score,
        known_speed=speed,
        known_remaining=remaining,
        floor_size=tables.floor_size[job_type] if tables.floor_size.size else tables.floor_size,
        **{name: getattr(tables, name)[job_type] for name in columns},
    )
    present = np.flatnonzero(job_type == estimates.type_index[job])
    return EstimatedSpeeds(known, present, estimates.scale if speed is None else np.ones(count), None)


def _known_rates(tables: SpeedTables, table: FloatArray, job_type: IntArray, gpus_per_node: int) -> FloatArray:
    """[n, S, K, P] epochs per second of types `job_type` [n] by nodes, GPUs from 1 on and epoch, without errors.

    table: [R, P] `tables.rates` or `tables.score_rates`; not used if `tables` have `known_speed`.
    """
    if tables.known_speed is None or tables.known_remaining is None:
        row, gpus = tables.row[job_type].astype(np.int64), np.arange(tables.max_gpus + 1)
        size = np.minimum(gpus_per_node, tables.node_gpus[job_type])[:, None]
        nodes = np.clip(-(-gpus // size), 1, row.shape[1])
        row[np.arange(len(job_type))[:, None], nodes - 1, gpus] = tables.packed_rows(gpus_per_node)[job_type]
        rates: FloatArray = table[row[:, :, 1:]]
        return rates
    work = -np.diff(tables.known_remaining[job_type], axis=1)
    speed = tables.known_speed[job_type, 1:]
    by_epoch = np.full((len(job_type), speed.shape[1], work.shape[1]), AT_ONCE)
    np.divide(speed[:, :, None], work[:, None, :], out=by_epoch, where=(work > 0)[:, None, :])
    return by_epoch[:, None]


def _flat(rates: FloatArray) -> FloatArray:
    """[1 + n * S * K, P] rows of rates [n, S, K, P], after one row for no GPUs."""
    epochs = rates.shape[3]
    return np.concatenate([np.zeros((1, epochs)), rates.reshape(-1, epochs)])
