"""Files of run records: what a policy did with a workload, as an archive (`rlpto.io.archive`)."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlpto.core.records import AllocationChanges, DecisionRecords, JobRecords, NodeRecords, PolicySwitches, RunRecord
from rlpto.core.rewards import REWARD_PARTS
from rlpto.io.archive import archive_bytes, read_archive
from rlpto.io.arrays import AnyArray, IntArray
from rlpto.io.errors import CheckpointError
from rlpto.io.reading import parsing

_SCALARS: dict[str, type] = {
    "policy": str, "window": str, "seed": int, "capacity": int, "wall_seconds": float, "end": float,
}  # fmt: skip
_GROUPS: dict[str, type] = {"jobs": JobRecords, "decisions": DecisionRecords, "changes": AllocationChanges}
_OPTIONAL: dict[str, type] = {"switches": PolicySwitches, "rented": NodeRecords}
"""Groups of arrays written only if policies were switched, or nodes are rented."""
_GROUPS |= _OPTIONAL
_KINDS = {"IntArray": "i", "FloatArray": "f"}
RECORD = "rlpto record 2"
"""Format of a stored record."""


def record_bytes(record: RunRecord) -> bytes:
    """The file of a record, which `load_record` reads. Raises CheckpointError if it would be too large."""
    values: dict[str, Any] = {name: getattr(record, name) for name in _SCALARS}
    for group in (group for group in _GROUPS if group not in _OPTIONAL or len(getattr(record, group).time)):
        part = getattr(record, group)
        values |= {f"{group}.{field.name}": getattr(part, field.name) for field in fields(part)}
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    arrays = {name: np.asarray(value) for name, value in values.items() if not isinstance(value, str | tuple)}
    for name, column in values.items():
        if isinstance(column, tuple):
            arrays[name], arrays[f"{name}.ends"] = _joined(column)
    return archive_bytes({"format": RECORD, **texts}, arrays, "a record cannot be written")


def _joined(column: tuple[str, ...]) -> tuple[AnyArray, IntArray]:
    """The UTF-8 of texts one after another, and [n] where each ends. The manifest is too small for a million names."""
    encoded = [text.encode() for text in column]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([len(text) for text in encoded], dtype=np.int64)


def _split(joined: AnyArray, ends: AnyArray) -> tuple[str, ...]:
    """The texts of `_joined`. Raises ValueError if these are no such arrays."""
    typed = joined.dtype == np.uint8 and ends.dtype == np.int64 and joined.ndim == ends.ndim == 1
    if not typed or (np.diff(ends, prepend=0, append=len(joined)) < 0).any():
        raise ValueError("bytes and ends that do not make texts")
    content, starts = joined.tobytes(), [0, *ends.tolist()]
    return tuple(content[start:end].decode() for start, end in pairwise(starts))


def load_record(path: Path) -> RunRecord:
    """Read a file of `record_bytes`. Raises CheckpointError for any other file."""
    archive = read_archive(path, (RECORD,))
    values: dict[str, Any] = archive.manifest | archive.arrays
    with parsing(path, RECORD, CheckpointError):
        scalars: dict[str, Any] = {name: kind(np.asarray(values[name]).item()) for name, kind in _SCALARS.items()}
        there = {name.partition(".")[0] for name in values}
        parts: dict[str, Any] = {group: _part(group, _GROUPS[group], values) for group in _GROUPS if group in there}
        record = RunRecord(**scalars, **parts)
        if not np.isin(record.changes.job, np.arange(len(record.jobs.names))).all():
            raise ValueError("changes.job: jobs that there are not")
        return record


def _part(group: str, kind: type, values: dict[str, Any]) -> object:
    """Read one group of a record. All its columns have one row per entry."""
    found: dict[str, Any] = {}
    first = f"{group}.{fields(kind)[0].name}"
    rows = len(values.get(f"{first}.ends", values[first]))
    for field in fields(kind):
        key = f"{group}.{field.name}"
        shape = (rows, len(REWARD_PARTS)) if field.name == "reward" else (rows,)
        value = values[key]
        if str(field.type) not in _KINDS:
            if len(values[f"{key}.ends"]) != rows:
                raise ValueError(f"{key}: expected {rows} texts")
            value = _split(value, values[f"{key}.ends"])
        elif not isinstance(value, np.ndarray) or value.shape != shape or value.dtype.kind != _KINDS[str(field.type)]:
            raise ValueError(f"{key}: expected numbers of shape {shape}")
        found[field.name] = value
    return kind(**found)
