"""The order of service: strict priority classes with aging, or classes as head starts; by submission within a class.

Compiled, for the queue of one cluster (`rlpto.core.queues.Queue`) and for many simulated clusters at once. Within
classes users may take turns instead: users with the least recent GPU time come first (`UserService`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlpto.core.cluster import Cluster, ClusterState
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import helper, kernel

TURN_S = 600.0
"""Seconds for which each earlier job of a user is assumed to hold its GPUs, when users take turns."""
HALF_LIFE_S = 86_400.0
"""Seconds after which the GPU time that a user has had counts half: a day, so that users take turns from day to day."""
LEAST_GPU_S = 1.0
"""GPU-seconds below which a user counts as new."""


@kernel()
def order_rows(
    jobs: AnyArray,
    index: IntArray,
    now: float,
    aging_normal: float,
    aging_low: float,
    strict: bool,
    rows: IntArray,
    effective: IntArray,
) -> None:
    """Fill rows [n] with positions in index [n], in order of service, and effective [n] with their classes after aging.

    index: numbers of jobs [M] JOB in order of submission. strict: if true, order by class after aging, then by
    submission; otherwise by submission with the head start of the class a job came with. The number of classes that
    each job has risen is updated.
    """
    high, normal = 0, 0
    for i in range(len(index)):
        job = jobs[index[i]]
        own, since = job.priority, job.wait_start
        if since == since and job.risen < own:  # NaN while running
            risen = int(now >= since + (aging_low if own == 2 else aging_normal))
            risen += int(own == 2 and now >= since + (aging_low + aging_normal))
            job.risen = max(job.risen, risen)
        high += own == job.risen
        normal += own - job.risen == 1
    if not strict:
        order_by_head_start(jobs, index, aging_normal, aging_low, rows, effective)
        return
    at_high, at_normal, at_low = 0, high, high + normal
    for i in range(len(index)):
        job = jobs[index[i]]
        after = job.priority - job.risen
        at = at_high if after == 0 else (at_normal if after == 1 else at_low)
        at_high += after == 0
        at_normal += after == 1
        at_low += after == 2
        rows[at] = i
        effective[at] = after


@kernel(inline="always")
def order_by_head_start(
    jobs: AnyArray, index: IntArray, aging_normal: float, aging_low: float, rows: IntArray, effective: IntArray
) -> None:
    """Fill `rows` and `effective` like `order_rows`, by submission, with a head start for each class.

    The head start is aging_low [s] for jobs submitted as normal, and aging_normal more for jobs submitted as high: the
    time in which a low job would rise to that class. A job is therefore never behind one submitted more than the aging
    bound after it. The order of two jobs never changes.
    """
    count = len(index)
    high, normal, low = (
        next_of_class(jobs, index, 0, 0),
        next_of_class(jobs, index, 0, 1),
        next_of_class(jobs, index, 0, 2),
    )
    for at in range(count):
        row, first = high, np.inf
        if high < count:
            first = jobs[index[high]].submit_time - (aging_low + aging_normal)
        if normal < count:
            since = jobs[index[normal]].submit_time - aging_low
            if since < first or (since == first and normal < row):
                row, first = normal, since
        if low < count:
            since = jobs[index[low]].submit_time
            if since < first or (since == first and low < row):
                row = low
        job = jobs[index[row]]
        rows[at] = row
        effective[at] = job.priority - job.risen
        if row == high:
            high = next_of_class(jobs, index, row + 1, 0)
        elif row == normal:
            normal = next_of_class(jobs, index, row + 1, 1)
        else:
            low = next_of_class(jobs, index, row + 1, 2)


@helper()
def next_of_class(jobs: AnyArray, index: IntArray, start: int, priority: int) -> int:
    """First position from `start` on in index [n] of a job submitted with class `priority`; n if there is none."""
    at = start
    while at < len(index) and jobs[index[at]].priority != priority:
        at += 1
    return at


@kernel()
def next_promotion(jobs: AnyArray, index: IntArray, aging_normal: float, aging_low: float) -> float:
    """Earliest time at which a waiting job among `index` [n] of jobs [M] rises a class; infinity if none ever will."""
    earliest = np.inf
    for i in range(len(index)):
        job = jobs[index[i]]
        if job.risen == job.priority or np.isnan(job.wait_start):
            continue
        bound = aging_low if job.priority == 2 else aging_normal
        if job.risen == 1:
            bound += aging_normal
        earliest = min(earliest, job.wait_start + bound)
    return earliest


class UserService:
    """GPU time that each user of a cluster has had. before: GPU-seconds at the start, by user.

    GPU time counts half after `HALF_LIFE_S`. A user's second job in the queue counts as if the first had already run
    for `TURN_S`, and so on: two new users take turns. Like Slurm's multifactor fair share, but per job. It never
    preempts.
    """

    def __init__(self, cluster: Cluster, before: Mapping[str, float] | None = None) -> None:
        self._cluster = cluster
        self._had = dict(before or {})
        self._time = cluster.time
        self._jobs: IntArray = np.zeros(0, dtype=np.int64)
        self._users: list[str] = []
        self._seen: FloatArray = np.zeros(0)

    def __call__(self, state: ClusterState) -> FloatArray:
        """[n] GPU-seconds that each row's user has had, plus those expected before the row is served."""
        self._count(state)
        keys, ahead = np.zeros(len(state.jobs)), dict(self._had)
        asked = np.where(state.jobs.waiting, state.jobs.requested_gpus, state.jobs.gpus).tolist()
        # Running jobs are ahead of waiting ones.
        rows = np.argsort(state.jobs.waiting, kind="stable").tolist()
        for row in rows:
            user = self._cluster.jobs[int(state.jobs.index[row])].user
            keys[row] = ahead.get(user, 0.0)
            ahead[user] = keys[row] + asked[row] * TURN_S
        return keys

    def _count(self, state: ClusterState) -> None:
        """Update each user's GPU time to the time of the state."""
        service = self._cluster.store.attained_service
        keep = 0.5 ** ((state.time - self._time) / HALF_LIFE_S)
        had = {user: keep * seconds for user, seconds in self._had.items()}
        for user, more in zip(self._users, (service[self._jobs] - self._seen).tolist(), strict=True):
            had[user] = had.get(user, 0.0) + more
        self._had = {user: seconds for user, seconds in had.items() if seconds >= LEAST_GPU_S}
        self._time = state.time
        self._watch(state.jobs.index)

    def _watch(self, jobs: IntArray) -> None:
        """Count the GPU time of these jobs from now on."""
        self._jobs = jobs.copy()
        self._users = [self._cluster.jobs[job].user for job in jobs.tolist()]
        self._seen = self._cluster.store.attained_service[jobs].copy()

    def renumbered(self) -> None:
        """Adapt to a cluster that has removed ended jobs and renumbered the others."""
        self._watch(self._cluster.state().jobs.index)
