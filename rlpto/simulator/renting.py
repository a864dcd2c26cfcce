"""Rented nodes, compiled: requests, booting and returns, and their state as observed once a minute."""

from __future__ import annotations

import numpy as np

from rlpto.core.renting import MOST_GPUS, TICK_S, RentPlan
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import helper, kernel
from rlpto.io.draws import uniform
from rlpto.simulator.allocating import gpus_on
from rlpto.simulator.arrays import World
from rlpto.simulator.failures import end_rental
from rlpto.simulator.job_kernels import log_change, stop_running, work_seconds
from rlpto.simulator.kernels import Outlook, advance, clear_sums, is_over, outlook, tick_after

BOOT, ANGLE = 2**59, 2**58
"""Offsets that keep the random numbers of boot times apart from the random numbers of failures."""


@kernel()
def rent(w: World, b: int, wanted: IntArray) -> bool:
    """Request or return nodes of cluster b until group g has wanted[g] nodes, as far as possible.

    A failed node cannot be requested. Booting nodes, and nodes that have had no jobs for long enough, are returned, but
    not before their minimum rental; the most recently requested node goes first. If there is no such node, one with
    jobs is drained, and its jobs move (`to_drain`). Returns whether jobs have been stopped.
    """
    cluster, moving = w.clusters[b], 0  # GPUs of the jobs that have been stopped
    cluster.next_rent = tick_after(cluster.time, TICK_S)
    for group in range(len(wanted)):
        there = 0
        for node in range(w.rentals.shape[1]):
            there += w.rentals[b, node].group == group and w.rentals[b, node].asked < np.inf
        for node in range(w.rentals.shape[1]):
            rental, machine = w.rentals[b, node], w.machines[b, node]
            if rental.group != group:
                continue
            if rental.asked == np.inf and machine.toggle_at == np.inf and there < wanted[group]:
                ask_for(w, b, node)
                there += 1
            elif machine.up == 0 or w.free[b, node] < machine.size:
                rental.empty_since = np.inf
            else:
                rental.empty_since = min(rental.empty_since, cluster.time)
        while there > wanted[group]:
            node = to_give_back(w, b, group)
            if node < 0:
                node = to_drain(w, b, group, moving)
                if node < 0:
                    break
                moving += stop_jobs_on(w, b, node)
            give_back(w, b, node)
            there -= 1
    cluster.next_toggle = np.inf
    for node in range(w.machines.shape[1]):
        cluster.next_toggle = min(cluster.next_toggle, w.machines[b, node].toggle_at)
    return moving > 0


@kernel()
def rent_and_look(w: World, b: int, wanted: IntArray) -> Outlook:
    """Call `rent`, then `outlook`."""
    rent(w, b, wanted)
    return outlook(w, b)


@kernel()
def advance_renting(
    w: World, b: int, until: float, plan: RentPlan, passed: AnyArray, kept: FloatArray, rows: FloatArray
) -> tuple[int, int, Outlook]:
    """Run cluster b like `advance_until`, and decide on rented nodes once a minute by a plan.

    It also ends at a decision beyond the plan's last minute. kept: [8] the latest decision (the first six columns of
    `rlpto.core.records.NodeRecords`), then job-seconds in the system and cost since that decision. rows: [P, 9] filled
    with completed decisions, columns of `NodeRecords`. Returns the number of decision points, the number of rows, and
    `outlook`.
    """
    cluster, count, minutes = w.clusters[b], 0, 0
    while True:
        advance(w, b)
        passed[count] = w.sums[b]
        count += 1
        kept[6] += w.sums[b].unfinished
        kept[7] += w.sums[b].cost
        clear_sums(w, b)
        stops = is_over(w, b)
        if not stops and cluster.time >= cluster.next_rent:
            minute = int(cluster.time / TICK_S + 1e-6)
            if minute < plan.further.shape[1]:
                close_decision(w, b, kept, rows[minutes])
                minutes += 1
                decide_on_nodes(w, b, plan, 0, minute, kept)
            else:
                stops = True
        if stops or cluster.changed or cluster.time >= until or count == len(passed):
            return count, minutes, outlook(w, b)


@helper()
def close_decision(w: World, b: int, kept: FloatArray, row: FloatArray) -> None:
    """Fill row [9] with the latest decision and its consequences, and reset kept to zeros (`advance_renting`)."""
    seconds, money = work_done(w, b, kept[0])
    for column in range(6):
        row[column] = kept[column]
    row[6] = kept[6] - seconds
    row[7] = kept[7]
    row[8] = kept[7] - money
    for column in range(8):
        kept[column] = 0.0


