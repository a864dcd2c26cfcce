"""Nodes that are rented: what they cost in time and money, and what is seen when more or fewer are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.settings import Settings

LONGEST_BOOT_S = 21_600.0
"""Of a rented node."""
TICK_S = 60.0
"""Seconds between two decisions on the number of rented nodes."""

SEEN = ("used", "ready", "booting", "soon", "own", "waiting", "waiting_jobs", "largest")
LOOK = np.dtype([(name, "f8") for name in SEEN], align=True)
"""What is seen of a group of rented nodes, see `NodesState`."""


class RentedSettings(Settings):
    """Nodes that are asked for, boot, and are given back. A node costs its price from request to return."""

    least: int = Field(0, ge=0, le=100_000)
    """Nodes that are always there."""
    most: int = Field(ge=1, le=100_000)
    """Most nodes at a time, those that boot included."""
    boot: float = Field(300.0, ge=0, le=LONGEST_BOOT_S)
    """Median seconds from request until a node can be used."""
    boot_spread: float = Field(0.0, ge=0, le=2)
    """Standard deviation of the logarithm of that time."""
    idle: float = Field(300.0, ge=0, le=86_400)
    """Seconds that a node without jobs is kept before it may be given back; counted from the first of the decisions,
    one a minute, that finds it so."""
    minimum: float = Field(60.0, ge=0, le=86_400)
    """Seconds that are paid at least. A node is not given back sooner."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least {self.least} is above most {self.most}: expected at most as many")
        return self


@dataclass(frozen=True)
class NodesState:
    """What decides how many nodes to rent; one row for each group of rented nodes: R of them, of one cluster or many.

    time: [R] s since the start of the workload. clock: [R] local time [s since 1970-01-01].
    size: [R] GPUs of a node; boot: [R] s; most: [R] GPUs of all nodes of the group at a time.
    used, ready, booting: [R] GPUs that jobs hold, that can be used, and that boot; soon: [R] of these, those that have
        booted for two thirds of the boot time. own: [R] of `ready`, on nodes that are not rented.
    waiting, largest: [R] GPUs that waiting jobs ask for, and the largest of them. waiting_jobs: [R] jobs.
    averages: [R, 2, A] jobs and GPUs asked for that came in a minute, as averages with the half-lives HALF_LIVES.
    forecast: [R, F] what a forecaster says, see `rlpto.provisioning.demand`; F = 0: nothing.
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


def nodes_for(state: NodesState, gpus: FloatArray) -> IntArray:
    """[R] rented nodes that offer, with those that are not rented, `gpus` [R] in all; not yet bounded."""
    nodes: IntArray = np.ceil((gpus - state.own) / state.size - 1e-9).astype(np.int64)
    return nodes
