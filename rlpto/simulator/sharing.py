"""GPUs that several jobs share: which GPUs each job has, and how much its neighbours slow it.

Under `simulator.share: k` a node of g GPUs offers k * g places to workers. Nodes are all that compiled code knows;
which of a node's GPUs a worker is on, and what follows from it, is kept here, and reaches jobs as a factor on their
speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlpto.core.cluster import ClusterShape
from rlpto.core.jobs import Job
from rlpto.io.arrays import IntArray
from rlpto.io.errors import JobError


def with_places(shape: ClusterShape, share: int) -> ClusterShape:
    """The nodes with as many places for workers as `share` jobs to a GPU make, each at its part of the price."""
    if share == 1:
        return shape
    return ClusterShape(replace(node, gpus=share * node.gpus, price=node.price / share) for node in shape)


def check_sharing(jobs: Sequence[Job], shape: ClusterShape, share: int) -> None:
    """Raise JobError for a job that could hold a GPU of `shape`, which has places for `share` jobs, twice."""
    most = min(node.gpus for node in shape) // share
    for job in jobs if share > 1 else ():
        if job.max_gpus > most:
            raise JobError(
                f"job {job.name}: max_gpus {job.max_gpus}, expected at most {most}, the GPUs of the smallest node, as "
                f"jobs share GPUs (simulator.share {share})"
            )


class SharedGpus:
    """Who is on which GPU. A worker that comes takes the GPU of its node with the fewest, the first of equals, of those
    that its job is not on yet; workers never move.

    node_gpus: [N] GPUs of the nodes, each with room for `share` jobs. slowdown: see `SimulatorSettings.share_slowdown`.
    """

    def __init__(self, node_gpus: IntArray, slowdown: float) -> None:
        self._slowdown = slowdown
        self._jobs_on = [np.zeros(gpus, dtype=np.int64) for gpus in node_gpus.tolist()]
        self._places: dict[int, list[tuple[int, int]]] = {}

    def factors(self, nodes_of: Mapping[int, IntArray]) -> dict[int, float]:
        """Factor in (0, 1] on the speed of each job of `nodes_of`: by job, the node of each GPU that it holds now.

        The workers of a job wait for each other, so its fullest GPU counts: with m jobs on that, the factor is
        1 / (1 + slowdown * (m - 1)).
        """
        wanted = {job: Counter(nodes.tolist()) for job, nodes in nodes_of.items()}
        for job in list(self._places):
            self._release(job, wanted.get(job, Counter()))
        for job, nodes in wanted.items():
            self._take(job, nodes)
        return {job: 1.0 / (1.0 + self._slowdown * (self._fullest(job) - 1)) for job in nodes_of}

    def _release(self, job: int, wanted: Counter[int]) -> None:
        """Give up what is more than `wanted` GPUs by node, the last taken first."""
        kept: list[tuple[int, int]] = []
        left = wanted.copy()
        for node, gpu in self._places.pop(job):
            if left[node] > 0:
                left[node] -= 1
                kept.append((node, gpu))
            else:
                self._jobs_on[node][gpu] -= 1
        if kept:
            self._places[job] = kept

    def _take(self, job: int, wanted: Counter[int]) -> None:
        """Take what is missing of `wanted` GPUs by node."""
        own = self._places.get(job, [])
        missing = wanted - Counter(node for node, _ in own)
        for node, count in sorted(missing.items()):
            for _ in range(count):
                load = self._jobs_on[node].copy()
                load[[gpu for at, gpu in own if at == node]] = np.iinfo(np.int64).max
                gpu = int(load.argmin())
                self._jobs_on[node][gpu] += 1
                own.append((node, gpu))
        if own:
            self._places[job] = own

    def _fullest(self, job: int) -> int:
        """Most jobs on any of a job's GPUs; 1 for a job that holds none."""
        return max((int(self._jobs_on[node][gpu]) for node, gpu in self._places.get(job, ())), default=1)
