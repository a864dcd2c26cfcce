"""Coach: workers and parameter servers go where they add most epochs per second.

Source: Sundkvist, "Coach", Umeå University 2021, and its public code DLScheduler; the default form of the fitted speed
is Optimus's (Peng et al., EuroSys 2018).
Adapted: capacity is checked; jobs get min_gpus in queue order first; all jobs are planned again at every decision, not
each at the end of its epoch; probes are spread over all configurations a job may have, not only the four smallest;
until the probes determine the fit, a job gets no configuration larger than those measured. The speeds of jobs without
parameter servers are known.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.job_table import JobTable
from rlpto.core.policy import BasePolicy
from rlpto.io.arrays import FloatArray
from rlpto.io.settings import Settings
from rlpto.performance.parameter_server import (
    Form,
    Probes,
    corner_probes,
    fit_speed,
    observed,
    speed_grid,
    spread_probes,
)
from rlpto.policies.marginal_utility import Limits, allocate

SPREAD_PROBES = 8
"""Number of spread probes: enough to determine five parameters in spite of noise."""


class CoachOptions(Settings):
    """Options of `coach`; they matter to jobs with parameter servers."""

    form: Form = "sync"
    """Form of the speed that is fitted: Optimus's of synchronous or asynchronous training (sync, async), or the
    original's (parabola)."""
    probes: Literal["spread", "corners"] = "spread"
    """What a job tries first: up to 8 numbers of workers and servers spread over what it may have, or the original's,
    up to 2 of each."""


class Seen:
    """Measured speeds of one job at each (workers, servers) that it has trained with, scaled to the present.

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
        """Keep a speed; ignore one that is not positive."""
        before = self._speeds.get((workers, servers))
        if speed <= 0 or speed == before:
            return
        self._grids.clear()
        drift = 1.0 if before is None else speed / before
        self._speeds = {at: seen * drift for at, seen in self._speeds.items()} | {(workers, servers): speed}

    def grid(self, form: Form, max_workers: int, max_servers: int) -> FloatArray:
        """[max_workers + 1, max_servers + 1] work per second: measured, else fitted.

        While the fit is undetermined, 0 for more workers or servers than were measured. All 0 without measurements.
        """
        key = (form, max_workers, max_servers)
        if key not in self._grids:
            self._grids[key] = self._fit(*key)
        return self._grids[key]

    def _fit(self, form: Form, max_workers: int, max_servers: int) -> FloatArray:
        """The speeds of `grid`."""
        if not self._speeds:
            return np.zeros((max_workers + 1, max_servers + 1))
        workers, servers = np.array(list(self._speeds), dtype=np.int64).T
        probes = Probes(workers, servers, np.array(list(self._speeds.values())))
        fit = fit_speed(form, probes)
        grid = observed(speed_grid(fit, max_workers, max_servers), probes)
        if not fit.determined:
            grid[workers.max() + 1 :] = 0.0
            grid[:, servers.max() + 1 :] = 0.0
        return grid


class Coach(BasePolicy[CoachOptions]):
    """min_gpus, and a server, for each job in turn, then single workers and servers by gain in speed."""

    name = "coach"
    summary = "min_gpus for all, then single workers or servers by largest gain in epochs per second, elastic"
    source = "Sundkvist, Umeå University 2021 (Coach, code DLScheduler); Peng et al., EuroSys 2018 (Optimus)"
    Options = CoachOptions
    chooses_servers = True

    def reset(self, seed: int) -> None:  # noqa: ARG002
        """Forget the measured speeds."""
        self._seen: dict[int, Seen] = {}

    def __call__(self, state: ClusterState) -> Allocation:
        """Grow jobs until nothing is gained or nothing is free; probes come before growth."""
        jobs = state.jobs
        if not jobs.has_servers:
            limits = Limits.of_workers(jobs.min_gpus, jobs.max_gpus)
            return Allocation(allocate(jobs.speed[:, :, None], limits, state.capacity, 0)[0])
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
        """Keep the speeds that jobs with servers train at now, and forget the jobs that are gone."""
        served = jobs.most_servers > 0
        active = jobs.index[served].tolist()
        self._seen = {job: self._seen.get(job) or Seen() for job in active}
        for row in np.flatnonzero(served & (jobs.gpus > 0) & (jobs.rescale_left <= 0)).tolist():
            workers = int(jobs.gpus[row])
            self._seen[int(jobs.index[row])].add(workers, int(jobs.servers[row]), float(jobs.speed[row, workers]))

    def _speeds(self, jobs: JobTable, limits: Limits) -> FloatArray:
        """[n, W + 1, P + 1] work per second: known for jobs without servers, else from measurements."""
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
        """Limits that hold each job at its next probe, in turn, as far as there is room next to all starting jobs."""
        least = (limits.min_workers, limits.min_servers)
        started, slots = allocate(
            np.zeros((len(jobs), 1, 1)), Limits(least[0], least[0], least[1], least[1]), state.capacity, state.cpu_slots
        )
        spare_gpus, spare_slots = state.capacity - int(started.sum()), state.cpu_slots - int(slots.sum())
        bounds = [column.copy() for column in (*least, limits.max_workers, limits.max_servers)]
        for row in np.flatnonzero((started > 0) & (limits.max_servers > 0)).tolist():
            seen = self._seen[int(jobs.index[row])]
            fewest = int(least[0][row])
            for w, p in self._probes(int(limits.max_workers[row]), int(limits.max_servers[row]), fewest):
                if (w, p) not in seen and w - fewest <= spare_gpus and p - 1 <= spare_slots:
                    spare_gpus -= w - fewest
                    spare_slots -= p - 1
                    for bound, number in zip(bounds, (w, p, w, p), strict=True):
                        bound[row] = number
                    break
        return Limits(bounds[0], bounds[2], bounds[1], bounds[3])

    def _probes(self, max_workers: int, max_servers: int, min_workers: int) -> list[tuple[int, int]]:
        """The configurations to probe first for a job."""
        if self.options.probes == "corners":
            return corner_probes(max_workers, max_servers, min_workers)
        return spread_probes(SPREAD_PROBES, max_workers, max_servers, min_workers)
