"""Microsoft Philly as a derived csv: timestamp (local), duration [s], num_gpus, gpu_time [GPU-s], cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.workloads.importers.base import EPOCH, Format, ImportResult, numbers, times
from rlpto.workloads.importers.csvfile import read_csv


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Import the csv; jobs have no names there and are called by their line."""
    table = read_csv(path, ("timestamp", "duration", "num_gpus", "cluster"), skip_bad_lines)
    lines = table.lines
    columns = {
        "submit_time": times(lines, "timestamp", table["timestamp"]),
        "duration": numbers(lines, "duration", table["duration"]),
        "gpus": numbers(lines, "num_gpus", table["num_gpus"], whole=True),
        "group": np.array(table["cluster"], dtype=object),
        "name": np.array([f"philly-{line}" for line in lines.number], dtype=object),
    }
    lines.without_gpus(columns["gpus"] == 0)
    return lines.finish(columns, origin=EPOCH)


FORMAT = Format(
    description="Microsoft Philly as csv (timestamp,duration,num_gpus,gpu_time,cluster)",
    read=read,
    recognises=lambda head: head.startswith("timestamp,duration,num_gpus"),
)
