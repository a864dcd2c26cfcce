"""Model of a synthetic workload: a few hundred statistics of a recorded trace, in a YAML file."""

from __future__ import annotations

import difflib
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from rlpto.io.errors import ConfigError
from rlpto.io.files import is_there, write_text
from rlpto.io.settings import Settings
from rlpto.io.settings_text import described_yaml, read_settings

HOURS_OF_WEEK = 168
LARGEST_GPUS = 1_000_000
"""Most GPUs of a job."""
LARGEST_SUBMISSION = 1_000_000
"""Most jobs of a submission."""
LEVELS = (
    0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6,
    0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 1.0,
)  # fmt: skip
"""Probabilities of a calibration's quantiles, denser in the tail, which has most of the GPU-time."""

Quantiles = Annotated[tuple[float, ...], Field(min_length=len(LEVELS), max_length=len(LEVELS))]

_BUILT_IN = Path(__file__).parent / "calibrations"


class DurationCurve(Settings):
    """Durations of jobs that came in submissions of a certain size."""

    submission_jobs: int = Field(1, ge=1, le=10**6)
    """Smallest submission, in jobs, that the curve is for; it serves up to the next curve."""
    seconds: Quantiles
    """Duration at the probabilities LEVELS, in s; between them the logarithm is linear."""


class GpuClass(Settings):
    """Statistics of jobs of similar size: their number, arrivals and durations."""

    gpus: dict[int, float]
    """Share of the class's submissions by the number of GPUs that a job requests."""
    submissions: float = Field(ge=0, le=1)
    """Share of all submissions that are of this class."""
    jobs: Quantiles
    """Jobs in a submission at the probabilities LEVELS; between them the logarithm is linear."""
    durations: tuple[DurationCurve, ...] = Field(min_length=1)
    """Durations, by size of the submission, smallest first."""
    likeness: float = Field(ge=0, lt=1)
    """Correlation (of normal scores) between the durations of jobs of one submission."""

    @model_validator(mode="after")
    def _consistent(self) -> GpuClass:
        if (
            not self.gpus
            or not 1 <= min(self.gpus) <= max(self.gpus) <= LARGEST_GPUS
            or min(self.gpus.values()) < 0
            or abs(sum(self.gpus.values()) - 1) > 1e-3
        ):
            raise ValueError(f"gpus: expected shares of 1 to {LARGEST_GPUS:,} GPUs that sum to 1")
        for name, curve in (("jobs", self.jobs), *(("seconds", durations.seconds) for durations in self.durations)):
            if curve[0] <= 0 or any(high < low for low, high in pairwise(curve)):
                raise ValueError(f"{name}: expected ascending quantiles above 0")
        if self.jobs[-1] > LARGEST_SUBMISSION:
            raise ValueError(f"jobs: expected at most {LARGEST_SUBMISSION:,}")
        bounds = [curve.submission_jobs for curve in self.durations]
        if bounds[0] != 1 or any(high <= low for low, high in pairwise(bounds)):
            raise ValueError("durations: expected ascending submission_jobs, the first 1")
        return self


class Calibration(Settings):
    """Statistics from which `rlpto.workloads.synthetic.generate` draws a trace.

    People submit jobs in batches (sweeps, retries): the calibration counts *submissions*, the jobs
    of one virtual cluster and one size that follow each other by at most `pause` seconds.
    """

    name: str
    """Name of the calibration."""
    source: str = ""
    """Where the statistics come from, with the licence of that data."""
    first_day: date
    """First day of the trace that was counted."""
    days: int = Field(ge=1, le=36_500)
    """Days that were counted."""
    pause: float = Field(gt=0, le=10**6)
    """Longest pause between two jobs of a submission, in s."""
    gap: float = Field(ge=0, le=10**6)
    """Mean pause between two jobs of a submission, in s."""
    day_sigma: float = Field(ge=0, le=3)
    """Standard deviation of the logarithm of a day's submissions, beyond the hour of the week and chance."""
    day_correlation: float = Field(ge=0, lt=1)
    """Correlation of that logarithm between one day and the next."""
    submissions_per_hour: Annotated[
        tuple[Annotated[float, Field(ge=0, le=10**6)], ...], Field(min_length=HOURS_OF_WEEK, max_length=HOURS_OF_WEEK)
    ]
    """Mean submissions in every hour of the week, from Monday 0:00."""
    classes: tuple[GpuClass, ...] = Field(min_length=1)
    """Classes of jobs by GPUs."""

    @model_validator(mode="after")
    def _shares_sum(self) -> Calibration:
        if abs(sum(group.submissions for group in self.classes) - 1) > 1e-3:
            raise ValueError("classes: expected submissions that sum to 1")
        return self


def built_in_calibrations() -> tuple[str, ...]:
    """Return the names of built-in calibrations."""
    return tuple(sorted(path.stem for path in _BUILT_IN.glob("*.yaml")))


def load_calibration(name_or_path: str | Path) -> Calibration:
    """Load a built-in calibration by name, or a calibration from a YAML file. Raises ConfigError for an unknown name,
    or a file that is missing or no calibration."""
    text = str(name_or_path)
    named = text in built_in_calibrations()
    path = _BUILT_IN / f"{text}.yaml" if named else Path(text)
    if not named and not is_there(path):
        near = difflib.get_close_matches(text, built_in_calibrations(), n=1, cutoff=0.0)
        raise ConfigError(
            f"unknown calibration {text!r}: no such file, and the built-in ones are "
            f"{', '.join(built_in_calibrations())}; did you mean {', '.join(near)}?"
        )
    return read_settings(path, Calibration, "a calibration in YAML")


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write YAML that `load_calibration` reads, completely or not at all. Raises ConfigError if this is impossible."""
    write_text(path, described_yaml(calibration), "a calibration", ConfigError)
