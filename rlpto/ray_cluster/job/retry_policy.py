"""How much a job puts up with: failures in a row, the wait before the next attempt, and when to stop trying."""

from __future__ import annotations

import time

from rlpto.ray_cluster.messages import Checkpoint, JobSpec

UNPLACED = 2.0
"""s between attempts to start a worker on a node that is gone."""


class Strikes:
    """Failures of one job since it last got on. gave_up: it goes on with the workers it has, and hires no others."""

    def __init__(self, spec: JobSpec) -> None:
        self._retries, self._backoff = spec.retries, spec.backoff
        self._count = 0
        self._hire_from = 0.0
        self._struck: tuple[int, Checkpoint | None] = (0, None)
        self.gave_up = False

    def start_over(self) -> None:
        """A new command: what failed under the old one does not count."""
        self._count, self._hire_from, self.gave_up = 0, 0.0, False

    def may_hire(self) -> bool:
        """True if workers may be started now."""
        return not self.gave_up and time.monotonic() >= self._hire_from

    def unplaced(self) -> None:
        """A node is gone, which is no fault of the job's."""
        self._hire_from = time.monotonic() + UNPLACED

    def strike(self, step: int, checkpoint: Checkpoint | None, lasting: bool, trains: bool) -> bool:
        """Count a failure at `step`. lasting: trying again will not help. trains: some workers still do.

        Returns whether the job has failed.
        """
        self._count += 1
        self._struck = (step, checkpoint)
        if lasting or self._count > self._retries:
            self.gave_up = trains
            return not trains
        if self._count > 1 or not trains:
            self._hire_from = time.monotonic() + self._backoff * 2 ** (self._count - 1)
        return False

    def forgive(self, step: int, checkpoint: Checkpoint | None) -> None:
        """The job trains with all its workers: failures are forgotten once it is past where it met the last one."""
        if self._count and step > self._struck[0] and checkpoint != self._struck[1]:
            self._count = 0
