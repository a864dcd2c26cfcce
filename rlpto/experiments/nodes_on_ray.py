"""Rented nodes of a session on Ray, controlled by the experiment's provisioner as in simulation."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from rlpto.core.cluster import Node
from rlpto.core.records import DecisionRecords, NodeRecords
from rlpto.core.renting import TICK_S
from rlpto.core.rewards import REWARD_PARTS
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.provisioning.base import needs_forecast
from rlpto.provisioning.control import RentedNodes
from rlpto.provisioning.demand import arriving, minute_counts
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.renting import LocalRental, RealNodes
from rlpto.store.status import PROVISIONING, ProvisioningStatus

ROW = "rented "
"""Prefix of the keys, in the key-value table, of a session's decisions on nodes."""


@contextmanager
def rental_of(experiment: Experiment, backend: RayBackend, seed: int) -> Iterator[LocalRental | None]:
    """Yield the rented nodes of a local cluster; None if no nodes are rented or Ray's autoscaler manages them."""
    if experiment.config.ray.autoscale is not None or not experiment.shape.rented_groups:
        yield None
        return
    import ray

    from rlpto.ray_cluster.nodes.local import node_options, start_node

    head = str(ray.get_runtime_context().gcs_address)

    def start(node: Node) -> Any:
        return start_node(head, **node_options(node))

    with (
        ThreadPoolExecutor(1, "nodes") as thread,
        closing(LocalRental(experiment.shape, start, thread, backend, seed)) as rental,
    ):
        yield rental


class SessionNodes:
    """Decides on the rented nodes of a session, and writes the decisions to its database. keeps: whether to keep all
    decisions for the session's records."""

    def __init__(self, cluster: RayCluster, real: RealNodes, rented: RentedNodes, keeps: bool = True) -> None:
        self._cluster, self._real, self._rented, self._keeps = cluster, real, rented, keeps
        self.records = rented.records
        cluster.wanted_gpus = rented.wanted

    def decide(self) -> None:
        """Decide if a decision is due."""
        rented, database = self._rented, self._cluster.database
        if self._cluster.time < rented.due:
            return
        rented.decide()
        at, *gpus = rented.newest
        said = ProvisioningStatus(database.wall(at), rented.provisioner.name, *gpus)
        with database.transaction():
            database.set_fact(PROVISIONING, json.dumps(asdict(said)))
            if rented.rows and self._keeps:
                database.set_fact(f"{ROW}{len(rented.rows)}", json.dumps(rented.rows[-1]))
        if not self._keeps:
            rented.rows.clear()

    def passed(self, passed: AnyArray) -> None:
        """Account for a passed interval, [1] INTERVAL."""
        self._real.charge(passed)
        self._rented.passed(passed)


def nodes_of_cell(
    experiment: Experiment, cluster: RayCluster, rental: LocalRental | None, spec: str, window: str, seed: int
) -> SessionNodes | None:
    """Return the control of a cell's rented nodes, also in a continued session; None if no nodes are rented."""
    if not experiment.shape.rented_groups:
        return None
    real = RealNodes(cluster, experiment.shape, rental)
    kept = cluster.database.rows("SELECT value FROM facts WHERE key LIKE ? ORDER BY rowid", (f"{ROW}%",))
    before = [tuple(json.loads(row)) for (row,) in kept]
    known = experiment.provisioning(spec, window, experiment.jobs(window, seed))
    return SessionNodes(cluster, real, RentedNodes(real, *known, before))


def nodes_of_service(experiment: Experiment, cluster: RayCluster) -> SessionNodes | None:
    """Return the control of a service's nodes, based on arriving jobs; None if no nodes come on demand."""
    shape, database = experiment.shape, cluster.database
    if not shape.rented_groups:
        return None

    def arrived(first: int, last: int) -> FloatArray:
        begin, end = (database.wall(minute * TICK_S) for minute in (first, last))
        found = database.rows("SELECT submitted, gpus FROM jobs WHERE submitted >= ? AND submitted < ?", (begin, end))
        submit, gpus = np.array(found, dtype=np.float64).reshape(-1, 2).T
        groups = np.zeros(len(gpus), dtype=np.int64)
        return minute_counts(submit - begin, gpus.astype(np.int64), groups, len(shape.rented_groups), last - first)

    provisioner, began, real = experiment.provisioner(""), database.wall(0.0), RealNodes(cluster, shape, None)
    start = began + time.localtime(began).tm_gmtoff
    forecaster = experiment.demand.forecaster if needs_forecast(provisioner) else None
    rented = RentedNodes(real, provisioner, arriving(arrived, start, forecaster), start)
    return SessionNodes(cluster, real, rented, keeps=False)


def with_cost(decisions: DecisionRecords, rented: NodeRecords, weight: float) -> DecisionRecords:
    """Subtract from each decision's reward the price of rented nodes until the next. weight: reward weight of money."""
    if not len(decisions.time):
        return decisions
    at = np.maximum(np.searchsorted(decisions.time, rented.time, side="right") - 1, 0)
    cost: FloatArray = np.bincount(at, rented.cost, len(decisions.time)).astype(np.float64)
    reward = decisions.reward.copy()
    reward[:, REWARD_PARTS.index("money")] -= weight * cost
    return replace(decisions, cost=cost, reward=reward)
