"""Pollux against its acceptance: the objective and the thresholds; about 10 CPU-seconds."""

from __future__ import annotations

import json
from pathlib import Path

from _common import Check
from _pollux_instances import load
from pollux_objective import STORED, latency, objective, thresholds

Row = dict[str, object]


def measure(data: Path | None) -> tuple[list[Check], dict[str, list[Row]]]:
    """Checks and tables; nothing without `data`, which has the stored rounds."""
    path = None if data is None else data / "pollux" / STORED
    if path is None or not path.is_file():
        return [], {}
    stored = load(path)
    stored[0].solve(1, 0)  # compile
    near, quality = objective(stored)
    limited, bands = thresholds(stored)
    fast, crowds = latency(json.loads(path.read_text()))
    tables = {"The objective on stored rounds": quality, "Thresholds on stored rounds": bands, "Crowds": crowds}
    return near + limited + fast, tables
