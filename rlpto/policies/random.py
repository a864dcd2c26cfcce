"""Random allocations: a lower bound that every other policy must beat.

Source: none; a control.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy
from rlpto.io.settings import Settings
from rlpto.policies.filling import fit_in_order


class RandomOptions(Settings):
    """Options of `random`."""

    keep: float = Field(0.9, ge=0, le=1)
    """Probability that a running job keeps its GPUs at a decision; otherwise it draws another number."""


class RandomPolicy(BasePolicy[RandomOptions]):
    """Jobs in random order draw GPUs uniformly within their limits; those that fit get them."""

    name = "random"
    summary = "GPUs drawn uniformly within each job's limits, jobs in random order; a control"
    source = "control, no source"
    Options = RandomOptions

    def reset(self, seed: int) -> None:
        """Start the stream of random numbers of `seed`."""
        self._random = np.random.default_rng(seed)

    def __call__(self, state: ClusterState) -> Allocation:
        """Let jobs that keep their GPUs go first, then the others in random order."""
        jobs = state.jobs
        held = jobs.keepable
        keeps = (held > 0) & (self._random.random(len(jobs)) < self.options.keep)
        wish = np.where(keeps, held, self._random.integers(jobs.min_gpus, jobs.max_gpus, endpoint=True))
        order = np.lexsort((self._random.random(len(jobs)), ~keeps))
        return Allocation(fit_in_order(order, wish, state.capacity))
