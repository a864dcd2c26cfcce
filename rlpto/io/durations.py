"""Durations as short text for table columns."""

from __future__ import annotations

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0


def span_text(seconds: float | None) -> str:
    """A time in one unit: 42 s, 12 min, 3.5 h, 2.1 d. It is empty for None."""
    if seconds is None:
        return ""
    if abs(seconds) < 2 * _MINUTE_S:
        return f"{seconds:.0f} s"
    if abs(seconds) < 2 * _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h" if abs(seconds) < 2 * _DAY_S else f"{seconds / _DAY_S:.1f} d"
