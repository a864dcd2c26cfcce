"""Which nodes there are, what they offer to jobs, and who may use it: in claims, cluster shape and session database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.external_load import BackgroundLoad, HeldByOthers, place_background
from rlpto.io.arrays import FloatArray
from rlpto.ray_cluster.messages import Plan
from rlpto.ray_cluster.scheduler.backend import NodeInfo
from rlpto.ray_cluster.scheduler.gpu_claims import GpuClaims
from rlpto.ray_cluster.scheduler.placement import shape_with
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase

FACT = "background"
"""Key of the fact in the session's database with the background load of each node."""


def usable_nodes(nodes: Iterable[NodeInfo], kinds: Sequence[str]) -> list[NodeInfo]:
    """Nodes of kinds on which speeds are known; where the tables have one kind, all nodes count as of that."""
    alike = (node if len(kinds) > 1 else replace(node, gpu=kinds[0]) for node in nodes)
    return [node for node in alike if node.gpu in kinds]


class NodeInventory:
    """Nodes by their ids, with the background load that was placed on them when the session began.

    loads: of the experiment. nodes: those that are alive. time: s of the session, as everywhere here. The placement of
    the load is kept in the database, so that a scheduler that takes the session over finds the same. Raises ConfigError
    if the nodes do not have so much.

    one_zone: jobs must not leave the zones of their nodes.

    claims: who may use what nodes offer. shape: the nodes as they are now, those that will go after those that are up;
    what was up at some time and is missing is down. announced: nodes that will go, as `Backend.announced` has them.
    """

    def __init__(
        self,
        loads: Sequence[BackgroundLoad],
        database: SessionDatabase,
        nodes: Sequence[NodeInfo],
        time: float,
        one_zone: bool = False,
    ) -> None:
        self._database, self._one_zone = database, one_zone
        self.announced: Mapping[str, float] = {}
        self._going: tuple[str, ...] = ()
        self._known: dict[str, NodeInfo] = {node.id: node for node in nodes}
        kept = database.fact(FACT)
        if kept is None:
            shape = ClusterShape(Node(node.gpus, node.cpus, node.gpu) for node in nodes)
            placed = [(nodes[part.node].id, part) for part in place_background(loads, shape)]
            kept = json.dumps([[name, part.gpus, part.cpus, part.until] for name, part in placed])
            database.set_fact(FACT, kept)
        self._held = [(name, HeldByOthers(0, gpus, cpus, until)) for name, gpus, cpus, until in json.loads(kept)]
        offered = {node.id: _free(self._offered(node.id, time)) for node in nodes}
        self.claims = GpuClaims(
            {name: gpus for name, (gpus, _) in offered.items()}, {name: slots for name, (_, slots) in offered.items()}
        )
        self.shape = ClusterShape()

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
        """Take over nodes that have come up, or offer something else than before. True if there are such."""
        claims, changed = self.claims, False
        for info in {node.id: node for node in alive}.values():
            node, self._known[info.id] = info.id, info
            gpus, slots = _free(self._offered(node, time))
            new, known = node not in claims.capacity, (claims.capacity.get(node), claims.slots.get(node))
            if new or known != (gpus, slots):
                claims.add_node(node, gpus, slots)
                self.add(info, time) if new else self._reshape(time)
                changed = True
        return changed

    def add(self, node: NodeInfo, time: float) -> None:
        """A node of the claims is up."""
        self._reshape(time)
        self._database.node_up(node, time)

    def remove(self, nodes: Sequence[str], time: float) -> dict[str, Plan]:
        """Nodes are gone. Returns what is left of the plans that had workers or servers there."""
        for node in nodes:
            gpus = self._known[node].gpus if node in self._known else 0
            self._database.node_down(node, gpus, time, self.announced.get(node) or None)
        left = self.claims.remove_nodes(nodes)
        self._reshape(time)
        return left

    def _offered(self, name: str, time: float) -> Node:
        """What a node offers at a time; nothing if it was never seen."""
        node = self._known.get(name, NodeInfo(name, 0))
        held = [part for at, part in self._held if at == name and time < part.until]
        background = min(sum(part.gpus for part in held), node.gpus)
        slots = min(sum(part.cpus for part in held), node.cpus)
        zone = node.zone if self._one_zone else ""
        return Node(node.gpus, node.cpus, node.gpu, background=background, background_cpus=slots, zone=zone)

    def _reshape(self, time: float) -> None:
        """Take over which nodes are up, and what others hold of them."""
        self._going = tuple(node for node in self.announced if node in self._known and node not in self.claims.capacity)
        up, going = ([self._offered(node, time) for node in nodes] for nodes in (self.claims.capacity, self._going))
        self.shape = shape_with(self.shape, up, [replace(node, up=False) for node in going])


def _free(node: Node) -> tuple[int, int]:
    """GPUs and CPU slots of a node that others do not hold."""
    return node.gpus - node.background, node.cpus - node.background_cpus
