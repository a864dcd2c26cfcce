"""ConfigurationManager: parameter-server jobs add workers and servers when other jobs free resources.

Source: Surya, "Dynamic allocation for distributed TensorFlow on Kubernetes with a ConfigurationManager", ITB 2019
(thesis 39082, abstract), which says that the manager adds servers and workers once resources are free, and that
training reports progress to it periodically. The rules below are inferred: docs/systems/configuration-manager.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.job_table import JobTable
from rlpto.core.policy import BasePolicy
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.settings import Settings
from rlpto.performance.parameter_server import PARAMETERS, fitted_grid

WORKERS_PER_SERVER = 4
"""Workers per server before another server is added, until the speed model is known."""
ENOUGH_POINTS = 5
"""Different configurations that must be measured before the speed model is used."""


class ConfigurationManagerOptions(Settings):
    """Options of the policy."""

    period: float = Field(30.0, gt=0)
    """Seconds between two progress reports of a job. A job changes only at the first decision after a report is due."""
    gain: float = Field(0.1, ge=0)
    """Smallest relative gain in speed for which a job is changed."""
    retry: float = Field(300.0, ge=0)
    """Seconds until a job whose new processes did not start may try to grow again."""
    form: Literal["sync", "async"] = "sync"
    """Form of Optimus's speed model: for synchronous or asynchronous training."""


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """A decided change. time [s], job: job number. before, after: (workers, servers)."""

    time: float
    job: int
    before: tuple[int, int]
    after: tuple[int, int]


@dataclass
class _ReportedJob:
    """The state kept for a running job.

    due: time [s] of the next report. since: time [s] of the last report. progress: epochs trained by then; None if the
    job has not trained all the time since. config, rescales: at the last report. points: speed at every measured
    configuration. grid: speeds by the model; None while it is unknown. asked: last decided configuration. retry_at:
    time [s] before which the job is not changed again.
    """

    due: float
    since: float
    config: tuple[int, int]
    rescales: int
    progress: float | None = None
    points: dict[tuple[int, int], float] = field(default_factory=dict)
    grid: FloatArray | None = None
    asked: tuple[int, int] | None = None
    retry_at: float = 0.0


