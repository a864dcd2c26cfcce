"""Spare GPUs by the hour of the day."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from rlpto.core.renting import MOST_GPUS, NodesState
from rlpto.forecasting.series import DAY, HOUR
from rlpto.io.arrays import FloatArray
from rlpto.io.settings import Settings
from rlpto.provisioning.base import Grid, PlannedProvisioner


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
