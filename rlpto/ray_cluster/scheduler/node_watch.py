"""Which nodes are up: in the claims, in the cluster's shape and in the session's database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rlpto.core.cluster import ClusterShape
from rlpto.ray_cluster.messages import Plan
from rlpto.ray_cluster.scheduler.backend import NodeInfo
from rlpto.ray_cluster.scheduler.gpu_claims import GpuClaims
from rlpto.ray_cluster.scheduler.node_offer import NodeOffer
from rlpto.ray_cluster.scheduler.placement import shape_with
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase


def usable_nodes(nodes: Iterable[NodeInfo], kinds: Sequence[str]) -> list[NodeInfo]:
    """Nodes of kinds on which speeds are known; where the tables tell no kinds apart, all count as of one."""
    alike = (node if len(kinds) > 1 else replace(node, gpu=kinds[0]) for node in nodes)
    return [node for node in alike if node.gpu in kinds]


class NodeWatch:
    """Takes over which nodes are up. claims: whose capacity follows. All times in s of the session.

    shape: the nodes as they are now; what was up at some time and is missing is down. hosts: names of their machines.
    """

    def __init__(self, offer: NodeOffer, claims: GpuClaims, database: SessionDatabase) -> None:
        self._offer, self._claims, self._database = offer, claims, database
        self._numbers: dict[str, int] = {}
        self.hosts: dict[str, str] = {}
        self.shape = ClusterShape()
        self.kind_of = offer.kind_of

    def missing(self, alive: Sequence[NodeInfo]) -> list[str]:
        """Nodes of the claims that are not alive any more."""
        known = {node.id for node in alive}
        return [node for node in self._claims.capacity if node not in known]

    def take_in(self, alive: Sequence[NodeInfo], time: float) -> bool:
        """Take over nodes that have come up, or offer something else than before. True if there are such."""
        claims, changed = self._claims, False
        for info in {node.id: node for node in alive}.values():
            node, offered = info.id, self._offer.at(time, info)
            gpus, slots = offered.gpus - offered.background, offered.cpus - offered.background_cpus
            new, known = node not in claims.capacity, (claims.capacity.get(node), claims.slots.get(node))
            if new or known != (gpus, slots):
                claims.add_node(node, gpus, slots)
                self.add(info, time) if new else self._reshape(time)
                changed = True
        return changed

    def add(self, node: NodeInfo, time: float) -> None:
        """A node of the claims is up."""
        number = self._numbers.setdefault(node.id, len(self._numbers))
        self.hosts[node.id] = node.host
        self._reshape(time)
        self._database.node(node.id, number, node.gpus, True, time)
        self._database.event(time, "node_up", node=node.id, value=node.gpus)

    def remove(self, nodes: Sequence[str], time: float) -> dict[str, Plan]:
        """Nodes are gone. Returns what is left of the plans that had workers or servers there."""
        for node in nodes:
            gpus = self._offer.gpus_of(node)
            self._database.node(node, self._numbers.get(node, -1), gpus, False, time)
            self._database.event(time, "node_down", node=node, value=gpus)
        left = self._claims.remove_nodes(nodes)
        self._reshape(time)
        return left

    def _reshape(self, time: float) -> None:
        """Take over which nodes are up, and what others hold of them."""
        self.shape = shape_with(self.shape, [self._offer.known(node, time) for node in self._claims.capacity])
