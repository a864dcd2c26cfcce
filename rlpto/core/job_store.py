"""The store of all jobs that a cluster knows: their records, and how they are built from jobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlpto.core.jobs import JOB, Job, user_code
from rlpto.core.stopping import StopRule, stop_epoch
from rlpto.io.arrays import AnyArray, IntArray
from rlpto.io.errors import JobError
from rlpto.performance.tables import SpeedTables


class JobStore:
    """All jobs a cluster knows: M records of `JOB` in order of submission.

    records: [M] JOB. Every column is also an attribute, a view of the records: `store.progress`, [M].
    room: array that holds the records and spare capacity behind them.
    """

    def __init__(self, records: AnyArray) -> None:
        self.records = self.room = records

    def __len__(self) -> int:
        return len(self.records)

    def append(self, records: AnyArray) -> None:
        """Add [m] JOB of jobs submitted no earlier than the present ones; `room` doubles if it is too small.

        Column arrays accessed before the call are not updated.
        """
        count, wanted = len(self.records), len(self.records) + len(records)
        if wanted > len(self.room):
            room = np.zeros(max(2 * len(self.room), wanted), dtype=JOB)
            room[:count] = self.records
            self.room = room
        self.room[count:wanted] = records
        for name in JOB.names or ():
            self.__dict__.pop(name, None)
        self.records = self.room[:wanted]

    def keep(self, index: IntArray) -> None:
        """Remove all jobs except those at `index` [n], and renumber these in the given order."""
        for name in JOB.names or ():
            self.__dict__.pop(name, None)
        self.records = self.room = self.records[index]

    def __getattr__(self, name: str) -> AnyArray:
        if name.startswith("_") or name in ("records", "room") or name not in (JOB.names or ()):
            raise AttributeError(f"{type(self).__name__} has no column {name}")
        column: AnyArray = self.records[name]
        self.__dict__[name] = column  # found without this function from now on
        return column

    def take(self, index: IntArray) -> JobStore:
        """Copy the jobs at `index` [n] in their present state."""
        return JobStore(self.records[index])

    @classmethod
    def from_jobs(cls, jobs: Sequence[Job], tables: SpeedTables) -> JobStore:
        """Create records of `jobs`, which must be sorted by submit time; tables must contain all their types.

        Limits of jobs with allowed sizes are set to allowed sizes: the fewest GPUs up, requested and most GPUs down.
        Raises JobError if the jobs are not sorted, the tables lack a job's type or its max_gpus, or a job fits no GPU
        type with the GPUs that it may have.
        """
        records = np.zeros(len(jobs), dtype=JOB)
        index = tables.submitted
        for column in ("submit_time", "epochs", "data_size", "requested_gpus", "min_gpus", "max_gpus", "priority"):
            records[column] = [getattr(job, column) for job in jobs]
        records["user"] = [user_code(job.user) for job in jobs]
        if np.any(np.diff(records["submit_time"]) < 0):
            raise JobError("jobs must be sorted by submit_time")
        types = [job.type for job in jobs]
        foreign = next((job for job, job_type in zip(jobs, types, strict=True) if job_type not in index), None)
        if foreign is not None:
            raise JobError(
                f"job {foreign.name}: no speed table for model {foreign.model} with batch_size {foreign.batch_size} "
                f"and metric {foreign.metric}"
            )
        if len(jobs) and records["max_gpus"].max() > tables.max_gpus:
            worst = jobs[int(records["max_gpus"].argmax())]
            raise JobError(f"job {worst.name}: max_gpus {worst.max_gpus}, but speed tables end at {tables.max_gpus}")
        records["type_index"] = records["estimated_type"] = [index[job_type] for job_type in types]
        if tables.floor_size.size:
            _set_limits(jobs, records, tables)
        records["scale"] = tables.samples[records["type_index"]] / records["data_size"]
        records["start_time"] = records["finish_time"] = records["measured_accuracy"] = np.nan
        records["reached"] = records["lost"] = np.nan
        records["finish_at"] = np.inf
        records["wait_start"] = records["submit_time"]
        records["stop_epoch"] = stop_epochs(jobs, tables)
        return cls(records)


def _set_limits(jobs: Sequence[Job], records: AnyArray, tables: SpeedTables) -> None:
    """Set the limits in records [M] JOB to sizes that are allowed on some GPU type. Raises JobError if none is."""
    floor_size = tables.floor_size_anywhere[records["type_index"]]
    rows, at = np.arange(len(records)), np.arange(tables.max_gpus + 1)
    enough = (floor_size == at) & (at >= records["min_gpus"][:, None])
    most = floor_size[rows, records["max_gpus"]]
    fewest = np.where(enough.any(axis=1), enough.argmax(axis=1), len(at))
    for row in np.flatnonzero(fewest > most)[:1].tolist():
        job, sizes = jobs[row], np.unique(floor_size[row][floor_size[row] > 0]).tolist()
        names = ", ".join(job.gpu_types or tables.gpu_types)
        here = f", here on {names}" if len(tables.gpu_types) > 1 else ""
        if not sizes:
            raise JobError(
                f"job {job.name}: model {job.model} fits on no GPU type here ({names}) with the "
                f"GPUs that there are of each, and up to {tables.max_gpus}"
            )
        raise JobError(
            f"job {job.name}: may have {job.min_gpus} to {job.max_gpus} GPUs, but model {job.model} runs on "
            f"{', '.join(map(str, sizes))} only{here} (min_gpus, max_gpus)"
        )
    records["min_gpus"], records["max_gpus"] = fewest, most
    records["requested_gpus"] = np.maximum(floor_size[rows, records["requested_gpus"]], fewest)


def stop_epochs(jobs: Sequence[Job], tables: SpeedTables) -> list[float]:
    """Epochs after which each job ends, by the accuracy curve of its submitted type; computed once for equal jobs."""
    ends: dict[tuple[int, float, StopRule], float] = {}
    found = []
    for job in jobs:
        if job.stop is None:
            found.append(job.epochs)
            continue
        number = tables.submitted[job.type]
        alike = (number, job.epochs, job.stop)
        if alike not in ends:
            ends[alike] = stop_epoch(job.stop, job.epochs, tables.accuracy[number, : tables.epochs[number] + 1])
        found.append(ends[alike])
    return found
