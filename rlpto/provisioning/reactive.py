"""Nodes for the present jobs, the rule of common autoscalers."""

from __future__ import annotations

from rlpto.core.renting import NodesState
from rlpto.io.arrays import FloatArray
from rlpto.io.settings import Settings
from rlpto.provisioning.base import BaseProvisioner


class ReactiveOptions(Settings):
    """`reactive` has no options."""


class Reactive(BaseProvisioner[ReactiveOptions]):
    """The GPUs that jobs hold or wait for."""

    name = "reactive"
    summary = "the GPUs that jobs hold or wait for"
    Options = ReactiveOptions

    def __call__(self, state: NodesState) -> FloatArray:
        """[R] GPUs."""
        return state.demand
