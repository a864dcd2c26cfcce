"""Simulated clusters with rented nodes, compiled: from one decision about the number of nodes to the next."""

from __future__ import annotations

import numpy as np

from rlpto.core.records import INTERVAL
from rlpto.envs.compiled_batch import CompiledBatch, begin
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import njit
from rlpto.simulator.batch_loop import decide_and_run, look_around
from rlpto.simulator.kernels import is_over
from rlpto.simulator.renting import look_at_nodes, rent, work_done

NODE_SUMS = ("late", "idle", "cost", "gpu_seconds")
"""Sums over a minute: job-seconds in the system in excess of `work_done`, money in excess of `work_done`, money, and
GPU-seconds held."""


@njit(nogil=True)
def run_minutes(
    f: CompiledBatch, workload: IntArray, wanted: IntArray, weights: FloatArray, seen: AnyArray, sums: FloatArray
) -> None:
    """Run each cluster b of the batch for a minute with wanted[b, g] rented nodes, or begin a workload.

    workload: [B] number of the workload to begin; -1 runs the cluster for a minute, a smaller number leaves it alone.
    Cluster b's entry is set to 1 if its workload is over, else to 0. weights: [1, WEIGHT_NAMES] index weights that
    schedule the jobs. Fills seen [B, G] LOOK and sums [B, 4] `NODE_SUMS`.
    """
    w = f.loop.world
    for b in range(len(workload)):
        cluster = w.clusters[b]
        if workload[b] < -1:
            continue
        if workload[b] >= 0:
            begin(f, b, workload[b])
            workload[b] = 0
            for i in range(4):
                sums[b, i] = 0.0
        else:
            total, since = np.zeros(1, INTERVAL), cluster.time
            if rent(w, b, wanted[b]):
                look_around(f.loop, b)
            while True:
                decide_and_run(f.loop, b, weights, total)
                if cluster.time >= cluster.next_rent or is_over(w, b):
                    break
            seconds, money = work_done(w, b, since)
            sums[b, 0] = total[0].unfinished - seconds
            sums[b, 1] = total[0].cost - money
            sums[b, 2] = total[0].cost
            sums[b, 3] = total[0].gpu_seconds
            workload[b] = 1 if is_over(w, b) else 0
        look_at_nodes(w, b, seen[b])
