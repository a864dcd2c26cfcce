"""Run records as NumPy archives: arrays and strings only, nothing is ever unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rlpto.arrays import AnyArray
from rlpto.errors import CheckpointError
from rlpto.files import whole_file
from rlpto.records import AllocationChanges, DecisionRecords, JobRecords, PolicySwitches, RunRecord

_SCALARS: dict[str, type] = {"policy": str, "window": str, "seed": int, "capacity": int, "wall_seconds": float}
_GROUPS: dict[str, type] = {"jobs": JobRecords, "decisions": DecisionRecords, "changes": AllocationChanges}
_SWITCHES = {f"switches.{field.name}" for field in fields(PolicySwitches)}
"""Written only where policies were switched."""
_STRINGS = {"jobs.names", "jobs.models", "switches.policy"}

T = TypeVar("T")


def save_record(record: RunRecord, path: Path) -> None:
    """Write a record to `path` (.npz), atomically. Raises CheckpointError if that fails."""
    arrays = {name: np.array(getattr(record, name)) for name in _SCALARS}
    for group in (*_GROUPS, *(["switches"] if record.switches.policy else [])):
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
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays: dict[str, AnyArray] = {name: archive[name] for name in archive.files}
        scalars: dict[str, Any] = {name: kind(arrays[name].item()) for name, kind in _SCALARS.items()}
        return RunRecord(
            jobs=_part("jobs", JobRecords, arrays),
            decisions=_part("decisions", DecisionRecords, arrays),
            changes=_part("changes", AllocationChanges, arrays),
            switches=_part("switches", PolicySwitches, arrays) if _SWITCHES & arrays.keys() else PolicySwitches(),
            **scalars,
        )
    except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: not a readable run record ({error}), expected an archive of RLPTO") from error


def is_record(path: Path) -> bool:
    """True if `path` is an archive with all the names of a record; cheap, does not read the arrays."""
    names = {*_SCALARS, *(f"{group}.{field.name}" for group, kind in _GROUPS.items() for field in fields(kind))}
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = set(archive.files)
            return found in (names, names | _SWITCHES)
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile):
        return False


def _part(group: str, kind: type[T], arrays: dict[str, AnyArray]) -> T:
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        key = f"{group}.{field.name}"
        values[field.name] = tuple(arrays[key].tolist()) if key in _STRINGS else arrays[key]
    return kind(**values)
