"""A trace: jobs with users and submit times, in one form for all file formats."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.core.stopping import RULE_TEXT, are_rules
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.errors import TraceError
from rlpto.io.files import whole_file
from rlpto.io.reading import LARGEST_TEXT_BYTES, MIB, check_file, one_line, parse_json, parsing
from rlpto.performance.efficiency import LARGEST_BATCH
from rlpto.performance.metrics import METRICS
from rlpto.workloads.calibration import LARGEST_GPUS

_COLUMNS: dict[str, tuple[type, str | float]] = {
    "name": (str, ""),
    "submit_time": (float, 0.0),
    "duration": (float, np.nan),
    "gpus": (int, 1),
    "user": (str, ""),
    "group": (str, ""),
    "priority": (int, -1),
    "model": (str, ""),
    "batch_size": (int, 0),
    "metric": (str, ""),
    "stop": (str, ""),
    "gpu_type": (str, ""),
    "service_class": (str, ""),
}
"""Type of every column, and the value that stands for unknown."""
COLUMNS = tuple(_COLUMNS)
"""Columns of `Trace.jobs`, in this order."""
LONGEST_S = 40 * 365 * 86_400.0
"""Longest span of a trace, first to last submission, and longest duration of a job."""

_METADATA_KEY = b"rlpto.trace"
_SCHEMA = 1
_LATER = ("gpu_type", "service_class")  # columns that older files lack
_EXPECTED = "a trace made by `rlpto trace import` or `generate`"
_MOST_JOBS = 20_000_000
EARLIEST, LATEST = pd.Timestamp("1970-01-01"), pd.Timestamp("2200-01-01")
"""Allowed local times of a trace's second 0."""
_ARROW_TYPES = {str: pa.string(), float: pa.float64(), int: pa.int64()}
_PACKING: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 15,
    "use_dictionary": ["gpus", "priority", "batch_size", "user", "group", "model", "metric", "stop", *_LATER],
    "column_encoding": {
        "name": "DELTA_BYTE_ARRAY",
        "submit_time": "BYTE_STREAM_SPLIT",
        "duration": "BYTE_STREAM_SPLIT",
    },
}
"""Compression of traces: a quarter to a half of the size with parquet's defaults."""
_ARROW = pa.schema([(name, _ARROW_TYPES[kind]) for name, (kind, _) in _COLUMNS.items()])


