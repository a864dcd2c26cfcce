"""Which nodes there are, what they offer to jobs, and where on them jobs are to train."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from rlpto.core.cluster import Allocation, ClusterShape, Node, Placement
from rlpto.core.placement import main_node, shrink_in_place, take_packed
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.ray_cluster.messages import Plan
from rlpto.ray_cluster.scheduler.backend import NodeInfo
from rlpto.ray_cluster.scheduler.gpu_claims import GpuClaims, split_nodes
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

    claims: who may use what nodes offer. shape: the nodes as they are now, those that will go after those that are up;
    what was up at some time and is missing is down. announced: nodes that will go, as `Backend.announced` has them.
    possible: all nodes that there may be, where nodes are rented; missing ones are down.
    """

    def __init__(self, database: SessionDatabase, possible: Sequence[Node] = ()) -> None:
        self._database = database
        self.announced: Mapping[str, float] = {}
        self._going: tuple[str, ...] = ()
        self._known: dict[str, NodeInfo] = {}
        self.claims = GpuClaims()
        self.shape = ClusterShape(Node(node.gpus, node.cpus, node.gpu, up=False) for node in possible)

    def with_all(self, nodes: Sequence[NodeInfo]) -> ClusterShape:
        """The cluster with these nodes up, before any was taken in."""
        return shape_with(self.shape, [self.offered(node) for node in nodes])

    def offered(self, node: NodeInfo) -> Node:
        """A node as policies see it."""
        return Node(node.gpus, node.cpus, node.gpu)

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
    `idle_seconds`: its nodes come and go like all others. request: takes the number of GPUs in all. asked: GPUs."""

    def __init__(self, settings: AutoscaleSettings, request: Callable[[int], None]) -> None:
        self._settings, self._request = settings, request
        self.asked, self._needed, self._renewed = 0, -math.inf, -math.inf

    def want(self, gpus: int, now: float) -> None:
        """gpus: that jobs hold or wait for at `now` [s]."""
        gpus = min(gpus, self._settings.most_gpus)
        if gpus >= self.asked:
            self._needed = now
        if gpus > self.asked or now - self._needed >= self._settings.idle_seconds:
            self.asked, self._needed, self._renewed = gpus, now, -math.inf
        if now - self._renewed >= RENEW_S:
            self._request(self.asked)
            self._renewed = now


def place(
    gpus: Mapping[str, int], present: Mapping[str, Sequence[str]], wanted: Mapping[str, int]
) -> dict[str, list[str]]:
    """New places of the jobs of `wanted` (number of GPUs of each), by node id; only those that change are returned.

    gpus: of every node. present: nodes that each job is on by the present plan, one entry for each GPU. All of `wanted`
    together must fit. Jobs shrink first, emptying the nodes with fewest of their GPUs, of those the ones they came to
    last and may not train on yet; then jobs grow, those that want most GPUs first, on few nodes (`core.placement`).
    """
    names = list(gpus)
    number = {name: at for at, name in enumerate(names)}
    free = np.array([gpus[name] for name in names], dtype=np.int64)
    for name in chain.from_iterable(present.values()):
        free[number[name]] -= 1
    placed: dict[str, list[str]] = {}
    growing = []
    for job, count in wanted.items():
        now = present.get(job, ())
        if count < len(now):
            held = _grouped([number[name] for name in now], count)
            shrink_in_place(held, len(now), count, free)
            placed[job] = [names[at] for at in held[:count]]
        elif count > len(now):
            growing.append(job)
    for job in sorted(growing, key=lambda job: -wanted[job]):
        now = present.get(job, ())
        kept = _grouped([number[name] for name in now], len(now))
        added = np.zeros(wanted[job] - len(now), dtype=np.int64)
        take_packed(added, len(added), free, main_node(kept, len(now)))
        placed[job] = [*now, *(names[at] for at in added)]
    return placed


def place_as_chosen(
    gpus: Iterable[str], present: Mapping[str, Sequence[str]], chosen: Mapping[str, IntArray]
) -> dict[str, list[str]]:
    """New places of jobs whose GPUs on every node [N or more] a policy has chosen, by node id; those that change. gpus:
    node ids in the order of their numbers. Workers that stay keep their order, so that ranks do."""
    names, placed = list(gpus), {}
    for job, row in chosen.items():
        now = present.get(job, ())
        stays, added = split_nodes(now, np.repeat(names, row[: len(names)]).tolist())
        if added or len(stays) < len(now):
            placed[job] = stays + added
    return placed


def _grouped(nodes: list[int], room: int) -> IntArray:
    """Node numbers in order of their first, equal ones side by side, as the placement functions expect them."""
    return np.array(sorted(nodes, key=nodes.index), dtype=np.int64) if nodes else np.zeros(max(room, 1), dtype=np.int64)


def known_placement(
    alive: Iterable[str], planned: Sequence[Sequence[str]], trains: Sequence[Sequence[str]], left: FloatArray
) -> Placement:
    """Places of jobs by the present plan, and how much of that trains by now.

    alive: node ids in the order of their numbers. planned, trains: for each job the node ids of the workers it is to
    have, and of those that train. left: [n] seconds until the others do.
    """
    number = {name: at for at, name in enumerate(alive)}
    kept = [Counter(now) & Counter(wanted) for now, wanted in zip(trains, planned, strict=True)]
    training = np.array([sum(nodes.values()) for nodes in kept], dtype=np.int64)
    wanted = np.array([len(nodes) for nodes in planned], dtype=np.int64)
    growing = (training > 0) & (training < wanted) & (left > 0)
    spans = [len(now if some else set(nodes)) for now, some, nodes in zip(kept, growing, planned, strict=True)]
    return Placement(
        nodes=tuple(_grouped([number[name] for name in nodes], 0)[: len(nodes)] for nodes in planned),
        training=np.where(growing, training, wanted),
        spanned=np.array(spans, dtype=np.int64),
        pausing=np.where(training > 0, 0.0, left),
        starting=np.where(growing, left, 0.0),
    )


def place_servers(
    slots: Mapping[str, int], present: Mapping[str, Sequence[str]], wanted: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Places of the parameter servers of the jobs of `wanted` (number of servers of each), by node id.

    slots: CPU slots of every node. present: where they are now. Servers that stay keep their nodes; those that were
    added last go first; others go to the node with most free slots. A job gets fewer where there are no more slots.
    """
    placed = {job: [node for node in present.get(job, ()) if node in slots][:count] for job, count in wanted.items()}
    free = dict(slots)
    for job in {**present, **wanted}:
        for node in placed.get(job, present.get(job, ())):
            free[node] = free.get(node, 0) - 1
    for job, count in wanted.items():
        while len(placed[job]) < count and max(free.values(), default=0) > 0:
            node = max(free, key=free.__getitem__)
            free[node] -= 1
            placed[job].append(node)
    return {job: tuple(nodes) for job, nodes in placed.items()}


