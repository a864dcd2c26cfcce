"""Greedy marginal utility: workers and servers go one at a time to the job that gains most speed.

Source: Coach (Sundkvist, "Coach", Umeå University 2021, code DLScheduler), whose utility is epochs per second; Optimus
(Peng et al., EuroSys 2018, section 4.1) has the same loop for time saved. Neither loop checks capacity; here a step
that does not fit is not taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Limits:
    """Limits of each of n running jobs: [n] workers, and [n] parameter servers, 0 for jobs without servers."""

    min_workers: IntArray
    max_workers: IntArray
    min_servers: IntArray
    max_servers: IntArray

    @classmethod
    def of_workers(cls, lowest: IntArray, highest: IntArray) -> Limits:
        """Limits of jobs without servers."""
        return cls(lowest, highest, np.zeros_like(lowest), np.zeros_like(lowest))


def allocate(speed: FloatArray, limits: Limits, gpus: int, slots: int) -> tuple[IntArray, IntArray]:
    """Workers and servers [n] each; a worker takes a GPU, a server one of `slots` CPU slots.

    speed: [n, W + 1, P + 1] work per second with 0..W workers and 0..P servers, at least as many as the limits allow.
    Jobs start with their lowest numbers, each in turn if that still fits. Then one worker or one server more goes to
    the job that gains most speed, until no step that fits gains any. Ties go to a worker, then to the first job. Single
    steps stop at a dip: if neither a worker nor a server helps alone, a job does not get both together.
    """
    count = len(speed)
    workers, servers = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for row in range(count):
        if limits.min_workers[row] <= gpus and limits.min_servers[row] <= slots:
            workers[row], servers[row] = limits.min_workers[row], limits.min_servers[row]
            gpus -= int(workers[row])
            slots -= int(servers[row])
    gain = np.full((2, count), -np.inf)  # of a worker, and of a server, more
    for row in np.flatnonzero(workers).tolist():
        gain[:, row] = _gains(speed[row], limits, row, int(workers[row]), int(servers[row]))
    while gain.max(initial=0.0) > 0.0:
        is_server, row = divmod(int(gain.argmax()), count)
        if (slots if is_server else gpus) == 0:
            gain[is_server] = -np.inf
            continue
        if is_server:
            servers[row] += 1
            slots -= 1
        else:
            workers[row] += 1
            gpus -= 1
        gain[:, row] = _gains(speed[row], limits, row, int(workers[row]), int(servers[row]))
    return workers, servers


def _gains(speed: FloatArray, limits: Limits, row: int, w: int, p: int) -> tuple[float, float]:
    """What a job with w workers and p servers gains in speed by a worker, and by a server, more."""
    worker = float(speed[w + 1, p] - speed[w, p]) if w < limits.max_workers[row] else -np.inf
    server = float(speed[w, p + 1] - speed[w, p]) if p < limits.max_servers[row] else -np.inf
    return worker, server
