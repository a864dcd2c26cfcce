"""Limits on kept data: ended jobs in memory, rows in the database, and files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.service.settings import RetentionSettings
from rlpto.store.database import Store
from rlpto.store.logs import job_folder

ENDED_IN_MEMORY = 200
"""Ended jobs that the scheduler keeps in memory. When there are more, it forgets most of them."""
HOUSE_INTERVAL_S = 1.0
"""Minimum time between two rounds of housekeeping."""
TRIM_INTERVAL_S = 600.0
"""Minimum time between two clean-ups of the database."""
EVENTS = 200_000
"""Newest events that the database keeps."""
DECISIONS = 20_000
"""Newest decisions that the database keeps."""
SPANS = 200_000
"""Newest ended allocations that the database keeps."""
ROWS_AT_ONCE = 500
"""Jobs removed from the database in one transaction, during which the web process waits."""
KEYS_KEPT_S = 7 * 86_400.0
"""Time for which an idempotency key is kept."""
DAY_S = 86_400.0


@dataclass
class Retention:
    """Removes old data.

    folder: folder of the service. settings: limits. in_memory: ended jobs kept in memory. timer: clock of intervals.
    """

    store: Store
    folder: Path
    settings: RetentionSettings
    in_memory: int = ENDED_IN_MEMORY
    timer: Callable[[], float] = time.monotonic
    _looked_at: float = field(default=-np.inf, init=False)
    _trimmed_at: float = field(default=-np.inf, init=False)
    _tidied: float = field(default=-np.inf, init=False)

    def due(self) -> bool:
        """Return whether housekeeping is due. If it is, the next interval starts."""
        now = self.timer()
        if now < self._looked_at + HOUSE_INTERVAL_S:
            return False
        self._looked_at = now
        return True

    def clean_up(self, now: float, cluster: RayCluster) -> tuple[str, ...]:
        """Remove data beyond the limits. Returns ids of jobs that the cluster has forgotten."""
        if self.timer() >= self._trimmed_at + TRIM_INTERVAL_S:
            self._trimmed_at = self.timer()
            self._trim_database(now)
            self._tidy_files(now)
            cluster.database.forget(())
        ended = len(cluster.ids) - int(np.count_nonzero(cluster.columns.active))
        if ended <= self.in_memory:
            return ()
        newest = {job.model: job.name for job in cluster.jobs}  # kept: it shows how fast jobs of its program are
        kept = list(newest.values())[-(self.in_memory // 2) :]
        return cluster.tracker.forget_ended(frozenset(kept))

    def _trim_database(self, now: float) -> None:
        """Remove the oldest rows beyond each limit."""
        store, kept = self.store, self.settings
        most = {"events": EVENTS, "decisions": DECISIONS, "audit": kept.audit, "switches": kept.audit}
        for table, rows in most.items():  # their row ids count the rows
            store.write(f"DELETE FROM {table} WHERE rowid <= (SELECT max(rowid) FROM {table}) - ?", (rows,))
        over = "ended IS NOT NULL AND seq <= (SELECT max(seq) FROM spans) - ?"
        store.write(f"DELETE FROM spans WHERE {over}", (SPANS,))
        old = now - kept.logs_days * DAY_S
        times = {"volume": "at", "requests": "done_at", "tokens": "coalesce(revoked, expires)"}
        for table, time_of in times.items():
            store.write(f"DELETE FROM {table} WHERE {time_of} < ?", (old,))
        for table in ("idempotency", "packages"):
            store.write(f"DELETE FROM {table} WHERE at < ?", (now - KEYS_KEPT_S,))
        ended = "FROM jobs WHERE number IS NULL AND ended IS NOT NULL"
        ((count,),) = store.rows(f"SELECT count(*) {ended}")
        left = max(count - kept.jobs, 0)
        while left > 0:
            found = store.rows(f"SELECT seq, id {ended} ORDER BY seq LIMIT ?", (min(left, ROWS_AT_ONCE),))
            left -= len(found)
            with store.transaction():
                for table in ("points", "spans", "events", "predictions"):
                    store.write(f"DELETE FROM {table} WHERE job = ?", *((job,) for _, job in found))
                store.write("DELETE FROM labels WHERE job = ?", *((seq,) for seq, _ in found))
                store.write("DELETE FROM jobs WHERE seq = ?", *((seq,) for seq, _ in found))
                named = "SELECT script FROM jobs WHERE script IS NOT NULL"
                store.write(f"DELETE FROM scripts WHERE digest NOT IN ({named})")
            for _, job in found:
                shutil.rmtree(job_folder(self.folder, job), ignore_errors=True)

    def _tidy_files(self, now: float) -> None:
        """Remove logs and checkpoints of jobs that ended long ago."""
        until = now - self.settings.logs_days * DAY_S
        for (job,) in self.store.rows("SELECT id FROM jobs WHERE ended >= ? AND ended < ?", (self._tidied, until)):
            shutil.rmtree(job_folder(self.folder, job), ignore_errors=True)
        self._tidied = until
