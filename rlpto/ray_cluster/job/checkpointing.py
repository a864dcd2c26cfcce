"""Getting a job's state onto disk while the job goes on training, and what a restarted controller has to know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from rlpto.errors import CheckpointError
from rlpto.ray_cluster.job.job_folder import JobFolder
from rlpto.ray_cluster.job.worker_actors import WorkerLostError, result_of
from rlpto.ray_cluster.worker.actor import Failure


class Checkpointer:
    """Writes checkpoints and the controller's record.

    interval: s between two checkpoints. record: what a restarted controller has to know, asked whenever it is written.
    Where the disk refuses that is noted, and training goes on.
    """

    def __init__(self, job_folder: JobFolder, interval: float, record: Callable[[], dict[str, Any]]) -> None:
        self._job_folder = job_folder
        self._interval = interval
        self._record = record
        self._saving: asyncio.Task[None] | None = None
        self._saved_at = time.monotonic()

    def due(self) -> bool:
        """True if it is time for a checkpoint, and none is being written."""
        idle = self._saving is None or self._saving.done()
        return idle and time.monotonic() - self._saved_at >= self._interval

    def save_from(self, call: Any) -> None:
        """Write a checkpoint in the background, of the state that a worker hands over between two chunks."""
        self._saved_at = time.monotonic()

        async def save() -> None:
            try:
                said = await result_of(call)
            except WorkerLostError:
                return  # noticed where its training is waited for
            if not isinstance(said, Failure):
                await self.write(*said)

        self._saving = asyncio.ensure_future(save())

    async def write(self, step: int, state: bytes) -> None:
        """Write a checkpoint."""
        try:
            await asyncio.to_thread(self._job_folder.write, step, state)
        except CheckpointError as refused:
            self._job_folder.log_failure(str(refused))
        self._saved_at = time.monotonic()
        self.write_record()

    def write_record(self) -> None:
        """Write the record."""
        self._job_folder.write_record(self._record())
