"""Run records as NumPy archives: arrays and strings only, nothing is ever unpickled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from rlpto.core.records import AllocationChanges, DecisionRecords, JobRecords, PolicySwitches, RunRecord
from rlpto.core.rewards import REWARD_PARTS
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import CheckpointError
from rlpto.io.files import whole_file
from rlpto.io.reading import parsing, read_arrays

_SCALARS: dict[str, type] = {"policy": str, "window": str, "seed": int, "capacity": int, "wall_seconds": float}
_GROUPS: dict[str, type] = {"jobs": JobRecords, "decisions": DecisionRecords, "changes": AllocationChanges}
_GROUPS |= {"switches": PolicySwitches}  # written only where policies were switched
_KINDS = {"IntArray": "i", "FloatArray": "f"}
_EXPECTED = "a run record"
_STRINGS = {"jobs.names", "jobs.models", "switches.policy"}


def save_record(record: RunRecord, path: Path) -> None:
    """Write a record to `path` (.npz), atomically. Raises CheckpointError if that fails."""
    arrays = {name: np.array(getattr(record, name)) for name in _SCALARS}
    for group in (group for group in _GROUPS if group != "switches" or record.switches.policy):
        part = getattr(record, group)
        for field in fields(part):
            value = getattr(part, field.name)
            # An empty array of strings would otherwise become one of floats.
            arrays[f"{group}.{field.name}"] = np.array(value, dtype=np.str_) if isinstance(value, tuple) else value
    # NumPy's stubs take every keyword for the option allow_pickle.
    save: Callable[..., None] = np.savez_compressed
    with whole_file(path, "a record") as unfinished, unfinished.open("wb") as file:
        save(file, allow_pickle=False, **arrays)


def load_record(path: Path) -> RunRecord:
    """Read what `save_record` has written. Raises CheckpointError if `path` is not that."""
    arrays = read_arrays(path, _EXPECTED, CheckpointError)
    with parsing(path, _EXPECTED, CheckpointError):
        scalars: dict[str, Any] = {name: kind(arrays[name].item()) for name, kind in _SCALARS.items()}
        there = {name.partition(".")[0] for name in arrays}
        parts: dict[str, Any] = {group: _part(group, _GROUPS[group], arrays) for group in _GROUPS if group in there}
        record = RunRecord(**scalars, **parts)
        if not np.isin(record.changes.job, np.arange(len(record.jobs.names))).all():
            raise ValueError("changes.job: jobs that there are not")
        return record


def _part(group: str, kind: type, arrays: dict[str, AnyArray]) -> object:
    """One group of a record. All its arrays have one row per entry."""
    values: dict[str, Any] = {}
    rows = len(arrays[f"{group}.{fields(kind)[0].name}"])  # type: ignore[arg-type]
    for field in fields(kind):  # type: ignore[arg-type]
        key = f"{group}.{field.name}"
        shape = (rows, len(REWARD_PARTS)) if field.name == "reward" else (rows,)
        wanted = "U" if key in _STRINGS else _KINDS[str(field.type)]
        array = arrays[key]
        if array.shape != shape or array.dtype.kind != wanted:
            raise ValueError(f"{key}: {array.dtype} of shape {array.shape}")
        values[field.name] = tuple(array.tolist()) if key in _STRINGS else array
    return kind(**values)
