"""Spare GPUs in proportion to recent requests."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlpto.core.renting import TICK_S, NodesState
from rlpto.forecasting.minute_averages import HALF_LIVES
from rlpto.io.arrays import FloatArray
from rlpto.io.settings import Settings
from rlpto.provisioning.base import Grid, PlannedProvisioner


class AverageOptions(Settings):
    """Options of `average`."""

    factor: float = Field(1.0, ge=0, le=1000)
    """Spare GPUs as a multiple of the GPUs requested, on average, in the time that a node takes to boot."""
    half_life: Literal[2, 5, 15, 60, 240] = 15
    """Minutes after which a job counts half in the average."""


class Average(PlannedProvisioner[AverageOptions]):
    """The GPUs that jobs hold or wait for, and the GPUs that jobs should request on average while a node boots."""

    name = "average"
    summary = "spare GPUs in proportion to what was asked for in the last minutes"
    Options = AverageOptions
    grid: ClassVar[Grid] = {"factor": (0.5, 1.0, 2.0, 4.0), "half_life": (5, 15, 60)}

    def further(self, state: NodesState) -> FloatArray:
        """[R] GPUs."""
        per_minute = state.averages[:, 1, HALF_LIVES.index(self.options.half_life)]
        return self.options.factor * per_minute * state.boot / TICK_S
