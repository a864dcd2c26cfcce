"""What the environments know of the active jobs: one form for every cluster, ready for compiled code."""

from __future__ import annotations

from typing import NamedTuple

from rlpto.arrays import FloatArray, IntArray
from rlpto.cluster import ClusterState
from rlpto.policies.index import job_columns
from rlpto.policies.steering import JobColumns


class JobView(NamedTuple):
    """n active jobs in queue order: what the index needs, and what only observations show. All [n].

    position: in the workload. columns: see JobColumns. requested: GPUs asked for.
    waiting_since [s]: NaN while the job holds GPUs. rescale_left [s]. progress, epochs [epochs].
    accuracy, first_accuracy, final_accuracy: now, before training and once finished. data_size [samples].
    """

    position: IntArray
    columns: JobColumns
    requested: IntArray
    waiting_since: FloatArray
    rescale_left: FloatArray
    progress: FloatArray
    epochs: FloatArray
    accuracy: FloatArray
    first_accuracy: FloatArray
    final_accuracy: FloatArray
    data_size: FloatArray


def view_state(state: ClusterState) -> JobView:
    """The view of a state of any cluster, already in queue order."""
    jobs = state.jobs
    return JobView(
        position=jobs.index,
        columns=job_columns(state),
        requested=jobs.requested_gpus,
        waiting_since=jobs.wait_start,
        rescale_left=jobs.rescale_left,
        progress=jobs.progress,
        epochs=jobs.epochs,
        accuracy=jobs.accuracy,
        first_accuracy=jobs.accuracy_at(0.0 * jobs.progress),
        final_accuracy=jobs.final_accuracy,
        data_size=jobs.data_size,
    )
