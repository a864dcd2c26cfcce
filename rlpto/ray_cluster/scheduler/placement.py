"""The nodes of a cluster, the resources they offer to jobs, and the placement of jobs on them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from rlpto.core.cluster import Allocation, ClusterShape, Node, Placement
from rlpto.core.placement import main_node, shrink_in_place, take
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.ray_cluster.messages import Plan
from rlpto.ray_cluster.scheduler.backend import NodeInfo
from rlpto.ray_cluster.scheduler.gpu_claims import GpuClaims, split_nodes
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.settings import AutoscaleSettings
from rlpto.store.status import nodes

RENEW_S = 60.0
"""Seconds after which an unchanged GPU request is repeated, because a restarted head may have forgotten it."""


def usable_nodes(nodes: Iterable[NodeInfo], gpu_types: Sequence[str]) -> list[NodeInfo]:
    """Return nodes whose GPU type has known speeds. If the tables have a single GPU type, all nodes count as that
    type."""
    alike = (node if len(gpu_types) > 1 else replace(node, gpu=gpu_types[0]) for node in nodes)
    return [node for node in alike if node.gpu in gpu_types]


class NodeInventory:
    """Nodes by id, initially none.

    claims: GPU claims of jobs on the nodes. shape: present nodes, draining ones last; capacity that was up before and
    is now missing counts as down. announced, silent: draining and silent nodes, from `RayBackend`. possible: all
    possible nodes, if nodes are rented; missing ones are down. join: command that joins a machine again; empty if none
    can.
    """

    def __init__(self, database: SessionDatabase, possible: Sequence[Node] = ()) -> None:
        self._database = database
        self.announced: Mapping[str, float] = {}
        self.silent: Mapping[str, float] = {}
        self.join, self._rents = "", bool(possible)
        self._answered: dict[str, float] = {}  # time of the last answer of silent nodes
        self._cut_off = 0.0
        self._draining: tuple[str, ...] = ()
        self._known: dict[str, NodeInfo] = {}
        self.claims = GpuClaims()
        self.shape = ClusterShape(Node(node.gpus, node.cpus, node.gpu, up=False) for node in possible)

    def gpu_type_of(self, name: str) -> str | None:
        """GPU type of a known node by its id; None if the node is unknown."""
        return self._known[name].gpu if name in self._known else None

    def leaves_in(self, wall: float) -> FloatArray:
        """Seconds from `wall` [s of `time.time`] until each node leaves, as announced [N]; infinity without an
        announcement."""
        left, first = np.full(len(self.shape), np.inf), len(self.claims.capacity)
        for number, node in enumerate(self._draining, first):
            left[number] = max(self.announced.get(node, np.inf) - wall, 0.0)
        return left

    def missing(self, alive: Sequence[NodeInfo]) -> list[str]:
        """Return nodes of the claims that are no longer alive."""
        known = {node.id for node in alive}
        return [node for node in self.claims.capacity if node not in known]

    def take_in(self, alive: Sequence[NodeInfo], time: float) -> bool:
        """Add nodes that are up at a time [s of the session]. True if any is new."""
        new = [node for node in alive if node.id not in self.claims.capacity]
        for node in new:
            self._known[node.id] = node
            self.claims.add_node(node.id, node.gpus, node.cpus)
            answered = self._answered.pop(node.id, None)
            again = "" if answered is None else f"answers again after {time - answered:.0f} s"
            self._database.node_up(node, time, again)
            if again:
                self._say(node.id, again)
        if new:
            self._reshape()
        return bool(new)

    def remove(self, nodes: Sequence[str], time: float) -> dict[str, Plan]:
        """Remove nodes, and return the remaining plans of jobs that had workers or servers there."""
        for node in nodes:
            gpus = self._known[node].gpus if node in self._known else 0
            if node in self.silent:
                self._answered[node] = time - self.silent[node]
                self._database.node_down(node, gpus, time, detail="does not answer", silent=self._answered[node])
                self._say(node, f"does not answer: its {gpus} GPUs count as down until it does")
                continue
            self._database.node_down(node, gpus, time, self.announced.get(node) or None)
            if node in self._known and node not in self.announced and not self._rents:
                self._say_gone(node)
        left = self.claims.remove_nodes(nodes)
        self._reshape()
        return left

    def note_silence(self, cut_off: float, time: float) -> None:
        """Record silent nodes that Ray has declared dead, and whether all other machines are silent. cut_off: as in
        `RayBackend`."""
        for node in self._answered.keys() - self.silent.keys() - self.announced.keys():
            del self._answered[node]
            self._database.node_gone(node, time)
            self._say_gone(node)
        if cut_off and not self._cut_off:
            self._database.event(time, "nodes_silent", value=cut_off)
            self._database.say(
                "no other machine of the Ray cluster answers: the network of this one is likely down. Jobs keep their "
                "GPUs until Ray declares nodes dead"
            )
        elif self._cut_off and not cut_off and self.claims.capacity:
            self._database.event(time, "nodes_answer", value=self._cut_off)
            self._database.say(f"other machines of the Ray cluster answer again after {self._cut_off:.0f} s")
        self._cut_off = cut_off

    def _say_gone(self, node: str) -> None:
        self._say(node, "is gone" + f": if its machine runs, start Ray there again: `{self.join}`" * bool(self.join))

    def _say(self, node: str, line: str) -> None:
        place = self._known[node].host or self._known[node].address
        self._database.say(f"node {node[:8]}{f' ({place})' * bool(place)} {line}")

    def note_lost(self, time: float) -> None:
        """Record nodes that were up under the previous scheduler and have gone since."""
        for node in nodes(self._database):
            if (node.alive or node.silent) and node.id not in self.claims.capacity:
                self._database.node_down(node.id, node.gpus, time, self.announced.get(node.id) or None)

    def _reshape(self) -> None:
        """Recompute the shape from the nodes that are up or draining."""
        up = self.claims.capacity
        self._draining = tuple(node for node in self.announced if node in self._known and node not in up)
        nodes = [replace(self._known[node].offered, up=node in up) for node in (*up, *self._draining)]
        self.shape = shape_with(self.shape, nodes)


class GpuRequests:
    """Requests GPUs from Ray's autoscaler: as many as jobs want, at most `most_gpus`. A lower request is sent after
    demand has been lower for `idle_seconds`. Nodes then come and go like all others. request: called with the total
    number of GPUs. asked: GPUs last requested."""

    def __init__(self, settings: AutoscaleSettings, request: Callable[[int], None]) -> None:
        self._settings, self._request = settings, request
        self.asked, self._needed, self._renewed = 0, -math.inf, -math.inf

    def want(self, gpus: int, now: float) -> None:
        """Update the request. gpus: GPUs that jobs hold or wait for at `now` [s]."""
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
    """Place the jobs of `wanted` (number of GPUs of each). Returns node ids of jobs whose place changes.

    gpus: GPUs of each node. present: nodes of each job by the present plan, one entry for each GPU. All of `wanted`
    together must fit. Jobs shrink first and leave the nodes where they have fewest GPUs; among these, the ones added
    last, on which they may not train yet. Then jobs grow, largest first, on few nodes (`core.placement`); unlike in the
    simulator, their present workers stay.
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
        take(added, len(added), free, main_node(kept, len(now)), 0)
        placed[job] = [*now, *(names[at] for at in added)]
    return placed


