"""Windows: slices of a trace for training, validation and testing that never overlap in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pydantic import Field, model_validator

from rlpto.io.errors import ConfigError
from rlpto.io.settings import LARGEST_SEED, Settings

HOUR = 3600.0
SPLITS = ("train", "validation", "test")


class WindowSettings(Settings):
    """How a trace is cut: splits in order of time, windows of equal length laid end to end in each."""

    hours: float = Field(8.0, ge=0.1, le=87_600)
    """Length of a window in hours."""
    train: float = Field(0.7, ge=0, le=1)
    """Share of the trace's span, its beginning, that training windows come from."""
    validation: float = Field(0.1, ge=0, le=1)
    """Share that follows, for validation windows."""
    test: float = Field(0.2, ge=0, le=1)
    """Share that follows, the end of the trace, for test windows."""
    limit: int | None = Field(None, ge=1, le=10**6)
    """Most windows per split, spread over it; null: all."""
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    """Seed of that choice."""

    @model_validator(mode="after")
    def _shares_fit(self) -> WindowSettings:
        total = self.train + self.validation + self.test
        if total > 1 + 1e-9:
            raise ValueError(f"train, validation and test sum to {total:g}, expected at most 1")
        return self


class Window(NamedTuple):
    """A slice of a trace. start, end: seconds since the trace's second 0; the end is not included."""

    name: str
    split: str
    start: float
    end: float


def split_windows(span_seconds: float, settings: WindowSettings) -> dict[str, list[Window]]:
    """Windows of every split of a trace that covers [0, span_seconds).

    A window never crosses the boundary of its split: what is left at the end of a split and is
    shorter than a window is not used. But a trace that is shorter than a window, and lies in a single split, is one
    window.

    Raises ConfigError if no split is long enough for a single window.
    """
    shares = (settings.train, settings.validation, settings.test)
    length = settings.hours * HOUR
    if max(shares) == 1.0 and span_seconds > 0.0:
        length = min(length, span_seconds)
    bounds = span_seconds * np.concatenate(([0.0], np.cumsum(shares)))
    windows = {split: _lay(split, bounds[i], bounds[i + 1], length) for i, split in enumerate(SPLITS)}
    if not any(windows.values()):
        raise ConfigError(
            f"windows of {settings.hours:g} h do not fit a trace of {span_seconds / HOUR:.4g} h "
            f"in shares {', '.join(f'{share:g}' for share in shares)}: expected a smaller windows.hours"
        )
    return windows


def _lay(split: str, start: float, end: float, length: float) -> list[Window]:
    """Windows end to end from `start`; a rounding error of up to a microsecond does not lose one."""
    count = int((end - start + min(1e-6, length / 2)) // length)  # of jobs all submitted at once, the length is tiny
    edges = np.minimum(start + length * np.arange(count + 1), end)
    return [Window(f"{split}-{i:03d}", split, float(edges[i]), float(edges[i + 1])) for i in range(count)]


def select(windows: Sequence[Window], count: int, seed: int) -> list[Window]:
    """At most `count` windows in order of time, spread over the split.

    The split is cut into `count` equal stretches and one window drawn from each, so that no choice
    falls into one corner of the trace; the same seed draws the same windows.
    """
    if count >= len(windows):
        return list(windows)
    edges = np.linspace(0, len(windows), count + 1).round().astype(np.int64)
    chosen = np.random.default_rng(seed).integers(edges[:-1], edges[1:])
    return [windows[i] for i in chosen]
