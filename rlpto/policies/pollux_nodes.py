"""How many nodes to use, by AdaptDL's thresholds of utility."""

from __future__ import annotations

from collections.abc import Callable

from rlpto.io.arrays import FloatArray
from rlpto.performance.metrics import UtilityBand


def utility(speedup: FloatArray, gpus: int) -> float:
    """Speed-up per GPU of the nodes in use: sum over jobs of speed-up / GPUs, weighted by their share of those nodes.

    speedup: [n] of each job over one GPU, 0 without. gpus: of the nodes in use; those that idle count as lost.
    """
    return float(speedup.sum()) / gpus if gpus > 0 else 0.0


def desired_nodes(utility_on: Callable[[int], float], nodes: int, band: UtilityBand, least: int = 1) -> int:
    """Nodes to use, of least..nodes: all if utility is in the band there, else as brings it nearest the band's middle.

    utility_on: utility with the best allocation on so many nodes. It falls with more of them, and is asked for log2 of
    their number. Where even the least stays below the band, that is the answer. Never more with higher thresholds,
    whatever utility_on returns. After AdaptDL's `_desired_nodes`, which picks among the results of a genetic search.
    """
    if utility_on(nodes) >= band.min_util or nodes <= least:
        return nodes
    middle = band.middle
    enough, few = least - 1, nodes  # utility reaches the middle on `enough` nodes, not on `few`
    above = below = 0.0
    while few - enough > 1:
        tried = (enough + few) // 2
        reached = utility_on(tried)
        if reached >= middle:
            enough, above = tried, reached
        else:
            few, below = tried, reached
    nearer = below >= band.min_util and middle - below < above - middle
    return few if nearer or enough < least else enough
