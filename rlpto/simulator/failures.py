"""Node failures and repairs, and reclaimed spot nodes: their times and their consequences.

Times and types of failures are hashes of seed, node and count, so they do not depend on the policy, and every policy
meets the same failures.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlpto.core.jobs import curve_at
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.compiled import helper, kernel
from rlpto.io.draws import uniform
from rlpto.simulator.allocating import gpus_on
from rlpto.simulator.arrays import World
from rlpto.simulator.job_kernels import log_change, progress_after, stop_running

LEMON, RESTART, SPOT = 2**62, 2**61, 2**60
"""Offsets of the count for a node's draws other than failure times."""


@kernel()
def next_toggle_after(now: float, mean: float, seed: int, node: int, toggles: int) -> float:
    """Time of a node's next failure or repair: exponential with `mean` seconds, never if mean is 0."""
    if mean == 0.0:
        return np.inf
    return float(now - mean * np.log(uniform(seed, node, toggles)))


@helper()
def mean_time_up(machine: Any) -> float:
    """Mean seconds until a node that is up, a record of NODE, fails or is reclaimed; 0 if it never does."""
    if machine.spot == 0.0 or machine.mtbf == 0.0:
        return float(max(machine.mtbf, machine.spot))
    return float(1.0 / (1.0 / machine.mtbf + 1.0 / machine.spot))


@helper()
def is_reclaimed(machine: Any, seed: int, node: int, toggles: int) -> bool:
    """Whether a spot node, a record of NODE, goes down because its owner reclaims it; otherwise it fails."""
    return bool(uniform(seed, node, toggles + SPOT) * machine.spot < mean_time_up(machine))


def noticed(machines: AnyArray, time: float, seed: int) -> FloatArray:
    """[N] seconds from `time` until nodes, records of NODE, are reclaimed; infinity for nodes without notice."""
    left = np.where((machines["up"] == 1) & (machines["spot"] > 0.0), machines["toggle_at"] - time, np.inf)
    left[left > machines["notice"]] = np.inf
    for node in np.flatnonzero(np.isfinite(left)).tolist():
        machine = machines.view(np.recarray)[node]
        if not is_reclaimed(machine, seed, node, machine.toggles + 1):
            left[node] = np.inf
    return left


@helper()
def schedule_failures(w: World, b: int) -> None:
    """Choose at random which nodes of cluster b are lemons, and the first failure of every node."""
    rules, cluster = w.rules[0], w.clusters[b]
    for node in range(w.free.shape[1]):
        machine = w.machines[b, node]  # its toggles are 0 yet; a literal would be compiled apart
        if rules.lemon_share > 0.0 and uniform(cluster.seed, node, machine.toggles + LEMON) < rules.lemon_share:
            machine.mtbf /= rules.lemon_factor
        if not machine.up:  # it may be rented later, and fail then
            continue
        first = next_toggle_after(0.0, mean_time_up(machine), cluster.seed, node, machine.toggles)
        machine.toggle_at = first
        cluster.next_toggle = min(cluster.next_toggle, first)


