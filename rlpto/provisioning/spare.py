"""A constant number of GPUs beyond the GPUs that jobs hold or wait for."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rlpto.core.renting import NodesState
from rlpto.io.arrays import FloatArray
from rlpto.io.settings import Settings
from rlpto.provisioning.base import MOST_GPUS, BaseProvisioner, Grid


class SpareOptions(Settings):
    """Options of `spare`."""

    gpus: float = Field(8.0, ge=0, le=MOST_GPUS)
    """GPUs that are kept ready."""


class Spare(BaseProvisioner[SpareOptions]):
    """The GPUs that jobs hold or wait for, and some more."""

    name = "spare"
    summary = "a constant number of GPUs beyond what jobs hold or wait for"
    Options = SpareOptions
    grid: ClassVar[Grid] = {"gpus": (2.0, 4.0, 8.0, 16.0, 32.0)}

    def __call__(self, state: NodesState) -> FloatArray:
        """[R] GPUs."""
        return state.demand + self.options.gpus
