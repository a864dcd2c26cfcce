"""Futures of a run: sources of jobs that may arrive, for whoever looks ahead. See `rlpto.arrivals.futures`."""

from __future__ import annotations

from typing import Literal, Protocol

from rlpto.core.cluster import ClusterState, Future

FUTURES = 16
"""Futures that are sampled where nothing else is said."""
SourceName = Literal["forecast", "rates", "oracle"]
"""Where futures come from: a forecaster, usual rates by hour of the week, or an oracle: the jobs that will come."""


class FutureSource(Protocol):
    """Gives the futures of the states of one run."""

    def notice(self, state: ClusterState) -> None:
        """Take in the jobs of a state. Every state that is decided on is to be noticed, or asked about."""

    def __call__(self, state: ClusterState) -> tuple[Future, ...]:
        """Futures after `state.time`, one or more."""
