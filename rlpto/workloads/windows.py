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
    """Division of a trace: splits in order of time, each filled with consecutive windows of equal length."""

    hours: float = Field(8.0, ge=0.1, le=87_600)
    """Length of a window in hours."""
    train: float = Field(0.7, ge=0, le=1)
    """Share of the trace's span, from its beginning, for training windows."""
    validation: float = Field(0.1, ge=0, le=1)
    """Share after the training windows, for validation windows."""
    test: float = Field(0.2, ge=0, le=1)
    """Share after the validation windows, for test windows."""
    limit: int | None = Field(None, ge=1, le=10**6)
    """Most windows per split, chosen at random but spread over the split. Default: all windows."""
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    """Seed of the choice of windows under `limit`."""

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
    """Return the windows of every split of a trace that covers [0, span_seconds).

    A window never crosses the boundary of its split; a remainder shorter than a window at the end of
    a split is not used. However, a trace that is shorter than a window, and lies in a single split, is one window.

    Raises ConfigError if no split is long enough for a single window.
    """
    if span_seconds == 0:
        raise ConfigError("all jobs of the trace are submitted at once: expected a longer trace to cut into windows")
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
    """Return consecutive windows from `start`. A rounding error of up to a microsecond does not lose a window."""
    count = int((end - start + min(1e-6, length / 2)) // length)  # tiny length if all jobs are submitted at once
    edges = np.minimum(start + length * np.arange(count + 1), end)
    return [Window(f"{split}-{i:03d}", split, float(edges[i]), float(edges[i + 1])) for i in range(count)]


def select(windows: Sequence[Window], count: int, seed: int) -> list[Window]:
    """Choose at most `count` windows in order of time, spread over the split.

    The split is divided into `count` equal parts and one window drawn from each, so the windows never
    crowd in one part of the trace. The same seed draws the same windows.
    """
    if count >= len(windows):
        return list(windows)
    edges = np.linspace(0, len(windows), count + 1).round().astype(np.int64)
    chosen = np.random.default_rng(seed).integers(edges[:-1], edges[1:])
    return [windows[i] for i in chosen]
