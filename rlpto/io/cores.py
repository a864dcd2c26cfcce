"""Number of cores that this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Number of cores that this process may run on: fewer than the machine has if its affinity is restricted."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
