"""Node failures and repairs: when they happen, and what follows from them.

Their moments are hashes of seed, node and count, so a node's failures do not depend on the policy, and every policy
meets the same ones.
"""

from __future__ import annotations

import numpy as np

from rlpto.core.jobs import curve_at
from rlpto.core.placement import holds
from rlpto.io.compiled import helper, kernel
from rlpto.io.draws import uniform
from rlpto.simulator.arrays import World
from rlpto.simulator.job_kernels import last_epoch, log_change, stop_running, work_seconds


@kernel()
def next_toggle_after(now: float, mean: float, seed: int, node: int, toggles: int) -> float:
    """Time of a node's next failure or repair: exponential with `mean` seconds, never if mean is 0."""
    if mean == 0.0:
        return np.inf
    return float(now - mean * np.log(uniform(seed, node, toggles)))


@helper()
def schedule_failures(w: World, b: int) -> None:
    """Draw the first failure of every node of cluster b."""
    rules, cluster = w.rules[0], w.clusters[b]
    for node in range(w.free.shape[1]):
        toggles = w.machines[b, node].toggles  # 0 yet; a literal would be compiled apart
        first = next_toggle_after(0.0, rules.mtbf, cluster.seed, node, toggles)
        w.machines[b, node].toggle_at = first
        cluster.next_toggle = min(cluster.next_toggle, first)


@helper()
def toggle_nodes(w: World, b: int) -> None:
    """Fail or repair the nodes whose time has come, and take over what other processes free now."""
    cluster, rules = w.clusters[b], w.rules[0]
    for node in range(w.machines.shape[1]):
        machine = w.machines[b, node]
        if machine.toggle_at > cluster.time:
            continue
        cluster.changed = 1
        if node >= w.free.shape[1]:
            machine.up = 1
            machine.toggle_at = np.inf
            freed = w.machines[b, machine.node]
            freed.size += machine.size
            if freed.up:
                w.free[b, machine.node] += machine.size
                cluster.capacity += machine.size
            continue
        machine.toggles += 1
        if machine.up:
            stop_jobs_of(w, b, node)
            machine.up = 0
            w.free[b, node] = 0
            cluster.capacity -= machine.size
        else:
            machine.up = 1
            w.free[b, node] = machine.size
            cluster.capacity += machine.size
        mean = rules.mtbf if machine.up else rules.mttr
        machine.toggle_at = next_toggle_after(cluster.time, mean, cluster.seed, node, machine.toggles)
    cluster.next_toggle = np.inf
    for node in range(w.machines.shape[1]):
        cluster.next_toggle = min(cluster.next_toggle, w.machines[b, node].toggle_at)


@kernel(inline="always")
def stop_jobs_of(w: World, b: int, node: int) -> None:
    """Stop every job that holds a GPU of a failing node and take it back to its last checkpoint: the
    latest whole checkpoint interval of training since its last change of GPUs."""
    now, interval = w.clusters[b].time, w.rules[0].checkpoint_interval
    for i in range(w.clusters[b].active):
        j = w.active[b, i]
        job = w.jobs[b, j]
        if not holds(w.nodes[b, j], job.gpus, node):
            continue
        saved = np.floor(job.trained / interval) * interval * job.scale
        start = job.base_progress
        clock = work_seconds(w.rates, w.elapsed, job.row, start) + saved
        epoch = last_epoch(w.elapsed, job.row, int(start), w.rates.shape[1], clock)
        reached = epoch + (clock - w.elapsed[job.row, epoch]) * w.rates[job.row, epoch]
        back = max(start, min(job.progress, reached))
        accuracy = curve_at(w.accuracy, job.type_index, w.types[job.type_index].epochs, back)
        w.sums[b].accuracy_gain[job.priority] += (accuracy - job.accuracy) * job.gain_scale
        job.accuracy = accuracy
        job.progress = back
        stop_running(w, b, j, now)
        log_change(w, b, j, now)
