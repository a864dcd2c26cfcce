"""Spare GPUs by a forecast of the GPUs requested while a node boots."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from rlpto.core.renting import NodesState
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import PolicyError
from rlpto.io.settings import Settings
from rlpto.provisioning.base import Grid, PlannedProvisioner
from rlpto.provisioning.demand import LEVELS


class ForecastOptions(Settings):
    """Options of `forecast`."""

    level: float | Literal["mean"] = "mean"
    """Value of the forecast to use: its mean, or the quantile of level 0.5, 0.8, 0.9 or 0.95."""
    factor: float = Field(1.0, ge=0, le=1000)
    """Spare GPUs as a multiple of that value."""

    @field_validator("level")
    @classmethod
    def _is_forecast(cls, level: float | str) -> float | str:
        if level != "mean" and level not in LEVELS:
            raise ValueError(f"{level}: expected mean, {', '.join(map(str, LEVELS[:-1]))} or {LEVELS[-1]}")
        return level


class ForecastDemand(PlannedProvisioner[ForecastOptions]):
    """The GPUs that jobs hold or wait for, and the GPUs that jobs will request by the forecast while a node boots."""

    name = "forecast"
    summary = "spare GPUs by a forecast of the GPUs asked for while a node boots"
    Options = ForecastOptions
    grid: ClassVar[Grid] = {"level": ("mean", 0.5, 0.8, 0.9, 0.95), "factor": (0.5, 1.0, 2.0, 4.0)}
    forecasts = True

    def further(self, state: NodesState) -> FloatArray:
        """[R] GPUs. Raises PolicyError without a forecast."""
        if not state.forecast.shape[1]:
            raise PolicyError(f"provisioner {self.name}: there is no forecast of demand here")
        column = 0 if self.options.level == "mean" else 1 + LEVELS.index(self.options.level)
        return self.options.factor * state.forecast[:, column]