@helper()
def decide_on_nodes(w: World, b: int, plan: RentPlan, workload: int, minute: int, kept: FloatArray) -> bool:
    """Rent nodes by the plan, and fill kept[:6] with the decision. Returns whether jobs were stopped.

    workload, minute: which row of `plan.further` applies.
    """
    look, wanted = plan.look, plan.wanted
    look_at_nodes(w, b, look)
    kept[0] = w.clusters[b].time
    for g in range(len(look)):
        demand = look[g].used + look[g].waiting
        wanted[g] = min((demand if plan.on_demand else look[g].own) + plan.further[workload, minute, g], MOST_GPUS)
        kept[5] += max(wanted[g] - demand, 0.0)
    for g in range(len(look)):
        seen, other = look[g], plan.other[g]
        if other >= 0:
            wanted[other] += max(wanted[g] - (seen.own + plan.gpus[g]), 0.0)
        asked = np.int64(np.ceil((wanted[g] - seen.own) / plan.size[g] - 1e-9))
        plan.nodes[g] = min(max(asked, plan.least[g]), plan.most[g])
        kept[1] += plan.nodes[g] * plan.size[g] + seen.own
        kept[2] += seen.ready
        kept[3] += seen.booting
        kept[4] += seen.used
    return bool(rent(w, b, plan.nodes))


@helper()
def ask_for(w: World, b: int, node: int) -> None:
    """Rent a node: it boots, and is up after a lognormal time."""
    cluster, rental, machine = w.clusters[b], w.rentals[b, node], w.machines[b, node]
    machine.toggles += 1
    boot = rental.boot
    if rental.spread > 0.0:
        first = uniform(cluster.seed, node, machine.toggles + BOOT)
        angle = uniform(cluster.seed, node, machine.toggles + ANGLE)
        boot *= np.exp(rental.spread * np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * angle))
    rental.asked = cluster.time
    machine.toggle_at = cluster.time + boot
    cluster.rent += rental.price


@helper()
def to_give_back(w: World, b: int, group: int) -> int:
    """Find the most recently requested node of a group that may be given back now. Returns its number, or -1."""
    found, latest, now = -1, -np.inf, w.clusters[b].time
    for node in range(w.rentals.shape[1]):
        rental = w.rentals[b, node]
        if rental.group != group or rental.asked == np.inf or now - rental.asked < rental.minimum:
            continue
        boots = w.machines[b, node].up == 0
        if (boots or now - rental.empty_since >= rental.idle) and rental.asked >= latest:
            found, latest = node, rental.asked
    return found


@helper()
def to_drain(w: World, b: int, group: int, moving: int) -> int:
    """Find the node of a group with the fewest held GPUs. Returns its number, or -1 if no node can be drained.

    No node is drained if one of the group is empty, or if other nodes of the GPU type lack free GPUs for the jobs.
    moving: GPUs that the jobs of nodes drained earlier in this decision also need.
    """
    found, fewest, free, now, gpu_type = -1, np.int64(2**40), 0, w.clusters[b].time, -1
    for node in range(w.rentals.shape[1]):
        if w.rentals[b, node].group == group:
            gpu_type = w.rentals[b, node].gpu_type
    for node in range(w.rentals.shape[1]):
        rental, machine = w.rentals[b, node], w.machines[b, node]
        if machine.up == 0 or rental.gpu_type != gpu_type:
            continue
        free += w.free[b, node]
        held = machine.size - w.free[b, node]
        if rental.group == group and held == 0:
            return -1  # it is given back once it has been idle for long enough
        if rental.group == group and now - rental.asked >= rental.minimum and 0 < held < fewest:
            found, fewest = node, held
    if found >= 0 and free - w.free[b, found] >= fewest + moving:
        return found
    return -1


@helper()
def stop_jobs_on(w: World, b: int, node: int) -> int:
    """Stop the jobs that hold GPUs of a node; they lose no work, and wait for other GPUs. Returns their GPUs."""
    stopped = 0
    for i in range(w.clusters[b].active):
        j = w.active[b, i]
        if gpus_on(w.nodes[b, j], w.jobs[b, j].gpus, node) > 0:
            stopped += w.jobs[b, j].gpus
            stop_running(w, b, j, w.clusters[b].time)
            log_change(w, b, j, w.clusters[b].time)
    return stopped


