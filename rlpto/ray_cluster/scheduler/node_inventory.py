"""Which nodes there are, what they offer to jobs, and who may use it: in claims, cluster shape and session database."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlpto.core.cluster import ClusterShape, Node
from rlpto.io.arrays import FloatArray
from rlpto.ray_cluster.messages import Plan
from rlpto.ray_cluster.scheduler.backend import NodeInfo
from rlpto.ray_cluster.scheduler.gpu_claims import GpuClaims
from rlpto.ray_cluster.scheduler.placement import shape_with
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.settings import AutoscaleSettings
from rlpto.store.status import nodes

RENEW_S = 60.0
"""Time after which the same number of GPUs is asked for again: a head that was restarted may have forgotten it."""


def usable_nodes(nodes: Iterable[NodeInfo], kinds: Sequence[str]) -> list[NodeInfo]:
    """Nodes of kinds on which speeds are known; where the tables have one kind, all nodes count as of that."""
    alike = (node if len(kinds) > 1 else replace(node, gpu=kinds[0]) for node in nodes)
    return [node for node in alike if node.gpu in kinds]


class NodeInventory:
    """Nodes by their ids; none at first.

    one_zone: jobs must not leave the zones of their nodes.

    claims: who may use what nodes offer. shape: the nodes as they are now, those that will go after those that are up;
    what was up at some time and is missing is down. announced: nodes that will go, as `Backend.announced` has them.
    """

    def __init__(self, database: SessionDatabase, one_zone: bool = False) -> None:
        self._database, self._one_zone = database, one_zone
        self.announced: Mapping[str, float] = {}
        self._going: tuple[str, ...] = ()
        self._known: dict[str, NodeInfo] = {}
        self.claims = GpuClaims()
        self.shape = ClusterShape()

    def offered(self, node: NodeInfo) -> Node:
        """A node as policies see it."""
        return Node(node.gpus, node.cpus, node.gpu, zone=node.zone if self._one_zone else "")

    def kind_of(self, name: str) -> str | None:
        """Kind of GPU of a node that was seen before, by its id; None of any other."""
        return self._known[name].gpu if name in self._known else None

    def leaves_in(self, wall: float) -> FloatArray:
        """[N] seconds from `wall` [s of `time.time`] until nodes go, as announced; infinity: nothing is announced."""
        left, first = np.full(len(self.shape), np.inf), len(self.claims.capacity)
        for number, node in enumerate(self._going, first):
            left[number] = max(self.announced.get(node, np.inf) - wall, 0.0)
        return left

    def missing(self, alive: Sequence[NodeInfo]) -> list[str]:
        """Nodes of the claims that are not alive any more."""
        known = {node.id for node in alive}
        return [node for node in self.claims.capacity if node not in known]

    def take_in(self, alive: Sequence[NodeInfo], time: float) -> bool:
        """Take over nodes that have come up by a time [s of the session]. True if there are such."""
        new = [node for node in alive if node.id not in self.claims.capacity]
        for node in new:
            self._known[node.id] = node
            self.claims.add_node(node.id, node.gpus, node.cpus)
            self._database.node_up(node, time)
        if new:
            self._reshape()
        return bool(new)

    def remove(self, nodes: Sequence[str], time: float) -> dict[str, Plan]:
        """Nodes are gone. Returns what is left of the plans that had workers or servers there."""
        for node in nodes:
            gpus = self._known[node].gpus if node in self._known else 0
            self._database.node_down(node, gpus, time, self.announced.get(node) or None)
        left = self.claims.remove_nodes(nodes)
        self._reshape()
        return left

    def note_lost(self, time: float) -> None:
        """Note those that were up when a scheduler was last there, and have gone since."""
        for node in nodes(self._database):
            if node.alive and node.id not in self.claims.capacity:
                self._database.node_down(node.id, node.gpus, time, self.announced.get(node.id) or None)

    def _reshape(self) -> None:
        """Take over which nodes are up."""
        self._going = tuple(node for node in self.announced if node in self._known and node not in self.claims.capacity)
        there = (*self.claims.capacity, *self._going)
        nodes = [replace(self.offered(self._known[node]), up=node in self.claims.capacity) for node in there]
        self.shape = shape_with(self.shape, nodes)


class GpuRequests:
    """Asks Ray's autoscaler for as many GPUs as are wanted, `most_gpus` at most, and for fewer once that has held for
    `idle_seconds`: its nodes come and go like all others. request: takes the number of GPUs in all."""

    def __init__(self, settings: AutoscaleSettings, request: Callable[[int], None]) -> None:
        self._settings, self._request = settings, request
        self._asked, self._needed, self._renewed = 0, -math.inf, -math.inf

    def want(self, gpus: int, now: float) -> None:
        """gpus: that jobs hold or wait for at `now` [s]."""
        gpus = min(gpus, self._settings.most_gpus)
        if gpus >= self._asked:
            self._needed = now
        if gpus > self._asked or now - self._needed >= self._settings.idle_seconds:
            self._asked, self._needed, self._renewed = gpus, now, -math.inf
        if now - self._renewed >= RENEW_S:
            self._request(self._asked)
            self._renewed = now
