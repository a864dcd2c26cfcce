"""A simulated cluster that serves: jobs come, are withdrawn and are forgotten for as long as its source is open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlpto.core.cluster import OrderSource, Reclass, Withdraw
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import ConfigError
from rlpto.simulator.arrays import CHANGE
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.kernels import apply_and_look, outlook


class ServingCluster(SimulatedCluster):
    """As `SimulatedCluster`, with an `OrderSource`. What has been asked for by a decision point is done there."""

    def advance_until(self, until: float) -> AnyArray:
        """See `SimulatedCluster.advance_until`; what was asked for meanwhile is done at the end."""
        passed = super().advance_until(until)
        assert isinstance(self._source, OrderSource)
        for order in self._source.orders(self.time):
            self.changed = True
            if isinstance(order, Withdraw):
                self._withdraw(order.job)
            elif isinstance(order, Reclass):
                self._reclass(order.job, order.priority)
        return passed

    def _number_of(self, name: str) -> int | None:
        """Number of the active job of this name; None if it has ended, or not come yet."""
        active = self._world.active[0, : self.active_jobs].tolist()
        return next((job for job in active if self.jobs[job].name == name), None)

    def _reclass(self, name: str, priority: int) -> None:
        """Move a job to another priority class; it has risen by none there."""
        job = self._number_of(name)
        if job is None:
            return
        self.jobs = (*self.jobs[:job], replace(self.jobs[job], priority=priority), *self.jobs[job + 1 :])
        self.store.priority[job], self.store.risen[job] = priority, 0

    def _withdraw(self, name: str) -> None:
        """End a job that has not finished, and free its GPUs."""
        job = self._number_of(name)
        if job is None:
            return
        apply_and_look(self._world, 0, np.array([job]), np.zeros(1, dtype=np.int64), self._order[:1])
        active = self._world.active[0]
        left = active[: self.active_jobs][active[: self.active_jobs] != job]
        active[: len(left)] = left
        self._world.clusters["active"] = len(left)
        self.store.wait_start[job] = np.nan
        self._see(outlook(self._world, 0))
        self.changed = True
        self._slow_sharing_jobs()
        self._keep_log_room()

    def forget_ended(self) -> tuple[str, ...]:
        """Forget jobs that have ended, and all changes of GPUs so far: the names of those jobs.

        Jobs that are left are numbered anew: whoever remembers them by their numbers, such as a policy, has to be
        reset. Raises ConfigError for jobs that know only what they observe.
        """
        if self._online is not None:
            raise ConfigError("knowledge.mode online: simulated jobs that fit their speeds cannot be forgotten")
        clusters, active = self._world.clusters, self._world.active[0, : self.active_jobs]
        arrived = int(clusters["arrived"][0])
        stays = np.zeros(len(self.store), dtype=np.bool_)
        stays[active] = stays[arrived:] = True
        lost, kept = tuple(self.jobs[job].name for job in np.flatnonzero(~stays).tolist()), np.flatnonzero(stays)
        if not lost:
            return ()
        self._drain_log()
        self._logs.clear()
        number, room = np.cumsum(stays) - 1, max(len(kept), 1)
        active[:] = number[active]
        self._alone = {int(number[job]): scale for job, scale in self._alone.items() if stays[job]}
        self.jobs = tuple(self.jobs[job] for job in kept.tolist())
        self.store.keep(kept)
        clusters["arrived"], clusters["jobs"] = arrived - len(lost), len(kept)
        self._world = self._world._replace(
            jobs=self.store.room[None],
            nodes=self._world.nodes[:, kept].copy(),
            active=self._world.active[:, :room].copy(),
            log=np.zeros((1, 4 * len(kept) + 64), dtype=CHANGE),
            scratch=np.zeros(room, dtype=np.int64),
        )
        self._order = np.arange(len(kept))
        return lost
