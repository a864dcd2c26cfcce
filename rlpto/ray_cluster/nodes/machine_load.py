"""How much longer things take here than on a quiet machine."""

from __future__ import annotations

import os


def load_factor() -> float:
    """Processes that want a core, for each core there is; at least 1. Timeouts are for a quiet machine, times this."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1.0, os.getloadavg()[0] / cores)
