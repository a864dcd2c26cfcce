"""Random numbers without a stream: each is a hash of its purpose, hence drawing one does not shift the others."""

from __future__ import annotations

import numpy as np

from rlpto.io.compiled import kernel


@kernel()
def uniform(seed: int, first: int, second: int) -> float:
    """A number in (0, 1), the SplitMix64 finaliser (Steele, Lea, Flood 2014) of the three arguments."""
    z = np.uint64(0)
    for word in (seed, first, second):
        z = (z ^ np.uint64(word)) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return float((float(z >> np.uint64(11)) + 0.5) / 9007199254740992.0)  # 2**53