@helper()
def give_back(w: World, b: int, node: int) -> None:
    """Give back a booting node, or a node without jobs."""
    cluster, machine = w.clusters[b], w.machines[b, node]
    end_rental(w, b, node)
    machine.toggle_at = np.inf
    if machine.up:
        machine.up = 0
        w.free[b, node] = 0
        cluster.capacity -= machine.size
        cluster.changed = 1


@kernel()
def work_done(w: World, b: int, since: float) -> tuple[float, float]:
    """Return the work done in cluster b since the last call, as job-seconds and as a price.

    Job-seconds are the time that the work takes on each job's requested GPUs, on as few nodes as possible; the price is
    paid for these GPUs in this time. Time and cost beyond these depend on the rented nodes. since: a time [s] no later
    than the last call.
    """
    seconds, money, size, price, gpu_type = 0.0, 0.0, np.int64(1), 0.0, np.int64(-1)
    for node in range(w.rentals.shape[1]):
        size = max(size, w.machines[b, node].size)
    for j in range(w.clusters[b].arrived):
        job = w.jobs[b, j]
        if job.finish_time <= since:
            continue
        if w.types[job.type_index].gpu_type != gpu_type:
            gpu_type = w.types[job.type_index].gpu_type
            price = price_of(w, b, gpu_type)
        spans = min((job.requested_gpus + size - 1) // size, w.row.shape[1])
        row = w.row[job.type_index, spans - 1, job.requested_gpus]
        done = work_seconds(w.rates, w.elapsed, row, job.progress) / job.scale
        if job.start_time == job.start_time:
            done += w.types[job.type_index].delay
        seconds += done - w.worked[b, j]
        money += (done - w.worked[b, j]) * job.requested_gpus * price
        w.worked[b, j] = done
    return seconds, money


@helper()
def price_of(w: World, b: int, gpu_type: int) -> float:
    """Price per second of a GPU of a type in the groups of rented nodes, or of any GPU there if they lack the type."""
    price = 0.0
    for node in range(w.rentals.shape[1]):
        rental = w.rentals[b, node]
        if rental.group >= 0 and (price == 0.0 or rental.gpu_type == gpu_type):
            price = rental.price / max(w.machines[b, node].size, 1)
            if rental.gpu_type == gpu_type:
                break
    return price


@kernel()
def look_at_nodes(w: World, b: int, out: AnyArray) -> None:
    """Fill out [G] `rlpto.core.renting.LOOK` with the state of the groups of rented nodes of cluster b.

    A permanent node counts towards the first group of its GPU type, and a waiting job towards the first group with a
    GPU type that it may use; other nodes and jobs do not count.
    """
    cluster, groups = w.clusters[b], len(out)
    for g in range(groups):
        out[g].used = out[g].ready = out[g].booting = out[g].soon = out[g].own = 0.0
        out[g].waiting = out[g].waiting_jobs = out[g].largest = 0.0
    for node in range(w.rentals.shape[1]):
        rental, machine = w.rentals[b, node], w.machines[b, node]
        group = rental.group if rental.group >= 0 else group_of(w, b, rental.gpu_type)
        if group < 0:
            continue
        seen = out[group]
        if machine.up:
            seen.ready += machine.size
            seen.used += machine.size - w.free[b, node]
            if rental.group < 0:
                seen.own += machine.size
        elif rental.asked < np.inf:
            seen.booting += machine.size
            if cluster.time - rental.asked >= rental.boot * 2.0 / 3.0:
                seen.soon += machine.size
    for i in range(cluster.active):
        job = w.jobs[b, w.active[b, i]]
        group = w.rented[job.type_index]
        if job.gpus == 0 and group >= 0:
            seen = out[group]
            seen.waiting += job.requested_gpus
            seen.waiting_jobs += 1.0
            seen.largest = max(seen.largest, float(job.requested_gpus))


@helper()
def group_of(w: World, b: int, gpu_type: int) -> int:
    """Return the first group of rented nodes with a GPU type, or -1 if there is none."""
    for node in range(w.rentals.shape[1]):
        if w.rentals[b, node].gpu_type == gpu_type and w.rentals[b, node].group >= 0:
            return int(w.rentals[b, node].group)
    return -1
