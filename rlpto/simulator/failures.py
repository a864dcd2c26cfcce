"""Random moments of node failures and repairs, drawn without a stream: each is a hash of seed, node and count.

So a node's failures do not depend on what the policy does, and every policy meets the same ones.
"""

from __future__ import annotations

import numpy as np

from rlpto.io.compiled import kernel
from rlpto.io.draws import uniform
from rlpto.simulator.arrays import World


@kernel()
def next_toggle_after(now: float, mean: float, seed: int, node: int, toggles: int) -> float:
    """Time of a node's next failure or repair: exponential with `mean` seconds, never if mean is 0."""
    if mean == 0.0:
        return np.inf
    return float(now - mean * np.log(uniform(seed, node, toggles)))


@kernel()
def schedule_failures(w: World, b: int) -> None:
    """Draw the first failure of every node of cluster b."""
    rules, cluster = w.rules[0], w.clusters[b]
    for node in range(w.free.shape[1]):
        first = next_toggle_after(0.0, rules.mtbf, cluster.seed, node, 0)
        w.machines[b, node].toggle_at = first
        cluster.next_toggle = min(cluster.next_toggle, first)