def shape_with(before: ClusterShape, present: Sequence[Node]) -> ClusterShape:
    """The cluster with these nodes, up or down. Capacity of a kind is the most that was up at once: what is missing is
    down."""
    nodes = list(present)
    for kind in dict.fromkeys(node.gpu for node in (*before, *nodes)):
        known = [node.gpus for node in before if node.gpu == kind]
        here = [node.gpus for node in present if node.gpu == kind]
        missing, largest = sum(known) - sum(here), max(known + here)
        while missing > 0:
            nodes.append(Node(min(missing, largest), gpu=kind, up=False))
            missing -= nodes[-1].gpus
    return ClusterShape(nodes)


def allocated_plans(claims: GpuClaims, present: Mapping[str, Plan], allocation: Allocation) -> dict[str, Plan]:
    """Plans of jobs by an allocation. present: theirs in force, by job, in the allocation's order."""
    ids, nothing = list(present), np.zeros_like(allocation.gpus)
    nodes = {job: plan.nodes for job, plan in present.items()}
    if allocation.placement is None:
        placed = place(claims.capacity, nodes, dict(zip(ids, allocation.gpus.tolist(), strict=True)))
    else:
        placed = place_as_chosen(claims.capacity, nodes, dict(zip(ids, allocation.placement, strict=True)))
    servers = nothing if allocation.servers is None else allocation.servers
    serving = {job: plan.servers for job, plan in present.items()}
    served = place_servers(claims.slots, serving, dict(zip(ids, servers.tolist(), strict=True)))
    sizes = (nothing if allocation.batch_size is None else allocation.batch_size).tolist()
    return {
        job: Plan(tuple(placed.get(job, present[job].nodes)), size or None, served[job])
        for job, size in zip(ids, sizes, strict=True)
    }


def remaining_plans(claims: GpuClaims, left: Mapping[str, Plan], keeps: Callable[[str, int], int]) -> dict[str, Plan]:
    """Plans of jobs that have lost nodes: to go on with what is left, or to wait if that is less than they need. left:
    what is left of their plans, by job. keeps: how many of a number of GPUs a job can go on with, 0: with none."""
    planned = {job: claims.entry(job).planned.servers for job in claims.entries}
    served = place_servers(claims.slots, planned, {job: len(planned[job]) for job in left})
    after = {}
    for job, stay in left.items():
        count = keeps(job, len(stay.nodes)) if served[job] or not planned[job] else 0
        after[job] = replace(stay, nodes=stay.nodes[:count], servers=served[job]) if count else Plan()
    return after
