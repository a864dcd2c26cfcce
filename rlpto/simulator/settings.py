"""Settings of the simulator."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlpto.settings import Settings


class FailureSettings(Settings):
    """Node failures, exponential in both directions; 0 hours between failures switches them off."""

    mtbf_hours: float = Field(0.0, ge=0)
    """Mean hours between failures of one node; 0: nodes never fail."""
    mttr_hours: float = Field(1.0, gt=0)
    """Mean hours to repair a node."""
    checkpoint_interval: float = Field(600.0, gt=0)
    """Seconds of training between checkpoints: a job that loses a node loses what came after the last one."""


class SimulatorSettings(Settings):
    """How time passes in the simulator and when decisions are due."""

    interval: float = Field(60.0, gt=0)
    """Seconds between regular decisions."""
    decide_on: Literal["interval", "events"] = "events"
    """interval: only then; events: also at once when a job arrives or finishes or a node changes."""
    placement: Literal["pack", "most_free"] = "pack"
    """pack: fewest nodes, best fit, a job grows and shrinks in place; most_free: the emptiest nodes first,
    and a job whose size changes is placed anew (as in the Pollux simulator)."""
    rescale_delay: float | None = Field(None, ge=0)
    """Seconds without progress after every change of a job's GPUs, its start included; null: each model's own."""
    epoch_resolution: float = Field(0.0, ge=0)
    """Round the moment an epoch ends within a round to multiples of this many seconds; 0: exact."""
    max_hours: float | None = Field(None, gt=0)
    """Stop the run after this many hours even if jobs remain; null: run until all are finished."""
    failures: FailureSettings = FailureSettings()
    """Node failures."""
