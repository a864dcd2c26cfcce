"""An environment as text: how the cluster stands, and a line for every active job."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rlpto.core.cluster import Cluster
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import PRIORITY_CLASSES

HOUR = 3600.0


def describe(cluster: Cluster, jobs: JobTable, workload: str, reward: float) -> str:
    """The cluster as text: a line about it, and a table of the active jobs in queue order.

    workload: its name. reward: since the episode began. Hours left: with the GPUs held, or else those asked for.
    """
    waiting, down = int(np.count_nonzero(jobs.waiting)), cluster.shape.capacity - cluster.up_gpus
    parts = [
        workload,
        f"{cluster.time / HOUR:.2f} h",
        f"{cluster.held_gpus} of {cluster.up_gpus} GPUs held" + (f", {down} down" if down else ""),
        f"jobs: {len(jobs) - waiting} running, {waiting} waiting",
        f"reward {reward:+.2f}",
    ]
    given_or_asked = np.where(jobs.waiting, np.minimum(jobs.requested_gpus, jobs.speed.shape[1] - 1), jobs.gpus)
    table = pd.DataFrame(
        {
            "job": [cluster.jobs[j].name for j in jobs.index],
            "class": [PRIORITY_CLASSES[priority] for priority in jobs.effective_priority],
            "GPUs": jobs.gpus,
            "asked": jobs.requested_gpus,
            "hours left": jobs.remaining / jobs.speed[np.arange(len(jobs)), given_or_asked] / HOUR,
            "accuracy": jobs.accuracy,
        }
    )
    return f"{'  ·  '.join(parts)}\n\n{table.to_string(index=False, float_format='{:.3f}'.format)}\n"
