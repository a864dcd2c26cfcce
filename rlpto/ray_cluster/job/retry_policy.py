"""When a failed job is tried again: failures in a row, the wait before the next attempt, and when to stop."""

from __future__ import annotations

import time

from rlpto.ray_cluster.messages import Checkpoint, JobSpec

NODE_GONE_RETRY_S = 2.0
"""Time between attempts to start a worker on a node that is gone."""


class RetryPolicy:
    """Failures of one job since it last got on. gave_up: it goes on with the workers it has, and starts no others."""

    def __init__(self, spec: JobSpec) -> None:
        self._retries, self._backoff = spec.retries, spec.backoff
        self._count = 0
        self._start_after = 0.0
        self._failed_at: tuple[int, Checkpoint | None] = (0, None)
        self.gave_up = False

    def reset(self) -> None:
        """A new command: what failed under the old one does not count."""
        self._count, self._start_after, self.gave_up = 0, 0.0, False

    def may_start_workers(self) -> bool:
        """True if workers may be started now."""
        return not self.gave_up and time.monotonic() >= self._start_after

    def node_gone(self) -> None:
        """A node is gone, which is no fault of the job's."""
        self._start_after = time.monotonic() + NODE_GONE_RETRY_S

    def failed(self, step: int, checkpoint: Checkpoint | None, lasting: bool, trains: bool) -> bool:
        """Count a failure at `step`. lasting: trying again will not help. trains: some workers still do.

        Returns whether the job has failed.
        """
        self._count += 1
        self._failed_at = (step, checkpoint)
        if lasting or self._count > self._retries:
            self.gave_up = trains
            return not trains
        if self._count > 1 or not trains:
            self._start_after = time.monotonic() + self._backoff * 2 ** (self._count - 1)
        return False

    def got_on(self, step: int, checkpoint: Checkpoint | None) -> None:
        """The job trains with all its workers: failures are forgotten once it is past where it met the last one."""
        if self._count and step > self._failed_at[0] and checkpoint != self._failed_at[1]:
            self._count = 0