@dataclass(frozen=True)
class Trace:
    """Recorded (or generated) jobs in order of submission.

    jobs: one row per job with the columns
        name (text, unique), submit_time [s since the origin, ascending, 0 or more],
        duration [s on `gpus` GPUs; NaN unknown], gpus (1 or more), user, group (virtual cluster or
        queue), priority (class 0 to 2; -1 unknown), model ('' unknown), batch_size [samples; 0 unknown],
        metric (by which the job chooses its batch size; '' unknown),
        stop (rule for stopping early, in the syntax of `rlpto.core.stopping.parse_rule`; '' unknown),
        gpu_type (requested, read by `allowed_types`; '' unknown), service_class (such as Spot; '' unknown; not used).
    origin: local time of second 0, which determines the hour of the week; None if the file does not state it.
    source: origin of the jobs, for messages and captions.

    Raises TraceError, naming the source and the job, if a column is missing or a value is out of range.
    """

    jobs: pd.DataFrame
    origin: pd.Timestamp | None
    source: str

    def __post_init__(self) -> None:
        missing = [name for name in COLUMNS if name not in self.jobs.columns]
        if missing:
            raise TraceError(f"{self.source}: column {missing[0]} missing, expected {', '.join(COLUMNS)}")
        names, batch = self.jobs["name"], self.integers("batch_size")
        submit, duration = self.submit_time, self.duration
        ran = np.isnan(duration) | ((duration >= 0) & (duration <= LONGEST_S))
        within = f"seconds, 0 or more and at most {LONGEST_S:g}"
        checks = (
            ("submit_time", (submit >= 0) & (submit <= LONGEST_S), within),
            ("submit_time", np.diff(submit, prepend=-np.inf) >= 0, "ascending times"),
            ("duration", ran, f"0 to {LONGEST_S:g}"),
            ("gpus", (self.gpus >= 1) & (self.gpus <= LARGEST_GPUS), f"1 to {LARGEST_GPUS:,}"),
            ("priority", (self.priority >= -1) & (self.priority < len(PRIORITY_CLASSES)), "-1 to 2"),
            ("batch_size", (batch >= 0) & (batch <= LARGEST_BATCH), f"0 to {LARGEST_BATCH:,}"),
            ("metric", self.jobs["metric"].isin(["", *METRICS]).to_numpy(), f"one of {', '.join(METRICS)}"),
            ("stop", are_rules(self.texts("stop")), RULE_TEXT),
            ("name", ~names.duplicated().to_numpy(), "a name that no other job has"),
        )
        for column, good, expected in checks:
            if not good.all():
                at = int(np.argmin(good))
                value = self.jobs[column].iloc[at]
                raise TraceError(f"{self.source}: job {names.iloc[at]}: {column} {value}, expected {expected}")

    def __len__(self) -> int:
        return len(self.jobs)

    def integers(self, column: str) -> IntArray:
        """Return a column as int64 [M]."""
        return self.jobs[column].to_numpy(dtype=np.int64)

    def texts(self, column: str) -> list[str]:
        """Return a column as M strings."""
        return [*map(str, self.jobs[column].to_numpy(dtype=object))]

    @property
    def submit_time(self) -> FloatArray:
        """[M] seconds since the origin, ascending."""
        return self.jobs["submit_time"].to_numpy(dtype=np.float64)

    @property
    def duration(self) -> FloatArray:
        """[M] seconds on the recorded GPUs; NaN unknown."""
        return self.jobs["duration"].to_numpy(dtype=np.float64)

    @property
    def gpus(self) -> IntArray:
        """[M] requested GPUs."""
        return self.integers("gpus")

    @property
    def priority(self) -> IntArray:
        """[M] priority class, -1 unknown."""
        return self.integers("priority")

    def allowed_types(self, gpus_by_type: Mapping[str, int]) -> tuple[list[tuple[str, ...]], IntArray]:
        """Return the GPU types [M] that each job may use on a cluster (empty if all), and the job's most GPUs [M].

        gpus_by_type: GPUs by GPU type. A job may use all types if it requests none of them, and if there is only one.
        """
        found = {text: matching_types(text, gpus_by_type) for text in set(self.texts("gpu_type"))}
        allowed = [found[text] if len(found[text]) < len(gpus_by_type) else () for text in self.texts("gpu_type")]
        most = {names: max((gpus_by_type[name] for name in names or gpus_by_type), default=0) for names in set(allowed)}
        return allowed, np.array([most[names] for names in allowed], dtype=np.int64)

    def take(self, rows: IntArray | np.ndarray[Any, np.dtype[np.bool_]]) -> Trace:
        """Return the jobs in some rows (ascending positions, or a mask)."""
        positions = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return Trace(self.jobs.iloc[positions].reset_index(drop=True), self.origin, self.source)

    def slice(self, start: float, end: float) -> Trace:
        """Return the jobs submitted in [start, end), with `start` [s] as the new second 0."""
        if not 0 <= start < end:
            raise TraceError(f"{self.source}: slice from {start} s to {end} s, expected 0 <= start < end")
        first, last = np.searchsorted(self.submit_time, (start, end))
        jobs = self.jobs.iloc[first:last].reset_index(drop=True)
        jobs = jobs.assign(submit_time=jobs["submit_time"] - start)
        origin = None if self.origin is None else self.origin + pd.Timedelta(seconds=start)
        return Trace(jobs, origin, self.source)


def matching_types(text: str, gpu_types: Iterable[str]) -> tuple[str, ...]:
    """Return the GPU types of a cluster that are named in a text, with | between several."""
    return tuple(gpu_type for gpu_type in gpu_types if any(_same_type(name, gpu_type) for name in text.split("|")))


def _same_type(name: str, other: str) -> bool:
    """Return True if all parts of one name, ignoring case, are parts, or two joined parts, of the other. A100-SXM4-80GB
    has the parts a100, sxm4 and 80gb; V100M32 has v100 and m32."""
    own, its = (re.findall(r"[^\W\d_]+\d*|\d+[^\W\d_]*", text.casefold()) for text in (name, other))
    own_all, its_all = ({*parts, *map("".join, pairwise(parts))} for parts in (own, its))
    return bool(own and its) and (its_all.issuperset(own) or own_all.issuperset(its))


def lacking_types(traces: Sequence[Trace], gpu_types: Sequence[str]) -> list[str]:
    """Return a sentence if jobs request GPU types that a cluster with several types lacks."""
    asked = Counter(text for trace in traces for text in trace.texts("gpu_type") if text and len(gpu_types) > 1)
    missing = Counter({text: count for text, count in asked.items() if not matching_types(text, gpu_types)})
    jobs = f"{missing.total():,} of {sum(map(len, traces)):,} jobs"
    often = ", ".join(f"{one_line(text, 40)} ({count:,})" for text, count in missing.most_common(5))
    return [f"{jobs} ask for GPU types that the cluster lacks and may use any: {often}."] if missing else []


