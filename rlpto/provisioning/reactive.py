"""Nodes for the present jobs, the rule of common autoscalers."""

from __future__ import annotations

import numpy as np

from rlpto.core.renting import NodesState
from rlpto.io.arrays import FloatArray
from rlpto.io.settings import Settings
from rlpto.provisioning.base import PlannedProvisioner


class ReactiveOptions(Settings):
    """`reactive` has no options."""


class Reactive(PlannedProvisioner[ReactiveOptions]):
    """The GPUs that jobs hold or wait for."""

    name = "reactive"
    summary = "the GPUs that jobs hold or wait for"
    Options = ReactiveOptions

    def further(self, state: NodesState) -> FloatArray:
        """[R] GPUs."""
        return np.zeros_like(state.time)
