"""The error that bad input raises."""

from __future__ import annotations


class ForecastError(ValueError):
    """A series, an argument or a file is not what forecasting expects: one line, what is wrong, what was expected."""
