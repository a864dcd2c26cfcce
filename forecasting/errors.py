"""The error that bad input raises."""

from __future__ import annotations

from rlpto.io.errors import RlptoError


class ForecastError(RlptoError, ValueError):
    """A series, an argument or a file is not what forecasting expects: one line, what is wrong, what was expected."""


def checked_integer(name: str, value: object, low: int, high: int) -> int:
    """Return an integer if it is within bounds, both included. Raises ForecastError."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not low <= int(value) <= high:
        raise ForecastError(f"{name} {value!r}: expected an integer, {low} to {high}")
    return int(value)
