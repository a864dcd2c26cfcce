"""When a failed job is tried again: failures in a row, the wait before the next attempt, and when to stop."""

from __future__ import annotations

import time
from typing import Literal

from rlpto.ray_cluster.messages import JobSpec

NODE_GONE_RETRY_S = 2.0
"""Time between attempts to start a worker on a node that is gone."""

FailureKind = Literal["raised", "died", "start"]
"""Training code raised; a worker or server that took part is gone or hangs; one that was started did not come up."""


class RetryPolicy:
    """Failures of one job since it last made progress. gave_up: it keeps the workers it has, and starts no others.

    What counts as progress depends on what failed. Code that raised has to pass the step at which it did. The death of
    a worker says nothing about the code: any step after it is progress, although the job may have gone back further.
    Starts that fail count until all workers train, because those that train already make no start more likely.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._retries, self._backoff = spec.retries, spec.backoff
        self._count = 0
        self._start_after = 0.0
        self._must_pass = -1
        self._progress = False
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

    def failed(self, kind: FailureKind, step: int, lasting: bool, trains: bool) -> bool:
        """Count a failure at `step`. lasting: trying again will not help. trains: some workers still do.

        Returns whether the job has failed.
        """
        if kind != "start":
            if self._progress:
                self._count, self.gave_up = 0, False
            self._must_pass, self._progress = step if kind == "raised" else -1, False
        self._count += 1
        if lasting or self._count > self._retries:
            self.gave_up = trains
            return not trains
        if self._count > 1 or not trains:
            self._start_after = time.monotonic() + self._backoff * 2 ** (self._count - 1)
        return False

    def stepped(self, step: int, whole: bool) -> None:
        """Step `step` is done. whole: by all workers that the job is to have."""
        if step > self._must_pass:
            self._progress = True
            if whole:
                self._count = 0
