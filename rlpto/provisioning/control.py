"""The rented nodes of one run: a provisioner is asked once a minute, and what follows is noted."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rlpto.core.cluster import ClusterShape
from rlpto.core.records import NodeRecords
from rlpto.core.renting import LOOK, TICK_S, NodesState, nodes_for
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.provisioning.base import Provisioner, checked_gpus
from rlpto.provisioning.demand import Demand


class RentingCluster(Protocol):
    """A cluster whose nodes are rented; see `rlpto.simulator.cluster.SimulatedCluster`."""

    time: float

    @property
    def shape(self) -> ClusterShape:
        """The nodes as they are now."""

    @property
    def next_rent(self) -> float:
        """Time [s] of the next decision on the number of rented nodes."""

    def rent(self, nodes: IntArray) -> None:
        """Ask for nodes, or give some back."""

    def look_at_nodes(self) -> tuple[AnyArray, float, float]:
        """[G] LOOK, and the two sums of `rlpto.simulator.renting.work_done`."""


class NodeGroups:
    """What does not change of R groups of rented nodes: arrays [R]. copies: of the cluster, one after the other."""

    def __init__(self, shape: ClusterShape, copies: int = 1) -> None:
        first = [shape[int(group[0])] for group in shape.rented_groups]
        count = np.array([len(group) for group in shape.rented_groups], dtype=np.int64)
        rented = [node.rented for node in first if node.rented is not None]
        self.size = np.tile(np.array([float(node.gpus) for node in first]), copies)
        self.boot = np.tile(np.array([one.boot for one in rented]), copies)
        self.least = np.tile(count * np.array([one.least for one in rented]) // [one.most for one in rented], copies)
        self.most = np.tile(count, copies)
        self._gpus = self.size * self.most.astype(np.float64)

    def state(
        self, time: FloatArray, clock: FloatArray, look: AnyArray, averages: FloatArray, forecast: FloatArray
    ) -> NodesState:
        """What is seen. look: [R] LOOK; the others as in `NodesState`."""
        seen = look.view(np.float64).reshape(len(look), -1).T.copy()  # in the order in which `NodesState` has them
        return NodesState(*(time, clock, self.size, self.boot, self._gpus, *seen, averages, forecast))

    def nodes(self, state: NodesState, gpus: FloatArray) -> IntArray:
        """[R] nodes to rent where `gpus` [R] are wanted in all."""
        found: IntArray = np.minimum(np.maximum(nodes_for(state, gpus), self.least), self.most)
        return found


class RentedNodes:
    """See the module. demand: of the workload. forecast: [T + 1, G, F] by minute, or F = 0."""

    def __init__(
        self, cluster: RentingCluster, provisioner: Provisioner, demand: Demand, forecast: FloatArray | None = None
    ) -> None:
        self._cluster, self._provisioner, self._start = cluster, provisioner, demand.start
        self._averages, self._groups = demand.averages(), NodeGroups(cluster.shape)
        groups = len(cluster.shape.rented_groups)
        self._zero = np.zeros(groups)
        self._forecast = np.zeros((1, groups, 0)) if forecast is None else forecast
        self._times: list[float] = []
        self._seen, self._nodes, self._wanted = bytearray(), bytearray(), bytearray()  # [P, G] of the decisions
        self._sums: list[list[float]] = []
        self._unfinished = self._cost = 0.0
        self.due = cluster.next_rent

    def decide(self) -> None:
        """Ask the provisioner. Raises PolicyError if what it says is no number of GPUs."""
        cluster = self._cluster
        look, seconds, money = cluster.look_at_nodes()
        self._close(seconds, money)
        minute = int(cluster.time / TICK_S + 1e-6)
        time, groups = self._zero + cluster.time, self._groups
        averages = self._averages[min(minute, len(self._averages) - 1)]
        forecast = self._forecast[min(minute, len(self._forecast) - 1)]
        state = groups.state(time, self._start + time, look, averages, forecast)
        gpus = checked_gpus(self._provisioner.name, self._provisioner(state), state)
        nodes = groups.nodes(state, gpus)
        cluster.rent(nodes)
        self.due = cluster.next_rent
        self._times.append(cluster.time)
        self._seen += look.tobytes()
        self._nodes += nodes.tobytes()
        self._wanted += gpus.tobytes()

    def passed(self, passed: AnyArray) -> None:
        """Take in what happened, [P] INTERVAL."""
        self._unfinished += sum(passed["unfinished"].tolist())
        self._cost += sum(passed["cost"].tolist())

    def _close(self, seconds: float, money: float) -> None:
        """Note what followed from the latest decision."""
        if self._times:
            self._sums.append([self._unfinished - seconds, self._cost, self._cost - money])
            self._unfinished = self._cost = 0.0

    def records(self) -> NodeRecords:
        """All decisions, of a run that is over."""
        self._close(*self._cluster.look_at_nodes()[1:])
        size = self._groups.size
        look = np.frombuffer(self._seen, LOOK).reshape(-1, len(size))
        nodes = np.frombuffer(self._nodes, np.int64).reshape(look.shape)
        gpus = np.frombuffer(self._wanted, np.float64).reshape(look.shape)
        columns = [
            np.array(self._times),
            nodes @ size + look["own"].sum(axis=1),
            *(look[name].sum(axis=1) for name in ("ready", "booting", "used")),
            np.maximum(gpus - look["used"] - look["waiting"], 0.0).sum(axis=1),
            *np.array(self._sums).reshape(-1, 3).T.copy(),
        ]
        return NodeRecords(*columns)
