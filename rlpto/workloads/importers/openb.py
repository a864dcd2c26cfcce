"""Alibaba openb 2023 `openb_pod_list_*.csv`. Weng et al., "Beware of Fragmentation", ATC 2023.

Times are seconds from an arbitrary start; gpu_milli is thousandths of a GPU.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.workloads.importers.base import Format, ImportResult, is_blank, numbers
from rlpto.workloads.importers.csvfile import read_csv


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Import a pod list.

    A pod's GPUs are num_gpu x gpu_milli / 1000, rounded up, since a worker here holds a GPU alone.
    It runs from scheduled_time to deletion_time; a pod that was never scheduled never ran.
    """
    names = ("name", "num_gpu", "gpu_milli", "qos", "creation_time", "deletion_time", "scheduled_time")
    table = read_csv(path, names, skip_bad_lines)
    lines = table.lines
    whole = numbers(lines, "num_gpu", table["num_gpu"], blank=0.0, whole=True)
    share = numbers(lines, "gpu_milli", table["gpu_milli"], blank=0.0) / 1000
    created = numbers(lines, "creation_time", table["creation_time"])
    scheduled = numbers(lines, "scheduled_time", table["scheduled_time"], blank=np.nan)
    deleted = numbers(lines, "deletion_time", table["deletion_time"], blank=np.nan)
    lines.reject(
        deleted < scheduled,
        lambda i: f"deletion_time {deleted[i]:g}, expected scheduled_time {scheduled[i]:g} or later",
    )
    gpus = np.ceil(np.round(whole * share, 9))
    lines.without_gpus(gpus == 0)
    lines.never_ran(is_blank(table["scheduled_time"]))
    columns = {
        "name": np.array(table["name"], dtype=object),
        "group": np.array(table["qos"], dtype=object),
        "submit_time": created,
        "duration": deleted - scheduled,
        "gpus": gpus,
    }
    return lines.finish(columns, origin=None)


FORMAT = Format(
    description="Alibaba openb 2023 openb_pod_list_*.csv",
    read=read,
    recognises=lambda head: head.startswith("name,cpu_milli,memory_mib,num_gpu"),
)
