"""A constant number of nodes, like an owned cluster."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rlpto.core.renting import NodesState
from rlpto.io.arrays import FloatArray
from rlpto.io.settings import Settings
from rlpto.provisioning.base import Grid, PlannedProvisioner


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