class ConfigurationManager(BasePolicy[ConfigurationManagerOptions]):
    """Serves requests in queue order without preemption; running jobs grow at their progress reports.

    events: changes of running jobs decided since the last reset.
    """

    name = "configuration_manager"
    summary = "requests in queue order, running jobs grow in workers and servers into free resources at their reports"
    source = "Surya, ITB thesis 39082, 2019 (ConfigurationManager)"
    Options = ConfigurationManagerOptions
    chooses_servers = True

    def reset(self, seed: int) -> None:  # noqa: ARG002
        self.events: list[Reconfiguration] = []
        self._known: dict[int, _ReportedJob] = {}

    def stands_until(self, state: ClusterState) -> float:  # noqa: ARG002
        return min((known.due for known in self._known.values()), default=np.inf)

    def __call__(self, state: ClusterState) -> Allocation:
        """Let running jobs keep their resources, serve the requests of waiting jobs if they fit, and let running jobs
        share the rest."""
        jobs = state.jobs
        gpus, servers = jobs.keepable.copy(), np.where(jobs.gpus > 0, jobs.servers, 0)
        running, starting = np.flatnonzero(gpus > 0).tolist(), []
        free, slots = state.capacity - int(gpus.sum()), state.cpu_slots - int(servers.sum())
        held_up = False
        for row in np.flatnonzero(gpus == 0).tolist():
            granted, needs = min(int(jobs.requested_gpus[row]), free), int(jobs.own_servers[row])
            if granted < jobs.min_gpus[row] or needs > slots:
                held_up = True
                break
            gpus[row], servers[row] = granted, needs
            starting.append(row)
            free, slots = free - granted, slots - needs
        numbers = jobs.index.tolist()
        configs = list(zip(jobs.gpus.tolist(), jobs.servers.tolist(), strict=True))
        self._known = {numbers[row]: self._seen(state.time, jobs, row, configs[row]) for row in running}
        for row in starting:
            config = int(gpus[row]), int(servers[row])
            self._known[numbers[row]] = _ReportedJob(state.time + self.options.period, state.time, config, -1)
        for row in running:
            known, present = self._known[numbers[row]], (int(gpus[row]), int(servers[row]))
            if state.time < known.due:
                continue
            self._take_report(state.time, jobs, row, known, configs[row])
            if held_up or state.time < known.retry_at or present != known.config:
                continue
            known.asked = self._grown(jobs, row, known, max(free, 0), max(slots, 0))
            if known.asked is not None:
                gpus[row], servers[row] = known.asked
                free, slots = free - known.asked[0] + present[0], slots - known.asked[1] + present[1]
                self.events.append(Reconfiguration(state.time, numbers[row], present, known.asked))
        return Allocation(gpus, servers=servers if jobs.has_servers else None)

    def _seen(self, time: float, jobs: JobTable, row: int, config: tuple[int, int]) -> _ReportedJob:
        """Return the stored state of a job that now runs in a configuration (workers, servers)."""
        known = self._known.get(int(jobs.index[row]))
        if known is None:
            return _ReportedJob(time + self.options.period, time, config, int(jobs.rescales[row]))
        if known.asked is not None and config != known.asked:
            # The change was rolled back or trimmed, so it is not requested again soon.
            known.retry_at = time + self.options.retry
        known.asked = None
        return known

    def _take_report(self, time: float, jobs: JobTable, row: int, known: _ReportedJob, config: tuple[int, int]) -> None:
        """Measure the speed since the last report, if the job has trained all the time in one configuration."""
        rescales, progress = int(jobs.rescales[row]), float(jobs.progress[row])
        if known.progress is not None and (config, rescales) == (known.config, known.rescales):
            # The estimate of the remaining work may grow while a job trains, so only completed work counts.
            left = float(jobs.epochs[row] - jobs.progress[row])
            work_per_epoch = float(jobs.remaining[row]) / left if left > 0 else 0.0
            speed = (progress - known.progress) / (time - known.since) * work_per_epoch
            if speed > 0:
                known.points[config] = speed
                enough = len(known.points) >= max(ENOUGH_POINTS, PARAMETERS[self.options.form])
                if enough and jobs.most_servers[row]:
                    size = int(jobs.max_gpus[row]), int(jobs.most_servers[row])
                    grid, determined = fitted_grid(self.options.form, known.points, *size)
                    known.grid = grid if determined else known.grid
        known.due, known.since, known.config, known.rescales = time + self.options.period, time, config, rescales
        known.progress = progress if jobs.rescale_left[row] <= 0 else None

    def _grown(self, jobs: JobTable, row: int, known: _ReportedJob, free: int, slots: int) -> tuple[int, int] | None:
        """Return the configuration to which a job grows; None if it stays. free, slots: free GPUs and CPU slots."""
        speed = known.points.get(known.config)
        if speed is None:
            return None
        workers, servers = known.config
        most = min(int(jobs.max_gpus[row]), workers + free), min(int(jobs.most_servers[row]), servers + slots)
        if servers == 0:
            known_speed = jobs.speed[row]
            after = workers + int(np.argmax(known_speed[workers : most[0] + 1]))
            found, expected = (after, 0), speed * float(known_speed[after] / known_speed[workers])
        elif known.grid is not None:
            part = known.grid[workers : most[0] + 1, servers : most[1] + 1]
            found = _fastest(part, workers, servers)
            expected = float(known.grid[found])
        else:
            found = _by_rule(known.config, most)
            # Without a speed model, speed is assumed to grow at best with the workers, or with their servers.
            expected = speed * max(found[0] / workers, found[1] / servers)
        remaining, restart = float(jobs.remaining[row]), float(jobs.rescale_delay[row])
        pays = remaining / expected + restart < remaining / speed
        if found == known.config or expected < speed * (1 + self.options.gain) or not pays:
            return None
        return found


def _fastest(part: FloatArray, workers: int, servers: int) -> tuple[int, int]:
    """Return the fastest configuration in the part of a grid that begins at (workers, servers). Ties go to the fewest
    processes."""
    w, p = (axis.ravel() for axis in np.indices(part.shape))
    first: IntArray = np.lexsort((w + p, -part.ravel()))
    return workers + int(w[first[0]]), servers + int(p[first[0]])


def _by_rule(config: tuple[int, int], most: tuple[int, int]) -> tuple[int, int]:
    """Add workers up to `WORKERS_PER_SERVER` for each server, then one server. most: limits of workers and servers."""
    workers, servers = config
    if workers < WORKERS_PER_SERVER * servers:
        return max(workers, min(WORKERS_PER_SERVER * servers, most[0])), servers
    return workers, min(servers + 1, most[1])