def make_trace(
    columns: Mapping[str, AnyArray | Sequence[Any]], source: str, origin: pd.Timestamp | None = None
) -> Trace:
    """Make a trace from columns of equal length in any order of time; missing columns are unknown. Jobs are sorted by
    submit_time, equal times stay in order. Repeated names get `#2`, `#3`... Raises TraceError for invalid values."""
    foreign = next((name for name in columns if name not in COLUMNS), None)
    if foreign is not None:
        raise TraceError(f"{source}: column {foreign} is none of {', '.join(COLUMNS)}")
    with parsing(source, "columns of equal length, of numbers or of text", TraceError):
        count = len(columns["submit_time"])
        jobs = pd.DataFrame(index=range(count))
        for name, (kind, unknown) in _COLUMNS.items():
            values = columns.get(name, np.full(count, unknown))
            if kind is str:
                jobs[name] = pd.Series(values, dtype=object, index=jobs.index).astype(str)
            else:
                jobs[name] = _flat(values, np.float64 if kind is float else np.int64)
    jobs = jobs.sort_values("submit_time", kind="stable", ignore_index=True)
    jobs["name"] = _unique_names(jobs["name"])
    return Trace(jobs, origin, source)


def _flat(values: AnyArray | Sequence[Any], kind: type[np.float64 | np.int64]) -> AnyArray:
    """Return a column as an array. Raises ValueError unless it has one dimension; pandas accepts an empty table."""
    column = np.asarray(values, dtype=kind)
    if column.ndim != 1:
        raise ValueError(f"a column of {column.ndim} dimensions")
    return column


def _unique_names(names: pd.Series[Any]) -> pd.Series[Any]:
    """Append `#2`, `#3`... to repeated names, even if the trace already has a job named `x#2`."""
    while names.duplicated().any():
        again = names.groupby(names).cumcount()
        names = names.where(again == 0, names + "#" + (again + 1).astype(str))
    return names


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace to a parquet file, completely or not at all."""
    about = {
        "schema": _SCHEMA,
        "origin": None if trace.origin is None else trace.origin.isoformat(),
        "source": trace.source,
    }
    table = pa.Table.from_pandas(trace.jobs[list(COLUMNS)], preserve_index=False)
    table = table.replace_schema_metadata({_METADATA_KEY: json.dumps(about).encode()})
    with whole_file(path, "a trace", TraceError) as unfinished:
        pq.write_table(table, unfinished, **_PACKING)


def read_trace(path: Path) -> Trace:
    """Read a file of `write_trace`. Raises TraceError if the file is missing, is no parquet file, or was not written
    by `write_trace`."""
    check_file(path, _EXPECTED, TraceError, LARGEST_TEXT_BYTES)
    with parsing(path, _EXPECTED, TraceError):
        file = pq.ParquetFile(path, thrift_string_size_limit=MIB, thrift_container_size_limit=MIB)
        about = (file.schema_arrow.metadata or {}).get(_METADATA_KEY)
        rows = file.metadata.num_rows
    if about is None:
        advice = "write its table as csv, and import that with `rlpto trace import table`"
        raise TraceError(f"{path}: a parquet file, but not a trace of RLPTO: {advice}")
    facts = parse_json(about, path, _EXPECTED, TraceError)
    if not isinstance(facts, dict) or facts.get("schema") != _SCHEMA:
        schema = facts.get("schema") if isinstance(facts, dict) else None
        raise TraceError(f"{path}: trace of schema {one_line(repr(schema))}, expected {_SCHEMA}: import it again")
    if rows > _MOST_JOBS:
        raise TraceError(f"{path}: {rows:,} jobs, expected at most {_MOST_JOBS:,}")
    with parsing(path, _EXPECTED, TraceError):
        names = file.schema_arrow.names
        table = file.read(columns=[name for name in COLUMNS if name in names], use_threads=False)
        for name in set(_LATER) - set(names):
            table = table.append_column(name, pa.repeat("", rows))
        table = table.select(COLUMNS).cast(_ARROW)
        empty = next((name for name in COLUMNS if _COLUMNS[name][0] is not float and table[name].null_count), None)
        if empty is not None:
            raise ValueError(f"empty values of {empty}")
        origin = None if facts["origin"] is None else pd.Timestamp(facts["origin"])
        if origin is not None and not (EARLIEST <= origin <= LATEST):
            raise ValueError(f"origin {origin}")
        return Trace(table.to_pandas(), origin, str(facts["source"]))


def is_trace_file(path: Path) -> bool:
    """Return whether a file is a parquet file, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError:
        return False