@helper()
def toggle_nodes(w: World, b: int) -> None:
    """Fail or repair the nodes that are due, and free the GPUs of background load that ends."""
    cluster, rules = w.clusters[b], w.rules[0]
    for node in range(w.machines.shape[1]):
        machine = w.machines[b, node]
        if machine.toggle_at > cluster.time:
            continue
        if node >= w.free.shape[1]:
            cluster.changed = 1
            machine.up = 1
            machine.toggle_at = np.inf
            freed = w.machines[b, machine.node]
            freed.size += machine.size
            if freed.up:
                w.free[b, machine.node] += machine.size
                cluster.capacity += machine.size
            continue
        machine.toggles += 1
        drawn = 1.0
        reclaimed = machine.up > 0 and machine.spot > 0.0 and is_reclaimed(machine, cluster.seed, node, machine.toggles)
        if machine.up and not reclaimed and rules.restart_share > 0.0:
            drawn = uniform(cluster.seed, node, machine.toggles + RESTART)
        if drawn < rules.restart_share:
            # Below restart_share the number is evenly distributed, so it also selects the GPU that is hit.
            stop_jobs_of(w, b, node, int(drawn / rules.restart_share * machine.size), False)
        elif machine.up:
            stop_jobs_of(w, b, node, -1, reclaimed and machine.notice >= rules.checkpoint_seconds)
            cluster.changed = 1
            machine.up = 0
            w.free[b, node] = 0
            cluster.capacity -= machine.size
            if w.rentals.shape[1] > 0:
                end_rental(w, b, node)
        elif w.rentals.shape[1] > 0 and w.rentals[b, node].group >= 0 and w.rentals[b, node].asked == np.inf:
            machine.toggle_at = np.inf  # it is repaired, and may be rented
            continue
        else:
            cluster.changed = 1
            machine.up = 1
            w.free[b, node] = machine.size
            cluster.capacity += machine.size
        mean = rules.mttr
        if machine.up:
            mean = mean_time_up(machine)
        elif reclaimed:
            mean = machine.away
        machine.toggle_at = next_toggle_after(cluster.time, mean, cluster.seed, node, machine.toggles)
    cluster.next_toggle = np.inf
    for node in range(w.machines.shape[1]):
        cluster.next_toggle = min(cluster.next_toggle, w.machines[b, node].toggle_at)


@helper()
def end_rental(w: World, b: int, node: int) -> None:
    """Stop paying for a rented node, except for the remainder of its minimum rental."""
    rental, cluster = w.rentals[b, node], w.clusters[b]
    if rental.group >= 0 and rental.asked < np.inf:
        w.sums[b].cost += rental.price * max(0.0, rental.minimum - (cluster.time - rental.asked))
        rental.asked = rental.empty_since = np.inf
        cluster.rent = 0.0  # added up again, because differences would leave rounding errors
        for other in range(w.rentals.shape[1]):
            if w.rentals[b, other].asked < np.inf:
                cluster.rent += w.rentals[b, other].price


@kernel()
def stop_jobs_of(w: World, b: int, node: int, hit: int, noticed: bool) -> None:
    """Stop the jobs that hold GPUs of a failing node, and return them to their last checkpoints.

    hit: stop only the job that holds this GPU of the node, with GPUs numbered by the jobs' order of submission and free
    ones last; if negative, stop all jobs. noticed: jobs had the time to write a last checkpoint.
    """
    first = 0
    for i in range(w.clusters[b].active):
        j = w.active[b, i]
        held = gpus_on(w.nodes[b, j], w.jobs[b, j].gpus, node)
        if held > 0 and (hit < 0 or first <= hit < first + held):
            w.clusters[b].changed = 1
            back_to_checkpoint(w, b, j, noticed)
            stop_running(w, b, j, w.clusters[b].time)
            log_change(w, b, j, w.clusters[b].time)
        first += held


@helper()
def back_to_checkpoint(w: World, b: int, j: int, noticed: bool) -> None:
    """Return job j to its last checkpoint: the latest whole interval of training since its last change of GPUs.
    noticed: the job has just written a last checkpoint, and loses only the time of writing it."""
    job, rules = w.jobs[b, j], w.rules[0]
    every = rules.checkpoint_interval  # seconds, including the time of writing
    if job.writing > 0.0:
        every = rules.checkpoint_seconds / job.writing
    saved = np.floor(job.trained / every) * every
    if noticed:
        saved = max(saved, job.trained - rules.checkpoint_seconds)
    job.lost += (job.trained - saved) * (1.0 - job.writing) * job.training_gpus
    job.trained = saved
    back = min(job.progress, progress_after(w, job, job.row, job.base_progress, saved))
    accuracy = curve_at(w.accuracy, job.type_index, w.types[job.type_index].epochs, back)
    w.sums[b].accuracy_gain[job.priority] += (accuracy - job.accuracy) * job.gain_scale
    job.accuracy = accuracy
    job.progress = back
