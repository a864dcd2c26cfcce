"""How much a token may ask for: changes in a time, and streams at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlpto.service.web.problems import Problem

BURST_SECONDS = 10.0
"""A token that was idle so long may make the changes of all that time at once."""
_MOST_BUCKETS = 10_000


class Limits:
    """Counts by token. per_second: changes; streams: open at a time."""

    def __init__(self, per_second: float, streams: int) -> None:
        self._per_second, self._most_streams = per_second, streams
        self._room: dict[str, tuple[float, float]] = {}
        self._streams: dict[str, int] = {}

    def change(self, token: str, now: float) -> None:
        """Count a change at a time [s]. Raises Problem 429 where there were too many."""
        most = self._per_second * BURST_SECONDS
        room, since = self._room.pop(token, (most, now))
        room = min(most, room + max(0.0, now - since) * self._per_second)
        self._room[token] = (max(room - 1.0, 0.0) if room >= 1.0 else room, now)
        if len(self._room) > _MOST_BUCKETS:
            del self._room[next(iter(self._room))]  # the one that was idle longest
        if room < 1.0:
            wait = (1.0 - room) / self._per_second
            detail = f"more than {self._per_second:g} changes a second; try again in {wait:.2f} s"
            raise Problem(429, "too-many-requests", detail, {"Retry-After": str(max(1, round(wait)))})

    def check_stream(self, token: str) -> None:
        """Raise Problem 429 where a token has as many streams open as it may."""
        if self._streams.get(token, 0) >= self._most_streams:
            detail = f"{self._most_streams} streams of this token are open; close one first"
            raise Problem(429, "too-many-streams", detail, {"Retry-After": "5"})

    @contextmanager
    def stream(self, token: str) -> Iterator[None]:
        """Count a stream as long as it is open."""
        self._streams[token] = self._streams.get(token, 0) + 1
        try:
            yield
        finally:
            self._streams[token] -= 1
            if not self._streams[token]:
                del self._streams[token]
