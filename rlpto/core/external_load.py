"""Background load: other processes hold GPUs and CPU slots of the cluster, and free them while jobs run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from rlpto.core.cluster import ClusterShape
from rlpto.core.placement import take_packed
from rlpto.io.errors import ConfigError
from rlpto.io.settings import Settings


class BackgroundLoad(Settings):
    """What other processes hold from the start of the workload until they end. They do not come back."""

    gpus: int = Field(0, ge=0, le=10**6)
    """GPUs they hold, on as few nodes as possible."""
    cpus: int = Field(0, ge=0, le=10**7)
    """CPU slots they hold, likewise."""
    until: float = Field(gt=0, le=10**9)
    """Seconds since the start of the workload at which they end."""

    @model_validator(mode="after")
    def _hold_something(self) -> Self:
        if not (self.gpus or self.cpus):
            raise ValueError("expected gpus or cpus of 1 or more: background load that holds nothing is none")
        return self


@dataclass(frozen=True, slots=True)
class HeldByOthers:
    """Part of the background load: `gpus` and `cpus` of the node with that number, until a time [s]."""

    node: int
    gpus: int
    cpus: int
    until: float


def place_background(loads: Sequence[BackgroundLoad], shape: ClusterShape) -> list[HeldByOthers]:
    """The load on the nodes of a cluster, in order of the list.

    All of it goes to the node that is left fullest, or as much as fits to the one with most room. Raises ConfigError if
    the nodes do not have so much.
    """
    placed = []
    gpus, cpus = shape.node_gpus.copy(), np.array([node.cpus for node in shape], dtype=np.int64)
    for load in loads:
        for unit, free, count in (("GPUs", gpus, load.gpus), ("CPU slots", cpus, load.cpus)):
            if count > free.sum():
                raise ConfigError(
                    f"workload.background: {count} {unit} until {load.until:g} s, but the nodes have {free.sum()} left"
                )
            nodes = np.zeros(count, dtype=np.int32)
            take_packed(nodes, count, free, -1)
            for node, held in Counter(nodes.tolist()).items():
                of_gpus = held if unit == "GPUs" else 0
                placed.append(HeldByOthers(node, of_gpus, held - of_gpus, load.until))
    return placed


def background_at(held: Sequence[HeldByOthers], time: float, nodes: int) -> tuple[list[int], list[int]]:
    """[N] GPUs, and [N] CPU slots, of every node that other processes hold at a time [s]."""
    gpus, cpus = [0] * nodes, [0] * nodes
    for part in held:
        if time < part.until:
            gpus[part.node] += part.gpus
            cpus[part.node] += part.cpus
    return gpus, cpus
