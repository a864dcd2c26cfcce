"""Throughput of training through parameter servers, by workers and servers.

The law is Optimus's (Peng et al., EuroSys 2018, section 3.2): a step of M samples on w workers with p servers takes
a M/w + b + c w/p + d w + e p seconds. Workers compute, w/p of them share a server's connection, and every worker and
server adds some overhead. Samples per second are the same whether workers wait for each other or not: an asynchronous
worker needs that time for its own M/w samples, and the paper's w / (a' + b' w/p + c' w + d' p) batches per second are
the same with a' = a M/w + b.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field

from rlpto.io.arrays import FloatArray

MOST_SERVERS = 1024
"""Largest number of parameter servers in a profile."""


@dataclass(frozen=True)
class ServerParams:
    """Optimus's law, by its parameters; times in seconds.

    a: to compute the gradients of one sample. b: constant per step. c: to move the gradients and weights of one worker
    through a server's connection. d, e: overhead of each worker and of each server.
    servers: default number of parameter servers of a job. most_servers: the most that a scheduler may give it.
    Raises ValueError if servers exceed most_servers.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    a: Annotated[float, Field(gt=0)]
    b: Annotated[float, Field(ge=0)]
    c: Annotated[float, Field(ge=0)]
    d: Annotated[float, Field(ge=0)]
    e: Annotated[float, Field(ge=0)]
    servers: Annotated[int, Field(ge=1, le=MOST_SERVERS)] = 1
    most_servers: Annotated[int, Field(ge=1, le=MOST_SERVERS)] = 1
    law: Literal["parameter_server"] = field(default="parameter_server", kw_only=True)

    def __post_init__(self) -> None:
        if self.servers > self.most_servers:
            raise ValueError(f"servers {self.servers} exceeds most_servers {self.most_servers}")

    def step_time(
        self,
        nodes: ArrayLike,
        replicas: ArrayLike,
        local_batch: ArrayLike,
        accumulation: ArrayLike = 0,
    ) -> FloatArray:
        """See `rlpto.performance.throughput.ThroughputLaw`; servers have their own nodes, so `nodes` has no effect.

        Every accumulated computation costs a and b; gradients are exchanged once a step.
        """
        workers = np.asarray(replicas, dtype=np.float64)
        compute = (np.asarray(accumulation) + 1) * (self.a * np.asarray(local_batch, dtype=np.float64) + self.b)
        exchange = self.c * workers / self.servers + self.d * workers + self.e * self.servers
        return np.asarray(compute + exchange + 0.0 * np.asarray(nodes))

    def with_servers(self, servers: int) -> ServerParams:
        """The same law with another number of servers."""
        return replace(self, servers=servers)
