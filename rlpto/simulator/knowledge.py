"""What is known of the jobs on a simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass

from rlpto.core.jobs import EstimateNoise
from rlpto.knowledge.remaining import RemainingKnowledge
from rlpto.simulator.online import FactsCache


@dataclass(frozen=True)
class Knowledge:
    """What policies know, and what jobs know of themselves; without arguments the truth.

    noise: errors of what policies believe, or None. remaining: what they believe of remaining work, see
    `knowledge.remaining`. beliefs: what jobs choose from, where they know of their speeds only what they observe, as
    policies do; None: all know the truth. shared_fits: with beliefs, jobs of a type share them.
    """

    noise: EstimateNoise | None = None
    remaining: RemainingKnowledge = "declared"
    beliefs: FactsCache | None = None
    shared_fits: bool = False


TRUTH = Knowledge()
"""Everything is known as it is."""
