"""Taking up jobs in the middle of their training: compiled state from what is known of each."""

from __future__ import annotations

from rlpto.core.cluster import ClusterShape, Placement
from rlpto.core.jobs import curve_at
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.compiled import kernel
from rlpto.simulator.arrays import World
from rlpto.simulator.job_kernels import finish_time, log_change, speed_row, train_at
from rlpto.simulator.kernels import clear_sums, join_arrivals


def take_up_all(w: World, time: float, shape: ClusterShape, placement: Placement) -> None:
    """Let cluster 0 stand at `time` [s], with all its jobs there: nodes up and GPUs held as shape and placement say."""
    w.machines["up"][0], w.free[0] = [node.up for node in shape], shape.offered
    w.clusters["capacity"] = shape.up_gpus
    for job, nodes in enumerate(placement.nodes):
        w.nodes[0, job, : len(nodes)] = nodes
    take_up(w, 0, time, placement.training, placement.spanned, placement.starting)


@kernel()
def take_up(w: World, b: int, time: float, training: IntArray, spanned: IntArray, starting: FloatArray) -> None:
    """Let cluster b stand at `time` [s], with all its jobs there, holding GPUs on the nodes that `w.nodes` says.

    training, spanned, starting: [M] as in `rlpto.core.cluster.Placement`.
    """
    cluster = w.clusters[b]
    cluster.time = time
    join_arrivals(w, b)
    for j in range(cluster.jobs):
        job = w.jobs[b, j]
        job.accuracy = curve_at(w.accuracy, job.type_index, w.types[job.type_index].epochs, job.progress)
        if job.gpus == 0:
            continue
        for i in range(job.gpus):
            w.free[b, w.nodes[b, j, i]] -= 1
        cluster.held += job.gpus
        row = speed_row(w, b, j)
        if starting[j] > 0.0 and training[j] > 0:
            train_at(w, b, j, int(w.row[job.type_index, min(spanned[j], w.row.shape[1]) - 1, training[j]]))
            job.grow_left = starting[j]
            job.training_gpus = training[j]
            job.next_row = row
        else:
            train_at(w, b, j, row)
        if w.rules[0].resolution == 0.0:
            job.finish_at = finish_time(w, b, j)
        log_change(w, b, j, time)
    clear_sums(w, b)
    cluster.changed = 1
