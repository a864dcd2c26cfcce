"""What nodes offer to jobs: all they have, without what the background load of an experiment holds of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.external_load import BackgroundLoad, HeldByOthers, place_background
from rlpto.ray_cluster.scheduler.backend import NodeInfo
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase

FACT = "background"
"""Key of the fact in the session's database that says what is held of which node."""


class NodeOffer:
    """Nodes by their ids, with the background load that was placed on them when the session began.

    loads: of the experiment. nodes: those that are alive. The placement is kept in the database, so that a scheduler
    that takes the session over finds the same. Raises ConfigError if the nodes do not have so much.
    """

    def __init__(self, loads: Sequence[BackgroundLoad], database: SessionDatabase, nodes: Sequence[NodeInfo]) -> None:
        self._nodes: dict[str, NodeInfo] = {node.id: node for node in nodes}
        kept = database.fact(FACT)
        if kept is None:
            shape = ClusterShape(Node(node.gpus, node.cpus, node.gpu) for node in nodes)
            placed = [(nodes[part.node].id, part) for part in place_background(loads, shape)]
            kept = json.dumps([[name, part.gpus, part.cpus, part.until] for name, part in placed])
            database.set_fact(FACT, kept)
        self._held = [(name, HeldByOthers(0, gpus, cpus, until)) for name, gpus, cpus, until in json.loads(kept)]

    def at(self, time: float, node: NodeInfo) -> Node:
        """What a node offers at a time [s] of the session."""
        self._nodes[node.id] = node
        return self.known(node.id, time)

    def known(self, name: str, time: float) -> Node:
        """The same of a node by its id; nothing if it was never seen."""
        node = self._nodes.get(name, NodeInfo(name, 0))
        held = [part for at, part in self._held if at == name and time < part.until]
        background = min(sum(part.gpus for part in held), node.gpus)
        slots = min(sum(part.cpus for part in held), node.cpus)
        return Node(node.gpus, node.cpus, node.gpu, background=background, background_cpus=slots)

    def gpus_of(self, name: str) -> int:
        """GPUs of a node that was seen before, by its id; 0 of any other, such as one that has died since."""
        return self._nodes[name].gpus if name in self._nodes else 0

    def kind_of(self, name: str) -> str | None:
        """Kind of GPU of a node that was seen before, by its id; None of any other."""
        return self._nodes[name].gpu if name in self._nodes else None
