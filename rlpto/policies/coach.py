"""Coach: gives workers and parameter servers to the jobs where they add most epochs per second.

Source: Sundkvist, "Coach", Umeå University 2021, and its public code DLScheduler; the default form of the fitted speed
is Optimus's (Peng et al., EuroSys 2018).
Adapted: capacity is checked; jobs get min_gpus in queue order first; all jobs are planned again at every decision, not
each at the end of its epoch; probes are spread over all configurations a job may have, not only the four smallest;
until the probes determine the fit, a job gets no configuration larger than the measured ones. The speeds of jobs
without parameter servers are known.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.job_table import JobTable
from rlpto.core.policy import BasePolicy
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.settings import Settings
from rlpto.performance.parameter_server import Form, corner_probes, fitted_grid, spread_probes
from rlpto.policies.greedy import grow_from_lowest, single_steps, size_steps

SPREAD_PROBES = 8
"""Number of spread probes: enough to determine five parameters in spite of noise."""


class CoachOptions(Settings):
    """Options of `coach`, which apply only to jobs with parameter servers."""

    form: Form = "sync"
    """Form of the fitted speed: Optimus's for synchronous or asynchronous training (sync, async), or the form of the
    original code (parabola)."""
    probes: Literal["spread", "corners"] = "spread"
    """Configurations that a job tries first: up to 8 spread over its allowed numbers of workers and servers, or, like
    the original, up to 2 workers and servers (corners)."""


class Limits(NamedTuple):
    """Limits of n jobs while they run: workers [n], and parameter servers [n], which are 0 for jobs without servers."""

    min_workers: IntArray
    max_workers: IntArray
    min_servers: IntArray
    max_servers: IntArray


class Seen:
    """Measured speeds of one job for each (workers, servers) with which it has trained, scaled to the present.

    Speed drifts during training, because progress includes statistical efficiency. When a configuration is measured
    again, all earlier speeds are scaled by the same ratio. Drift while a job is first probed is attributed to the
    configurations.
    """

    def __init__(self) -> None:
        self._speeds: dict[tuple[int, int], float] = {}
        self._grids: dict[tuple[Form, int, int], FloatArray] = {}

    def __contains__(self, configuration: tuple[int, int]) -> bool:
        return configuration in self._speeds

    def add(self, workers: int, servers: int, speed: float) -> None:
        """Record the speed of a configuration, and scale all earlier speeds if it was measured before."""
        before = self._speeds.get((workers, servers))
        if speed <= 0 or speed == before:
            return
        self._grids.clear()
        drift = 1.0 if before is None else speed / before
        self._speeds = {at: seen * drift for at, seen in self._speeds.items()} | {(workers, servers): speed}

    def grid(self, form: Form, max_workers: int, max_servers: int) -> FloatArray:
        """Return the work per second [max_workers + 1, max_servers + 1]: measured, else fitted.

        Speeds beyond the measured workers or servers are 0 while the fit is undetermined; without measurements all are.
        """
        if not self._speeds:
            return np.zeros((max_workers + 1, max_servers + 1))
        key = (form, max_workers, max_servers)
        if key not in self._grids:
            self._grids[key], determined = fitted_grid(form, self._speeds, max_workers, max_servers)
            if not determined:
                workers, servers = np.max(list(self._speeds), axis=0)
                self._grids[key][workers + 1 :] = 0.0
                self._grids[key][:, servers + 1 :] = 0.0
        return self._grids[key]


class Coach(BasePolicy[CoachOptions]):
    """Gives each job in turn min_gpus and a server, then single workers and servers by gain in speed."""

    name = "coach"
    summary = "min_gpus for all, then single workers or servers by largest gain in epochs per second, elastic"
    source = "Sundkvist, Umeå University 2021 (Coach, code DLScheduler); Peng et al., EuroSys 2018 (Optimus)"
    Options = CoachOptions
    chooses_servers = True

    def reset(self, seed: int) -> None:  # noqa: ARG002
        self._seen: dict[int, Seen] = {}

    def __call__(self, state: ClusterState) -> Allocation:
        """Grow jobs until nothing is gained or nothing is free; probes come before growth."""
        jobs = state.jobs
        if not jobs.has_servers:
            if jobs.floor_size is None:
                steps = single_steps(np.diff(jobs.speed, append=jobs.speed[:, -1:]), jobs.max_gpus)
            else:
                steps = size_steps(jobs.speed, jobs.floor_size, jobs.max_gpus)
            return Allocation(grow_from_lowest(np.arange(len(jobs)), jobs.min_gpus, steps, state.capacity))
        self._observe(jobs)
        limits = Limits(
            jobs.min_gpus,
            np.maximum(np.minimum(jobs.max_gpus, state.capacity), jobs.min_gpus),
            np.minimum(jobs.most_servers, 1),
            np.maximum(np.minimum(jobs.most_servers, state.cpu_slots), np.minimum(jobs.most_servers, 1)),
        )
        speed = self._speeds(jobs, limits)
        limits = self._with_probes(jobs, limits, state)
        workers, servers = allocate(speed, limits, state.capacity, state.cpu_slots)
        return Allocation(workers, servers=servers)

    def _observe(self, jobs: JobTable) -> None:
        """Keep the present speeds of jobs with servers, and forget finished jobs."""
        served = jobs.most_servers > 0
        active = jobs.index[served].tolist()
        self._seen = {job: self._seen.get(job) or Seen() for job in active}
        for row in np.flatnonzero(served & (jobs.gpus > 0) & (jobs.rescale_left <= 0)).tolist():
            workers = int(jobs.gpus[row])
            self._seen[int(jobs.index[row])].add(workers, int(jobs.servers[row]), float(jobs.speed[row, workers]))

    def _speeds(self, jobs: JobTable, limits: Limits) -> FloatArray:
        """Return the work per second [n, W + 1, P + 1]: known for jobs without servers, else from measurements."""
        speed = np.zeros((len(jobs), jobs.speed.shape[1], int(limits.max_servers.max()) + 1))
        for row, (job, workers, servers) in enumerate(
            zip(jobs.index.tolist(), limits.max_workers.tolist(), limits.max_servers.tolist(), strict=True)
        ):
            if servers == 0:
                speed[row, :, 0] = jobs.speed[row]
            else:
                speed[row, : workers + 1, : servers + 1] = self._seen[job].grid(self.options.form, workers, servers)
        return speed

    def _with_probes(self, jobs: JobTable, limits: Limits, state: ClusterState) -> Limits:
        """Return limits that fix each job in turn to its next probe, if GPUs and slots remain after all jobs start."""
        workers, servers = start(limits, state.capacity, state.cpu_slots)
        spare_gpus, spare_slots = state.capacity - int(workers.sum()), state.cpu_slots - int(servers.sum())
        probed = Limits(*(column.copy() for column in limits))
        for row in np.flatnonzero((workers > 0) & (limits.max_servers > 0)).tolist():
            seen = self._seen[int(jobs.index[row])]
            fewest = int(limits.min_workers[row])
            most = int(limits.max_workers[row]), int(limits.max_servers[row]), fewest
            corners = self.options.probes == "corners"
            for w, p in corner_probes(*most) if corners else spread_probes(SPREAD_PROBES, *most):
                if (w, p) not in seen and w - fewest <= spare_gpus and p - 1 <= spare_slots:
                    spare_gpus -= w - fewest
                    spare_slots -= p - 1
                    probed.min_workers[row] = probed.max_workers[row] = w
                    probed.min_servers[row] = probed.max_servers[row] = p
                    break
        return probed


def start(limits: Limits, gpus: int, slots: int) -> tuple[IntArray, IntArray]:
    """Return workers and servers [n] each: every job in turn gets its lowest numbers, if both fit."""
    workers, servers = np.zeros_like(limits.min_workers), np.zeros_like(limits.min_servers)
    for row in range(len(workers)):
        if limits.min_workers[row] <= gpus and limits.min_servers[row] <= slots:
            workers[row], servers[row] = limits.min_workers[row], limits.min_servers[row]
            gpus -= int(workers[row])
            slots -= int(servers[row])
    return workers, servers


def allocate(speed: FloatArray, limits: Limits, gpus: int, slots: int) -> tuple[IntArray, IntArray]:
    """Allocate workers and servers [n] each. A worker takes a GPU, a server takes a CPU slot (of `slots`).

    speed: [n, W + 1, P + 1] work per second with 0..W workers and 0..P servers, at least as many as the limits allow.
    Jobs start with their lowest numbers, each in turn if these still fit. Then another worker or server goes to the
    job that gains most speed, until no step that fits gains any. Ties go to a worker, then to the first job. Single
    steps stop at a dip: if neither a worker nor a server helps alone, a job does not get both together.
    """
    count = len(speed)
    workers, servers = start(limits, gpus, slots)
    gpus -= int(workers.sum())
    slots -= int(servers.sum())
    gain = np.full((2, count), -np.inf)  # by one more worker, and by one more server
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
    """Return the gain in speed of a job with w workers and p servers by one more worker, and by one more server."""
    worker = float(speed[w + 1, p] - speed[w, p]) if w < limits.max_workers[row] else -np.inf
    server = float(speed[w, p + 1] - speed[w, p]) if p < limits.max_servers[row] else -np.inf
    return worker, server
