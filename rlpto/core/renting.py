"""Rented nodes: their cost in time and money, and the state from which their number is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.settings import Settings

LONGEST_BOOT_S = 21_600.0
"""Longest boot time of a rented node, in seconds."""
TICK_S = 60.0
"""Seconds between two decisions on the number of rented nodes."""
MOST_GPUS = 1e9
"""Largest number of wanted GPUs."""

SEEN = ("used", "ready", "booting", "soon", "own", "waiting", "waiting_jobs", "largest")
LOOK = np.dtype([(name, "f8") for name in SEEN], align=True)
"""State of a group of rented nodes, with the fields of `NodesState`."""


class RentedSettings(Settings):
    """Nodes that are rented and returned on demand. A node costs its price from request to return."""

    least: int = Field(0, ge=0, le=100_000)
    """Nodes that are always there."""
    most: int = Field(ge=1, le=100_000)
    """Most nodes at a time, including booting ones."""
    boot: float = Field(300.0, ge=0, le=LONGEST_BOOT_S)
    """Median seconds from request until a node can be used."""
    boot_spread: float = Field(0.0, ge=0, le=2)
    """Standard deviation of the logarithm of the boot time."""
    idle: float = Field(300.0, ge=0, le=86_400)
    """Seconds that a node without jobs is kept before it may be returned, counted from the first decision (one a
    minute) that finds it without jobs."""
    minimum: float = Field(60.0, ge=0, le=86_400)
    """Minimum rental in seconds. A node is not returned sooner."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least {self.least} is above most {self.most}: expected at most as many")
        return self


@dataclass(frozen=True)
class NodesState:
    """State from which the number of rented nodes is decided. R groups of rented nodes, of one cluster or many.

    time: [R] s since the start of the workload. clock: [R] local time [s since 1970-01-01].
    size: [R] GPUs of a node; boot: [R] s; most: [R] GPUs of all nodes of the group at a time.
    used, ready, booting: [R] GPUs that jobs hold, that can be used, and that boot; soon: [R] booting GPUs for which two
    thirds of the boot time have passed. own: [R] usable GPUs on nodes that are not rented, included in `ready`.
    waiting, largest: [R] GPUs requested by all waiting jobs, and by the largest of them. waiting_jobs: [R] jobs.
    averages: [R, 2, A] jobs and requested GPUs that arrived per minute, averaged with the half-lives HALF_LIVES.
    forecast: [R, F] forecast, described in `rlpto.provisioning.demand`; F = 0 without a forecaster.
    """

    time: FloatArray
    clock: FloatArray
    size: FloatArray
    boot: FloatArray
    most: FloatArray
    used: FloatArray
    ready: FloatArray
    booting: FloatArray
    soon: FloatArray
    own: FloatArray
    waiting: FloatArray
    waiting_jobs: FloatArray
    largest: FloatArray
    averages: FloatArray
    forecast: FloatArray

    @property
    def demand(self) -> FloatArray:
        """[R] GPUs that jobs hold or wait for."""
        return self.used + self.waiting


class RentPlan(NamedTuple):
    """Decisions on G groups of rented nodes that compiled code takes itself, because only demand is not known ahead.

    further: [W, T, G] GPUs wanted in each of W workloads after 0, 1, ... T - 1 minutes, in addition to the demand, or
    to `NodesState.own` unless on_demand. size: [G] GPUs of a node. gpus: [G] GPUs of all nodes. least, most: [G] nodes.
    other: [G] the next group with the same GPU type, or -1. look: [G] LOOK, wanted: [G] and nodes: [G] are overwritten
    by every decision.
    """

    further: FloatArray
    on_demand: bool
    size: FloatArray
    gpus: FloatArray
    least: IntArray
    most: IntArray
    other: IntArray
    look: AnyArray
    wanted: FloatArray
    nodes: IntArray


_GPUS, _NODES = np.zeros(0), np.zeros(0, dtype=np.int64)
NO_RENT = RentPlan(
    np.zeros((0, 0, 0)), True, _GPUS, _GPUS, _NODES, _NODES, _NODES, look=np.zeros(0, LOOK), wanted=_GPUS, nodes=_NODES
)
"""The plan of clusters without rented nodes."""


def nodes_for(state: NodesState, gpus: FloatArray) -> IntArray:
    """[R] rented nodes that, with nodes that are not rented, offer `gpus` [R] in total; not yet bounded."""
    nodes: IntArray = np.ceil((gpus - state.own) / state.size - 1e-9).astype(np.int64)
    return nodes
