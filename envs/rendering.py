"""An environment as text: how the cluster stands, a bar of its GPUs, and a line for every job."""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import Cluster
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.io.arrays import IntArray

HOUR = 3600.0
BAR_CHARACTERS = 64
"""Characters of the bar in a text, at most."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def headline(cluster: Cluster, jobs: JobTable, workload: str, reward: float) -> str:
    """One line about how the cluster stands."""
    waiting = int(np.count_nonzero(jobs.waiting))
    down = cluster.shape.capacity - cluster.up_gpus
    parts = [
        workload,
        f"{cluster.time / HOUR:.2f} h",
        f"{cluster.held_gpus} of {cluster.up_gpus} GPUs held" + (f", {down} down" if down else ""),
        f"jobs: {len(jobs) - waiting} running, {waiting} waiting",
        f"reward {reward:+.2f}",
    ]
    return "  ·  ".join(parts)


def describe(cluster: Cluster, jobs: JobTable, workload: str, reward: float) -> str:
    """The cluster as text: a line, a bar of its GPUs by job, and a table of the active jobs in queue order.

    workload: its name. reward: since the episode began.
    """
    given_or_asked = np.where(jobs.waiting, np.minimum(jobs.requested_gpus, jobs.speed.shape[1] - 1), jobs.gpus)
    hours = jobs.remaining / jobs.speed[np.arange(len(jobs)), given_or_asked] / HOUR
    lines = [headline(cluster, jobs, workload, reward), bar(jobs.gpus, cluster.up_gpus, cluster.shape.capacity), ""]
    names = [cluster.jobs[j].name for j in jobs.index]
    width = max([len("job"), *map(len, names)])
    lines.append(f"  {'job':<{width}}  class   GPUs  asked  hours left  accuracy")
    for i, name in enumerate(names):
        letter = LETTERS[i % len(LETTERS)] if jobs.gpus[i] else " "
        lines.append(
            f"{letter} {name:<{width}}  {PRIORITY_CLASSES[jobs.effective_priority[i]]:<6}  {jobs.gpus[i]:>4}  "
            f"{jobs.requested_gpus[i]:>5}  {hours[i]:>10.2f}  {jobs.accuracy[i]:>8.3f}"
        )
    return "\n".join(lines) + "\n"


def bar(held: IntArray, up: int, capacity: int) -> str:
    """GPUs as characters: a letter for each job that holds some, `.` for idle ones, `x` for those that are down."""
    owner = np.full(capacity, ".")
    owner[up:] = "x"
    letters = np.array(list(LETTERS))[np.arange(len(held)) % len(LETTERS)]
    stack = np.repeat(letters, held)[:capacity]
    owner[: len(stack)] = stack
    shown = np.linspace(0, capacity - 1, min(capacity, BAR_CHARACTERS)).astype(np.int64)
    scale = "" if capacity <= BAR_CHARACTERS else f"  ({BAR_CHARACTERS} of {capacity} GPUs)"
    return f"[{''.join(owner[shown])}]{scale}"
