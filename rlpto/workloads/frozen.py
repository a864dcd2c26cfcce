"""Frozen workloads: a file holds the jobs of every window after models, work and classes were drawn.

Jobs drawn from a trace depend on the code that draws them. A file of drawn jobs does not.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlpto.core.jobs import FinishedJob, Job
from rlpto.core.stopping import parse_rule
from rlpto.io.errors import JobError, TraceError
from rlpto.io.files import whole_file
from rlpto.io.reading import LARGEST_TEXT_BYTES, MIB, check_file, parsing
from rlpto.performance.metrics import METRICS
from rlpto.performance.tables import JobType

_TEXT, _NUMBER, _COUNT = pa.string(), pa.float64(), pa.int64()
_SCHEMA = pa.schema(
    [
        ("window", _TEXT),
        ("name", _TEXT),
        ("submit_time", _NUMBER),
        ("model", _TEXT),
        ("epochs", _NUMBER),
        ("data_size", _NUMBER),
        ("requested_gpus", _COUNT),
        ("min_gpus", _COUNT),
        ("max_gpus", _COUNT),
        ("priority", _COUNT),
        ("batch_size", _COUNT),  # 0 if the job adapts it
        ("metric", _TEXT),
        ("stop", _TEXT),  # empty if the job never stops early
        ("user", _TEXT),
        ("gpu_types", _TEXT),  # with | between several; null, or without the column, all types are allowed
        ("past", pa.bool_()),  # whether the job had finished before; null, or without the column, it is the window's
    ]
)
_LATER = ("gpu_types", "past")
"""Columns that older files lack. Only jobs that need them have them in digests, which keeps older digests valid."""
_EXPECTED = "a parquet file of frozen jobs, as `rlpto bench build` writes it"
_MOST_JOBS = 1_000_000


@dataclass(frozen=True)
class FrozenJobs:
    """The jobs of windows, which are in order of time.

    windows: jobs by window. past: by window, jobs that had finished when it began, but not when an earlier one began.
    """

    windows: dict[str, list[Job]]
    past: dict[str, list[FinishedJob]] = field(default_factory=dict)

    def finished_before(self, window: str) -> tuple[FinishedJob, ...]:
        """All jobs that had finished when a window began."""
        earlier = list(self.windows)[: list(self.windows).index(window) + 1]
        return tuple(job for name in earlier for job in self.past.get(name, ()))


def write_jobs(jobs: FrozenJobs, path: Path) -> None:
    """Write the jobs of windows to a parquet file, completely or not at all."""
    table = pa.Table.from_pylist(_rows(jobs), schema=_SCHEMA)
    with whole_file(path, "frozen jobs", TraceError) as unfinished:
        pq.write_table(table, unfinished, compression="zstd", compression_level=19)


def read_jobs(path: Path) -> FrozenJobs:
    """Read the jobs of windows. Raises TraceError if the file is missing or broken, or a job is invalid."""
    check_file(path, _EXPECTED, TraceError, LARGEST_TEXT_BYTES)
    with parsing(path, _EXPECTED, TraceError):
        file = pq.ParquetFile(path, thrift_string_size_limit=MIB, thrift_container_size_limit=MIB)
        if file.metadata.num_rows > _MOST_JOBS:
            raise ValueError(f"{file.metadata.num_rows:,} jobs")
        have = file.schema_arrow.names
        schema = pa.schema([column for column in _SCHEMA if column.name not in _LATER or column.name in have])
        rows = file.read(columns=schema.names, use_threads=False).select(schema.names).cast(schema).to_pylist()
    found = FrozenJobs({})
    for row in rows:
        window, past = row.pop("window"), row.pop("past", None)
        names = tuple(row["gpu_types"].split("|")) if row.get("gpu_types") else ()
        own = {"batch_size": row["batch_size"] or None, "gpu_types": names}
        try:
            if past:
                found.past.setdefault(window, []).append(_finished(row | own))
            else:
                stop = parse_rule(row["stop"]) if row["stop"] else None
                found.windows.setdefault(window, []).append(Job(**row | own | {"stop": stop}))
        except (JobError, ValueError, TypeError) as wrong:
            raise TraceError(f"{path}: {wrong}") from None
    if not found.windows:
        raise TraceError(f"{path}: no jobs, expected {_EXPECTED}")
    if unknown := found.past.keys() - found.windows.keys():
        raise TraceError(f"{path}: finished jobs before window {min(unknown)}, which has no jobs")
    return found


def digest_of(jobs: FrozenJobs) -> str:
    """Return the SHA-256 digest of the jobs, which does not depend on their file's compression."""
    return hashlib.sha256(json.dumps(_rows(jobs)).encode()).hexdigest()


def _finished(row: dict[str, Any]) -> FinishedJob:
    """A job that had finished. Raises ValueError or TypeError for an invalid one."""
    job_type = JobType(row["model"], row["batch_size"], row["metric"], gpu_types=row["gpu_types"])
    if not row["model"] or row["metric"] not in METRICS or not 0 < row["epochs"] < math.inf:
        raise ValueError(f"a finished job of model {row['model']}, metric {row['metric']} and {row['epochs']} epochs")
    return FinishedJob(job_type, row["user"] or "", row["epochs"])


def _rows(jobs: FrozenJobs) -> list[dict[str, Any]]:
    """Return the jobs as rows: jobs of windows first, then jobs that had finished."""
    rows: list[dict[str, Any]] = []
    for window, job in ((window, job) for window, of_window in jobs.windows.items() for job in of_window):
        own = {"window": window, "batch_size": job.batch_size or 0, "stop": "" if job.stop is None else job.stop.text}
        common = {name: getattr(job, name, None) for name in _SCHEMA.names if name not in _LATER}
        rows.append(common | own | _limits(job.gpu_types))
    for window, (job_type, user, epochs) in ((window, job) for window, past in jobs.past.items() for job in past):
        own = {"model": job_type.model, "batch_size": job_type.batch_size or 0, "metric": job_type.metric}
        rows.append(
            {"window": window, "user": user, "epochs": epochs, **own, **_limits(job_type.gpu_types), "past": True}
        )
    return rows


def _limits(gpu_types: tuple[str, ...]) -> dict[str, str]:
    return {"gpu_types": "|".join(gpu_types)} if gpu_types else {}
