"""How many cores this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Cores that this process may run on: fewer than the machine's where it is confined to some."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
