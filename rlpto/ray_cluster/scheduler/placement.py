"""How jobs are to train: plans that follow from an allocation or the loss of nodes, and nodes for GPU counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlpto.core.cluster import Allocation, ClusterShape, Node, Placement
from rlpto.core.placement import main_node, shrink_in_place, take_packed
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.ray_cluster.messages import Plan
from rlpto.ray_cluster.scheduler.gpu_claims import GpuClaims, split_nodes


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
    for nodes in present.values():
        for name in nodes:
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
