"""Store a fitted forecaster as one file (`rlpto.io.archive`); every number is checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rlpto.forecasting.series import ForecastError, checked_integer
from rlpto.io.archive import read_archive, write_archive
from rlpto.io.arrays import AnyArray

FORMAT = "rlpto forecaster 1"
"""Format of a saved forecaster."""

Pattern = TypeVar("Pattern", bound=NamedTuple)

LARGEST_NUMBER = 1e30
"""Largest magnitude in an array; learnt values do not exceed it."""


@dataclass(frozen=True)
class State:
    """Saved state of a forecaster: JSON values, and arrays by name (no `/` in a name)."""

    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, AnyArray] = field(default_factory=dict)

    def nested(self, name: str, part: State) -> None:
        """Put the state of a part inside this state."""
        self.values[name] = part.values
        self.arrays.update({f"{name}/{key}": array for key, array in part.arrays.items()})

    def part(self, name: str) -> State:
        """Return the state of a part that was put in by `nested`."""
        inside = {key[len(name) + 1 :]: a for key, a in self.arrays.items() if key.startswith(f"{name}/")}
        return State(self.values[name], inside)

    def number(self, name: str, low: float, high: float) -> float:
        """Return a number within bounds. Raises ForecastError, naming it, and KeyError if it is missing."""
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ForecastError(f"{name} {value!r}: expected a number, {low:g} to {high:g}")
        return float(value)

    def integer(self, name: str, low: int, high: int) -> int:
        """Return an integer within bounds. Raises ForecastError, naming it, and KeyError if it is missing."""
        return checked_integer(name, self.values[name], low, high)

    def array(
        self, name: str, shape: tuple[int | None, ...], largest: float = LARGEST_NUMBER, dtype: npt.DTypeLike = float
    ) -> AnyArray:
        """Return an array of finite numbers of a shape; None allows any length. Raises ForecastError, naming it."""
        array = self.arrays[name]
        sized = len(array.shape) == len(shape) and all(
            wanted in (None, own) for own, wanted in zip(array.shape, shape, strict=True)
        )
        if not sized or array.dtype != dtype:
            raise ForecastError(f"{name} of {array.dtype} {array.shape}: expected {np.dtype(dtype)} {shape}")
        if not (np.abs(array) <= largest).all():
            raise ForecastError(f"{name}: expected finite numbers, {largest:g} at most")
        return array

    def arrays_like(self, prefix: str, pattern: Pattern) -> Pattern:
        """Return a named tuple of arrays with the types and shapes of `pattern`; integers must be 0 or more. Raises
        ForecastError."""
        wanted = pattern._asdict().items()
        found = {name: self.array(f"{prefix}.{name}", own.shape, dtype=own.dtype) for name, own in wanted}
        if any(array.dtype.kind == "i" and (array < 0).any() for array in found.values()):
            raise ForecastError(f"{prefix}: expected counts, 0 or more")
        return pattern._replace(**found)


def write_state(path: Path, name: str, state: State) -> None:
    """Write the state of a forecaster of a class `name` as one file, completely or not at all. Raises ForecastError if
    the file system refuses."""
    manifest = {"format": FORMAT, "class": name, "values": state.values}
    write_archive(path, manifest, state.arrays, "the forecaster", ForecastError)


def read_state(path: Path) -> tuple[str, State]:
    """Read the forecaster's class name and state from a file of bounded size. The caller checks each value. Raises
    ForecastError if the file is missing, broken, not a forecaster's, or of another version."""
    archive = read_archive(path, (FORMAT,), ForecastError)
    values = archive.manifest.get("values")
    if not isinstance(values, dict):
        raise ForecastError(f"{path}: its manifest lacks values, expected {FORMAT}")
    return str(archive.manifest.get("class")), State(values, archive.arrays)