def place_as_chosen(
    gpus: Iterable[str], present: Mapping[str, Sequence[str]], chosen: Mapping[str, IntArray]
) -> dict[str, list[str]]:
    """Place jobs by the GPUs per node that a policy has chosen [N or more]. Returns node ids of jobs whose place
    changes. gpus: node ids in numerical order. Workers that stay keep their order, and therefore their ranks."""
    names, placed = list(gpus), {}
    for job, row in chosen.items():
        now = present.get(job, ())
        stays, added = split_nodes(now, np.repeat(names, row[: len(names)]).tolist())
        if added or len(stays) < len(now):
            placed[job] = stays + added
    return placed


def _grouped(nodes: list[int], room: int) -> IntArray:
    """Sort node numbers by first occurrence, with equal ones adjacent, as the placement functions expect them."""
    return np.array(sorted(nodes, key=nodes.index), dtype=np.int64) if nodes else np.zeros(max(room, 1), dtype=np.int64)


def known_placement(
    alive: Iterable[str], planned: Sequence[Sequence[str]], trains: Sequence[Sequence[str]], left: FloatArray
) -> Placement:
    """Places of jobs by the present plan, and the part of each job that already trains.

    alive: node ids in numerical order. planned, trains: for each job, the node ids of its planned workers and of its
    training workers. left: seconds until the other workers train [n].
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
    """Place the parameter servers of the jobs of `wanted` (number of servers of each). Returns node ids.

    slots: CPU slots of each node. present: current places. Servers that stay keep their nodes, and the last added leave
    first. New servers go to the node with most free slots, one at a time: servers spread, whereas workers are packed. A
    job gets fewer servers if no slots are free.
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
    """Return the cluster with these nodes, up or down. Capacity of a GPU type is the most that was ever up at once;
    missing capacity counts as down."""
    nodes = list(present)
    for gpu_type in dict.fromkeys(node.gpu for node in (*before, *nodes)):
        known = [node.gpus for node in before if node.gpu == gpu_type]
        here = [node.gpus for node in present if node.gpu == gpu_type]
        missing, largest = sum(known) - sum(here), max(known + here)
        while missing > 0:
            nodes.append(Node(min(missing, largest), gpu=gpu_type, up=False))
            missing -= nodes[-1].gpus
    return ClusterShape(nodes)


def allocated_plans(claims: GpuClaims, present: Mapping[str, Plan], allocation: Allocation) -> dict[str, Plan]:
    """Turn an allocation into plans of jobs. present: plans in force by job, in the allocation's order."""
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
    """Plan jobs that have lost nodes: they continue on their remaining GPUs, or wait if these are too few. left:
    remaining plan by job. keeps: number of GPUs, out of a given number, on which a job can continue; 0 if none."""
    planned = {job: claims.entry(job).planned.servers for job in claims.entries}
    served = place_servers(claims.slots, planned, {job: len(planned[job]) for job in left})
    after = {}
    for job, stay in left.items():
        count = keeps(job, len(stay.nodes)) if served[job] or not planned[job] else 0
        after[job] = replace(stay, nodes=stay.nodes[:count], servers=served[job]) if count else Plan()
    return after
