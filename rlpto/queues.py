"""Multi-priority queues: who is served first, and the one place where wishes meet capacity."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlpto.settings import Settings


class QueueSettings(Settings):
    """Strict order between priority classes, aging between them, one rule inside each."""

    inside: Literal["fifo", "shortest_first"] = "fifo"
    """Order within a class: by submission, or by remaining time on the requested GPUs."""
    aging_normal: float = Field(1800.0, gt=0)
    """Seconds a waiting job of class normal waits before it counts as high."""
    aging_low: float = Field(3600.0, gt=0)
    """Seconds a waiting job of class low waits before it counts as normal (and then ages on)."""
    shrink_lower: bool = False
    """Shrink jobs of a lower class to their min_gpus while a job of a higher class waits."""
