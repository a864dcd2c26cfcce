"""A file of jobs that other programs append to while a cluster runs, see `rlpto.core.cluster.JobSource`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from rlpto.core.jobs import Job
from rlpto.io.errors import TraceError
from rlpto.io.reading import parse_json
from rlpto.io.settings_text import first_problem
from rlpto.workloads.listed import ListedJob

LOOK_INTERVAL_S = 0.2
"""Time between two looks at a file from which more jobs are expected."""
LARGEST_LINE_BYTES = 65_536
"""Of a job in a followed file."""
CLOSED = {"closed": True}
"""The last line of a followed file, as JSON: no job comes after it."""
_EXPECTED = 'a JSON line a job, such as {"model": "cifar10", "submit": 60, "gpus": 2}, and at last {"closed": true}'


class FollowedFile:
    """A file of JSON lines, one job each in the form of `workload.jobs`, that may be appended to until a line
    `{"closed": true}`. A line is read once its end is written.

    make: the job of a line, whose number counts from 0. sleep: lets time pass until the next look.
    `poll` raises TraceError that names the line for what is no job, or was submitted before the line above it, and
    where the file has become shorter.
    """

    def __init__(
        self, path: Path, make: Callable[[ListedJob, int], Job], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._path, self._make, self._sleep = path, make, sleep
        self._read = self._lines = 0
        self._latest = 0.0
        self._names: set[str] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once the closing line has been read."""
        return self._closed

    def wait(self) -> None:
        """Wait until the next look at the file."""
        self._sleep(LOOK_INTERVAL_S)

    def poll(self) -> list[Job]:
        """The jobs of all whole lines that have been added."""
        if self._closed:
            return []
        return [job for line in self._new_lines() if (job := self._job(line)) is not None]

    def _new_lines(self) -> Sequence[bytes]:
        """Whole lines that were not read before."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._read:
                    raise TraceError(f"{self._path}: has become shorter, expected a file that is only appended to")
                file.seek(self._read)
                added = file.read()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise TraceError(f"{self._path}: cannot be read: {reason}, expected {_EXPECTED}") from None
        whole = added[: added.rfind(b"\n") + 1]
        if len(added) - len(whole) > LARGEST_LINE_BYTES:
            raise TraceError(f"{self._path}: a line of over {LARGEST_LINE_BYTES:,} bytes, expected {_EXPECTED}")
        self._read += len(whole)
        return whole.splitlines()

    def _job(self, line: bytes) -> Job | None:
        """The job of a line; None for an empty or the closing one."""
        self._lines += 1
        place = f"{self._path}:{self._lines}"
        if not line.strip():
            return None
        data = parse_json(line[:LARGEST_LINE_BYTES], place, _EXPECTED, TraceError)
        if self._closed:
            raise TraceError(f"{place}: follows the closing line, expected nothing after it")
        if data == CLOSED:
            self._closed = True
            return None
        try:
            entry = ListedJob.model_validate(data)
        except ValidationError as error:
            raise TraceError(f"{place}: {first_problem(error, ListedJob, 'the line')[1]}") from None
        if entry.count != 1:
            raise TraceError(f"{place}: count: expected 1, a line for each job")
        job = self._make(entry, len(self._names))
        if job.submit_time < self._latest:
            raise TraceError(f"{place}: submit {job.submit_time:g}, expected at least that above it, {self._latest:g}")
        if job.name in self._names:
            raise TraceError(f"{place}: a second job called {job.name}, expected a name of its own")
        self._names.add(job.name)
        self._latest = job.submit_time
        return job
