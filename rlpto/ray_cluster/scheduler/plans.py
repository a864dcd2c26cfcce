"""How jobs are to train: plans that follow from an allocation, or from the loss of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from rlpto.core.cluster import Allocation
from rlpto.ray_cluster.messages import Plan
from rlpto.ray_cluster.scheduler.gpu_claims import GpuClaims
from rlpto.ray_cluster.scheduler.placement import place, place_as_chosen, place_servers


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


def remaining_plans(claims: GpuClaims, left: Mapping[str, Plan], fewest: Callable[[str], int]) -> dict[str, Plan]:
    """Plans of jobs that have lost nodes: to go on with what is left, or to wait if that is less than they need.

    left: what is left of their plans, by job. fewest: GPUs that a job needs.
    """
    planned = {job: claims.entry(job).planned.servers for job in claims.entries}
    served = place_servers(claims.slots, planned, {job: len(planned[job]) for job in left})
    stays = {
        job: len(stay.nodes) >= fewest(job) and bool(served[job] or not planned[job]) for job, stay in left.items()
    }
    return {job: replace(stay, servers=served[job]) if stays[job] else Plan() for job, stay in left.items()}
