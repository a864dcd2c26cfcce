"""Built-in provisioners: a rule each for the number of GPUs beyond the demand, or of all."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from rlpto.core.renting import MOST_GPUS, TICK_S, NodesState
from rlpto.forecasting.minute_averages import HALF_LIVES
from rlpto.forecasting.series import DAY, HOUR
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import PolicyError
from rlpto.io.settings import Settings
from rlpto.provisioning.base import Grid, PlannedProvisioner
from rlpto.provisioning.demand import LEVELS


class FixedOptions(Settings):
    """Options of `fixed`."""

    share: float = Field(1.0, ge=0, le=1)
    """Share of the nodes that may be rented."""


class Fixed(PlannedProvisioner[FixedOptions]):
    """A constant share of the nodes that may be rented."""

    name = "fixed"
    summary = "always the same share of the nodes that may be rented"
    Options = FixedOptions
    on_demand = False
    grid: ClassVar[Grid] = {"share": (0.25, 0.5, 0.75, 1.0)}

    def further(self, state: NodesState) -> FloatArray:
        """[R] GPUs."""
        return self.options.share * state.most


class Reactive(PlannedProvisioner[Settings]):
    """The GPUs that jobs hold or wait for, the rule of common autoscalers."""

    name = "reactive"
    summary = "the GPUs that jobs hold or wait for"
    Options = Settings

    def further(self, state: NodesState) -> FloatArray:
        """[R] GPUs."""
        return np.zeros_like(state.time)


class SpareOptions(Settings):
    """Options of `spare`."""

    gpus: float = Field(8.0, ge=0, le=MOST_GPUS)
    """GPUs that are kept ready."""


class Spare(PlannedProvisioner[SpareOptions]):
    """The GPUs that jobs hold or wait for, and some more."""

    name = "spare"
    summary = "a constant number of GPUs beyond what jobs hold or wait for"
    Options = SpareOptions
    grid: ClassVar[Grid] = {"gpus": (2.0, 4.0, 8.0, 16.0, 32.0)}

    def further(self, state: NodesState) -> FloatArray:
        """[R] GPUs."""
        return np.full_like(state.time, self.options.gpus)


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


class ScheduledOptions(Settings):
    """Options of `scheduled`."""

    day: float = Field(16.0, ge=0, le=MOST_GPUS)
    """GPUs that are kept ready from `begin` to `end` on working days."""
    night: float = Field(0.0, ge=0, le=MOST_GPUS)
    """GPUs that are kept ready at other times."""
    begin: float = Field(8.0, ge=0, le=24)
    """Hour at which the day begins, local time."""
    end: float = Field(20.0, ge=0, le=24)
    """Hour at which the day ends, local time; on the next morning if it is before `begin`."""


class Scheduled(PlannedProvisioner[ScheduledOptions]):
    """The GPUs that jobs hold or wait for, and spare ones, more of them in working hours."""

    name = "scheduled"
    summary = "spare GPUs by the hour of the week, more in working hours"
    Options = ScheduledOptions
    grid: ClassVar[Grid] = {"day": (4.0, 8.0, 16.0), "night": (0.0, 4.0, 8.0)}

    def further(self, state: NodesState) -> FloatArray:
        """[R] GPUs at this hour of the week."""
        options, since = self.options, state.clock - self.options.begin * HOUR
        weekday = (since // DAY + 3) % 7  # when the working day began; 1970-01-01 was a Thursday, Monday is 0
        hours = options.end - options.begin + 24.0 * (options.end < options.begin)
        works = (weekday < 5) & (since % DAY < hours * HOUR)
        return np.where(works, options.day, options.night)


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
