"""A constant number of GPUs beyond the GPUs that jobs hold or wait for."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from rlpto.core.renting import MOST_GPUS, NodesState
from rlpto.io.arrays import FloatArray
from rlpto.io.settings import Settings
from rlpto.provisioning.base import Grid, PlannedProvisioner


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
