"""A fitted forecaster as one file: arrays and JSON in a zip archive, no code inside."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlpto.forecasting.errors import ForecastError

FORMAT = "forecasting"
VERSION = 4
_HEADER = "header"


@dataclass(frozen=True)
class State:
    """What a forecaster must know to go on: JSON values, and arrays by name (no `/` in a name)."""

    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def nested(self, name: str, part: State) -> None:
        """Put the state of a part inside this one."""
        self.values[name] = part.values
        self.arrays.update({f"{name}/{key}": array for key, array in part.arrays.items()})

    def part(self, name: str) -> State:
        """The state of a part that was put in by `nested`."""
        inside = {key[len(name) + 1 :]: a for key, a in self.arrays.items() if key.startswith(f"{name}/")}
        return State(self.values[name], inside)

    def looking_back_on(self, history: npt.NDArray[np.float64], start: float) -> State:
        """The same with another history, for a forecaster and for those inside it, which keep their own.

        Nothing is shared with this one: forecasters work on their arrays in place.
        """
        arrays = {
            name: (history if name.rsplit("/", 1)[-1] == "history" else array).copy()
            for name, array in self.arrays.items()
        }
        return State(_started(self.values, start), arrays)


def write_state(path: Path, kind: str, state: State) -> None:
    """Write a state as one file, whole or not at all. Raises ForecastError where the file system refuses."""
    header = json.dumps({"format": FORMAT, "version": VERSION, "kind": kind, "values": state.values})
    arrays = _named(state.arrays) | {_HEADER: np.array(header)}
    with whole_file(path, "the forecaster") as unfinished, unfinished.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_state(path: Path) -> tuple[str, State]:
    """Kind and state from a file.

    Raises ForecastError if there is none, it is broken, not a forecaster's, or of another version.
    """
    if not path.is_file():
        raise ForecastError(f"{path}: no such file, expected a saved forecaster")
    try:
        # Without pickle, nothing in a file can run.
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(str(arrays.pop(_HEADER)))
        kind, version, values = header["kind"], header["version"], header["values"]
        foreign = header["format"] != FORMAT
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile):
        raise ForecastError(f"{path}: broken or foreign, expected a saved forecaster") from None
    if foreign:
        raise ForecastError(f"{path}: broken or foreign, expected a saved forecaster")
    if version != VERSION:
        raise ForecastError(f"{path}: written in version {version}, expected version {VERSION}; fit it again")
    return str(kind), State(dict(values), arrays)


@contextmanager
def whole_file(path: Path, what: str) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place if all goes well and vanishes otherwise.

    Raises ForecastError, saying that `what` cannot be written, where the file system refuses.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield unfinished
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as refused:
        reason = (refused.strerror or str(refused)).lower()
        raise ForecastError(f"{path}: cannot write {what} there: {reason}") from None


def _started(values: dict[str, Any], start: float) -> dict[str, Any]:
    """A forecaster's values with another start of its history, and of those inside it: what holds `learnt`."""
    inside = {name: _started(value, start) if isinstance(value, dict) else value for name, value in values.items()}
    return inside | ({"start": start} if "learnt" in inside else {})


def _named(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    broken = [name for name, array in arrays.items() if name == _HEADER or array.dtype.hasobject]
    if broken:
        raise ForecastError(f"state {broken[0]}: expected an array of numbers under a name other than {_HEADER!r}")
    return dict(arrays)
