"""State in the job's folder that outlives a controller: checkpoints, commands and counts, and a log of failures.

Checkpoints are written while the job continues to train.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlpto.io.errors import CheckpointError, system_reason
from rlpto.io.files import write_text
from rlpto.ray_cluster.job.worker_actors import WorkerLostError, result_of
from rlpto.ray_cluster.messages import RECORD, JobSpec
from rlpto.ray_cluster.worker.actor import Failure
from rlpto.store.checkpoints import Checkpoint, drop_checkpoints, list_checkpoints, read_newest, write_checkpoint
from rlpto.store.logs import OutputLog, encodable
from rlpto.store.object_storage import CheckpointStorage

SHORTEST_INTERVAL_S = 0.1
"""Shortest interval to the next checkpoint after a fault."""
LONGEST_FAILURE = 20_000
"""Largest number of characters kept of a failure's text. Every report contains it, and a script may raise any text."""
FAILURES = "failures.log"


class JobFolder:
    """The files in a job's folder. checkpoint: newest checkpoint. failure: text of the newest failure.

    record: returns the state that a restarted controller needs. If a write fails, the failure is recorded and training
    continues. After a fault, checkpoints are more frequent for a while (`shorten`).
    """

    def __init__(self, spec: JobSpec, record: Callable[[], dict[str, Any]] = dict) -> None:
        self._folder, self._record = Path(spec.folder), record
        self._log = OutputLog(self._folder) if spec.logs else None
        job = f"{spec.session}/{spec.id}"
        self._storage = CheckpointStorage(spec.storage, job, self._folder, self.log_failure) if spec.storage else None
        self.checkpoint: Checkpoint | None = None
        self.failure = ""
        self._interval = self._longest = spec.faults.checkpoint_interval
        self._saving: asyncio.Task[None] | None = None
        self._saved_at = time.monotonic()
        self._turn = asyncio.Lock()

    def begin(self, resume: bool) -> dict[str, Any] | None:
        """If the job resumes, return the record of its earlier controller, or None if there is none. Otherwise remove
        the files of an earlier job of the same name.

        Raises CheckpointError if they cannot be removed, because the job would then continue from that job's state.
        """
        if not resume:
            drop_checkpoints(self._folder)
            if self._storage is not None:
                self._storage.clear()
            if self._folder.is_dir():
                (self._folder / RECORD).unlink(missing_ok=True)
            return None
        if self._storage is not None and (self.has_checkpoints or self._storage.fetch()):
            self._storage.offer()  # the newest checkpoint may not have been copied
        self.checkpoint = next(iter(list_checkpoints(self._folder)), None)
        path = self._folder / RECORD
        if not path.exists():
            if self.checkpoint is None:
                self.log_failure(f"{self._folder}: the files of the job's earlier controller are gone: it starts over")
            return None
        try:
            kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as wrong:
            self.log_failure(f"{path}: cannot be read, counting starts again: {wrong}")
            return None
        return kept

    @property
    def has_checkpoints(self) -> bool:
        """True if there is a checkpoint on disk, even a damaged one."""
        return bool(list_checkpoints(self._folder))

    def refuse(self, reason: str) -> None:
        """Set aside the newest checkpoint, which is intact but cannot be loaded by the program; the previous one is
        used.

        The file is only renamed and can still be examined.
        """
        if self.checkpoint is not None:
            path = Path(self.checkpoint.path)
            self.log_failure(f"{path}: cannot be loaded: {reason}")
            try:
                path.replace(path.with_suffix(".refused"))
            except OSError as stays:
                self.log_failure(f"{path}: cannot be set aside: {system_reason(stays)}")

    def newest_state(self) -> tuple[int, bytes] | None:
        """Step and content of the newest sound checkpoint. None if there is none; the job then starts over."""
        try:
            found = self._read_newest()
        except CheckpointError as damaged:
            self.log_failure(f"{damaged}; the job starts over")
            self.checkpoint = None
            return None
        if found is None:
            self._note_deleted("the job starts over")
            return None
        self.checkpoint, state, wrong = found
        for text in wrong:
            self.log_failure(text)
        return self.checkpoint.step, state

    def _read_newest(self) -> tuple[Checkpoint, bytes, list[str]] | None:
        """Call `read_newest`, and fetch a copy from object storage if the folder has no sound checkpoint."""
        try:
            found = read_newest(self._folder)
        except CheckpointError:
            if self._storage is None or not self._storage.fetch():
                raise
            return read_newest(self._folder)
        if found is None and self._storage is not None and self._storage.fetch():
            return read_newest(self._folder)
        return found

    def write(self, step: int, state: bytes) -> None:
        """Write a checkpoint. Raises CheckpointError if the disk refuses."""
        self._note_deleted("a new one is written")
        self.checkpoint = write_checkpoint(self._folder, step, state)
        if self._storage is not None:
            self._storage.offer()

    def due(self) -> bool:
        """True if a checkpoint is due and none is being written."""
        idle = self._saving is None or self._saving.done()
        return idle and time.monotonic() - self._saved_at >= self._interval

    def shorten(self, trained: float) -> None:
        """Shorten the checkpoint interval to at most half of `trained`, the time trained before workers died [s].

        A job whose workers keep dying then still makes progress. Each later checkpoint doubles the interval, up to the
        configured one.
        """
        self._interval = min(self._interval, trained / 2)

    def save_from(self, call: Any) -> None:
        """Save a worker's state in the background. call: pending Ray call that returns it between two chunks."""
        self._saved_at = time.monotonic()

        async def save() -> None:
            try:
                said = await result_of(call)
            except WorkerLostError:
                return  # the loss is handled where training results are awaited
            if not isinstance(said, Failure):
                await self.save(*said)

        self._saving = asyncio.ensure_future(save())

    async def save(self, step: int, state: bytes, finite: bool) -> bool:
        """Write a checkpoint if its weights are finite, then the record. Returns False if the former fails.

        Checkpoints are written one at a time, because two of the same step have the same file name.
        """
        written = True
        async with self._turn:
            try:
                if finite:
                    await asyncio.to_thread(self.write, step, state)
            except CheckpointError as refused:
                written = False
                self.log_failure(str(refused))
        self._saved_at = time.monotonic()
        self._interval = min(max(2 * self._interval, SHORTEST_INTERVAL_S), self._longest)
        self.write_record()
        return written

    def close(self) -> None:
        """Wait for the copy of the newest checkpoint, if copies are kept."""
        if self._storage is not None:
            self._storage.close()

    def _note_deleted(self, consequence: str) -> None:
        """Log a failure if something else has deleted the newest checkpoint. consequence: end of its text."""
        if self.checkpoint is not None and not Path(self.checkpoint.path).exists():
            self.log_failure(f"{self.checkpoint.path}: the checkpoint was deleted: {consequence}")
            self.checkpoint = None

    def write_record(self) -> None:
        """Write the record for a restarted controller."""
        try:
            write_text(self._folder / RECORD, json.dumps(self._record(), allow_nan=False), "the controller's record")
        except CheckpointError as refused:
            self.log_failure(str(refused))

    def say(self, text: str, at: float | None = None) -> None:
        """Append a line to the job's log, if its output is kept. at: time of the line [s of `time.time`]."""
        if self._log is not None:
            self._log.write(text, at)

    def log_failure(self, text: str) -> None:
        """Keep the text of a failure, also in the log. The middle of a text longer than `LONGEST_FAILURE` is left
        out."""
        text, half = encodable(text), LONGEST_FAILURE // 2
        if len(text) > LONGEST_FAILURE:
            text = f"{text[:half]}\n[{len(text) - 2 * half} characters are left out]\n{text[-half:]}"
        self.failure = text
        self.say(text)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / FAILURES).open("a", encoding="utf-8") as log:
                log.write(f"{stamp} {text.rstrip()}\n")
        except OSError as refused:
            self.failure = f"{text.rstrip()}\n(and the log cannot be written: {system_reason(refused)})"
