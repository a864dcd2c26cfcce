"""Random moments of node failures and repairs, drawn without a stream: each is a hash of who and when.

So a node's failures do not depend on what the policy does, and every policy meets the same ones.
"""

from __future__ import annotations

import numpy as np

from rlpto.compiled import kernel
from rlpto.simulator.arrays import World


@kernel()
def uniform(seed: int, node: int, toggles: int) -> float:
    """A number in (0, 1), the SplitMix64 finaliser (Steele, Lea, Flood 2014) of the three arguments."""
    z = np.uint64(0)
    for word in (seed, node, toggles):
        z = (z ^ np.uint64(word)) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return float((float(z >> np.uint64(11)) + 0.5) / 9007199254740992.0)  # 2**53


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
