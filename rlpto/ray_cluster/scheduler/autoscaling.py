"""Nodes on demand: how many GPUs Ray's autoscaler is asked for. Its nodes come and go like all others."""

from __future__ import annotations

import math
from collections.abc import Callable

from rlpto.ray_cluster.settings import AutoscaleSettings

RENEW_S = 60.0
"""Time after which the same number is asked for again: a head that was restarted may have forgotten it."""


class GpuRequests:
    """Asks for as many GPUs as are wanted, `most_gpus` at most, and for fewer once that has held for `idle_seconds`.

    request: takes the number of GPUs in all.
    """

    def __init__(self, settings: AutoscaleSettings, request: Callable[[int], None]) -> None:
        self._settings, self._request = settings, request
        self._asked, self._needed, self._renewed = 0, -math.inf, -math.inf

    def want(self, gpus: int, now: float) -> None:
        """gpus: that jobs hold or wait for at `now` [s]."""
        gpus = min(gpus, self._settings.most_gpus)
        if gpus >= self._asked:
            self._needed = now
        if gpus > self._asked or now - self._needed >= self._settings.idle_seconds:
            self._asked, self._needed, self._renewed = gpus, now, -math.inf
        if now - self._renewed >= RENEW_S:
            self._request(self._asked)
            self._renewed = now
