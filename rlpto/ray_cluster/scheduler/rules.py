"""When the decisions of a real cluster are due, and how long it waits for what does not happen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rules:
    """When decisions are due, and how long to put up with what does not happen. All in seconds.

    interval, decide_on: as in the simulator's settings. limit: end the run then, even if jobs remain.
    poll: longest time between two looks at the cluster. without_gpus: raise ClusterError once jobs have waited so long
    for a cluster that has no GPU alive.
    """

    interval: float = 60.0
    decide_on: Literal["interval", "events"] = "events"
    limit: float = math.inf
    poll: float = 0.1
    without_gpus: float = 300.0

    def due(self, time: float) -> float:
        """End of the interval that `time` lies in."""
        return (math.floor(time / self.interval + 1e-9) + 1) * self.interval
