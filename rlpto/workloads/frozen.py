"""Frozen workloads: a file holds the jobs of every window after models, work and classes were drawn.

Jobs drawn from a trace depend on the code that draws them. A file of drawn jobs does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlpto.core.jobs import Job
from rlpto.core.stopping import parse_rule
from rlpto.io.errors import JobError, TraceError
from rlpto.io.files import whole_file
from rlpto.io.reading import LARGEST_TEXT_BYTES, MIB, check_file, parsing

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
    ]
)
_EXPECTED = "a parquet file of frozen jobs, as `rlpto bench build` writes it"
_MOST_JOBS = 1_000_000


def write_jobs(windows: Mapping[str, Sequence[Job]], path: Path) -> None:
    """Write the jobs of windows to a parquet file, completely or not at all."""
    table = pa.Table.from_pylist(_rows(windows), schema=_SCHEMA)
    with whole_file(path, "frozen jobs", TraceError) as unfinished:
        pq.write_table(table, unfinished, compression="zstd", compression_level=19)


def read_jobs(path: Path) -> dict[str, list[Job]]:
    """Read the jobs by window. Raises TraceError if the file is missing or broken, or a job is invalid."""
    check_file(path, _EXPECTED, TraceError, LARGEST_TEXT_BYTES)
    with parsing(path, _EXPECTED, TraceError):
        file = pq.ParquetFile(path, thrift_string_size_limit=MIB, thrift_container_size_limit=MIB)
        if file.metadata.num_rows > _MOST_JOBS:
            raise ValueError(f"{file.metadata.num_rows:,} jobs")
        schema = _SCHEMA if "gpu_types" in file.schema_arrow.names else pa.schema([*_SCHEMA][:-1])
        rows = file.read(columns=schema.names, use_threads=False).select(schema.names).cast(schema).to_pylist()
    windows: dict[str, list[Job]] = {}
    for row in rows:
        try:
            stop = parse_rule(row["stop"]) if row["stop"] else None
            names = tuple(row["gpu_types"].split("|")) if row.get("gpu_types") else ()
            own = {"batch_size": row["batch_size"] or None, "stop": stop, "gpu_types": names}
            windows.setdefault(row.pop("window"), []).append(Job(**row | own))
        except (JobError, ValueError, TypeError) as wrong:
            raise TraceError(f"{path}: {wrong}") from None
    if not windows:
        raise TraceError(f"{path}: no jobs, expected {_EXPECTED}")
    return windows


def digest_of(windows: Mapping[str, Sequence[Job]]) -> str:
    """Return the SHA-256 digest of the jobs, which does not depend on their file's compression."""
    return hashlib.sha256(json.dumps(_rows(windows)).encode()).hexdigest()


def _rows(windows: Mapping[str, Sequence[Job]]) -> list[dict[str, Any]]:
    """Return the jobs as rows. Only jobs limited to some GPU types have the column gpu_types, which keeps older digests
    valid."""
    rows: list[dict[str, Any]] = []
    for window, job in ((window, job) for window, jobs in windows.items() for job in jobs):
        own = {"window": window, "batch_size": job.batch_size or 0, "stop": "" if job.stop is None else job.stop.text}
        names = {"gpu_types": "|".join(job.gpu_types)} if job.gpu_types else {}
        rows.append({name: getattr(job, name, None) for name in _SCHEMA.names[:-1]} | own | names)
    return rows
