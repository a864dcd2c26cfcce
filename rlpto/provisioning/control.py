"""The rented nodes of one run: a provisioner decides once a minute, and the consequences are recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from rlpto.core.cluster import ClusterShape
from rlpto.core.records import NodeRecords
from rlpto.core.renting import LOOK, SEEN, TICK_S, NodesState, RentPlan, nodes_for
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.provisioning.base import PlannedProvisioner, Provisioner, checked_gpus
from rlpto.provisioning.demand import ByMinute, KnownDemand


class RentingCluster(Protocol):
    """A cluster with rented nodes: `rlpto.simulator.cluster.SimulatedCluster`, or
    `rlpto.ray_cluster.scheduler.renting.RealNodes`."""

    @property
    def time(self) -> float:
        """Seconds since the start of the workload."""

    @property
    def shape(self) -> ClusterShape:
        """The nodes in their present state."""

    @property
    def next_rent(self) -> float:
        """Time [s] of the next decision on the number of rented nodes."""

    def rent(self, nodes: IntArray) -> None:
        """Request or return nodes."""

    def look_at_nodes(self) -> AnyArray:
        """[G] LOOK of the groups of rented nodes."""

    def work_done(self) -> tuple[float, float]:
        """Work since the last call, as in `rlpto.simulator.renting.work_done`."""


class PlannedCluster(RentingCluster, Protocol):
    """A cluster that can decide by a plan itself: `rlpto.simulator.cluster.SimulatedCluster`."""

    @property
    def learns(self) -> bool:
        """Whether jobs learn at every decision point, so that compiled code may not pass several."""

    def advance(self, until: float) -> AnyArray:
        """See `rlpto.core.cluster.Cluster.advance`."""

    def advance_renting(self, until: float, plan: RentPlan, kept: FloatArray) -> tuple[AnyArray, FloatArray]:
        """See `rlpto.simulator.renting.advance_renting`; returns intervals and rows."""


class NodeGroups:
    """Constants of R groups of rented nodes: arrays [R]. copies: number of identical clusters, one after the other."""

    def __init__(self, shape: ClusterShape, copies: int = 1) -> None:
        first = [shape[int(group[0])] for group in shape.rented_groups]
        count = np.array([len(group) for group in shape.rented_groups], dtype=np.int64)
        self._groups = len(first)
        rented = [node.rented for node in first if node.rented is not None]
        self.size = np.tile(np.array([float(node.gpus) for node in first]), copies)
        self.boot = np.tile(np.array([one.boot for one in rented]), copies)
        self.least = np.tile(count * np.array([one.least for one in rented]) // [one.most for one in rented], copies)
        self.most = np.tile(count, copies)
        self._gpus = self.size * self.most.astype(np.float64)
        names = [node.gpu for node in first]
        self._next = [(at, names.index(gpu, at + 1)) for at, gpu in enumerate(names) if gpu in names[at + 1 :]]

    def plan(self, further: FloatArray, on_demand: bool) -> RentPlan:
        """Return the plan of one cluster. further, on_demand: fields of `RentPlan`."""
        other = np.full(self._groups, -1, dtype=np.int64)
        for group, then in self._next:
            other[group] = then
        room = np.zeros(self._groups, dtype=LOOK), np.zeros(self._groups), np.zeros(self._groups, dtype=np.int64)
        return RentPlan(further, on_demand, self.size, self._gpus, self.least, self.most, other, *room)

    def state(
        self, time: FloatArray, clock: FloatArray, look: AnyArray, averages: FloatArray, forecast: FloatArray
    ) -> NodesState:
        """Return the state for a decision. look: [R] LOOK; the others are fields of `NodesState`."""
        seen = look.view(np.float64).reshape(len(look), -1).T.copy()  # in the order of the fields of `NodesState`
        return NodesState(*(time, clock, self.size, self.boot, self._gpus, *seen, averages, forecast))

    def nodes(self, state: NodesState, gpus: FloatArray) -> IntArray:
        """[R] nodes to rent for `gpus` [R] wanted in total.

        GPUs that a group cannot offer are wanted of the next group with the same GPU type.
        """
        if self._next:
            wanted, offered = (part.reshape(-1, self._groups).copy() for part in (gpus, state.own + self._gpus))
            for group, other in self._next:
                wanted[:, other] += np.maximum(wanted[:, group] - offered[:, group], 0.0)
            gpus = wanted.reshape(-1)
        found: IntArray = np.minimum(np.maximum(nodes_for(state, gpus), self.least), self.most)
        return found


class RentedNodes:
    """Asks a provisioner once a minute, and records the consequences. demand, start: of `rlpto.provisioning.demand`.
    rows: completed decisions, if a session continues. newest: the latest decision, as far as it is known."""

    def __init__(
        self,
        cluster: RentingCluster,
        provisioner: Provisioner,
        demand: ByMinute,
        start: float,
        rows: Iterable[tuple[float, ...]] = (),
    ) -> None:
        self._cluster, self.provisioner, self._demand, self._start = cluster, provisioner, demand, start
        self._groups, self.rows = NodeGroups(cluster.shape), list(rows)
        self.newest: tuple[float, ...] = ()
        self._unfinished = self._cost = 0.0
        self.due = cluster.next_rent

    def wanted(self) -> float:
        """GPUs that the provisioner wants now, in total. May be called between decisions."""
        return float(self._ask()[1].sum())

    def decide(self) -> None:
        """Ask the provisioner, and rent nodes. Raises PolicyError if its answer is not a number of GPUs."""
        cluster = self._cluster
        self._close()
        state, gpus = self._ask()
        nodes = self._groups.nodes(state, gpus)
        cluster.rent(nodes)
        self.due = cluster.next_rent
        rows = (nodes * self._groups.size + state.own, state.ready, state.booting, state.used)
        self.newest = (cluster.time, *np.sum([*rows, np.maximum(gpus - state.demand, 0.0)], axis=1).tolist())

    def passed(self, passed: AnyArray) -> None:
        """Record the intervals [P] INTERVAL."""
        for unfinished, cost in zip(passed["unfinished"].tolist(), passed["cost"].tolist(), strict=True):
            self._unfinished += unfinished  # one after the other, as compiled code does
            self._cost += cost

    def _ask(self) -> tuple[NodesState, FloatArray]:
        """Observe the nodes; return the state and the [G] GPUs that the provisioner wants in it."""
        look, groups, now = self._cluster.look_at_nodes(), self._groups, self._cluster.time
        averages, forecast = self._demand(int(now / TICK_S + 1e-6), float(groups.boot[0]))
        time = np.full(len(look), now)
        state = groups.state(time, self._start + time, look, averages, forecast)
        return state, checked_gpus(self.provisioner.name, self.provisioner(state), state)

    def _close(self) -> None:
        """Record the consequences of the latest decision."""
        seconds, money = self._cluster.work_done()
        if self.newest:
            self.rows.append((*self.newest, self._unfinished - seconds, self._cost, self._cost - money))
            self._unfinished = self._cost = 0.0

    def records(self) -> NodeRecords:
        """All decisions of a completed run."""
        self._close()
        return NodeRecords(*np.array(self.rows).reshape(-1, 9).T.copy())


class SimulatedNodes(RentedNodes):
    """The rented nodes of a simulated cluster. Where a provisioner's decisions are known ahead except for the demand,
    compiled code takes them, with the same result to the last digit."""

    def __init__(self, cluster: PlannedCluster, provisioner: Provisioner, demand: KnownDemand, start: float) -> None:
        super().__init__(cluster, provisioner, demand, start)
        self._simulated, self._plan = cluster, None
        if isinstance(provisioner, PlannedProvisioner) and not cluster.learns:
            self._plan = plan_of(cluster.shape, provisioner, demand, start)

    def advance(self, until: float) -> AnyArray:
        """Advance the cluster as `Cluster.advance` does, at most to the next decision that is not in the plan."""
        if self._plan is None or not self.newest:
            passed = self._simulated.advance(min(until, self.due))
            self.passed(passed)
            return passed
        kept = np.array([*self.newest, self._unfinished, self._cost])
        passed, rows = self._simulated.advance_renting(until, self._plan, kept)
        self.rows += map(tuple, rows.tolist())
        *newest, self._unfinished, self._cost = kept.tolist()
        self.newest, self.due = tuple(newest), self._simulated.next_rent
        return passed


def plan_of(shape: ClusterShape, provisioner: PlannedProvisioner[Any], demand: KnownDemand, start: float) -> RentPlan:
    """Return a provisioner's decisions by the minute, for compiled code. Its arguments are those of `RentedNodes`."""
    minutes, groups = demand.averages.shape[:2]
    time = np.repeat(np.arange(minutes) * TICK_S, groups)
    seen = (demand.averages.reshape(-1, *demand.averages.shape[2:]), demand.forecast.reshape(len(time), -1))
    unknown = np.full((len(time), len(SEEN)), np.nan).view(LOOK).reshape(-1)
    state = NodeGroups(shape, minutes).state(time, start + time, unknown, *seen)
    further = checked_gpus(provisioner.name, provisioner.further(state), state).reshape(1, minutes, groups)
    return NodeGroups(shape).plan(further, provisioner.on_demand)
