"""Alibaba PAI 2020 as published for its simulator, `pai_job_no_estimate_100K.csv`.

Weng et al., "MLaaS in the Wild", NSDI 2022. Times are seconds from an arbitrary start.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.workloads.importers.base import Format, ImportResult, numbers
from rlpto.workloads.importers.csvfile import read_csv


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Import the csv.

    num_gpu is the demand of the whole job in GPUs (its instances share them) and may be a fraction:
    it is rounded up, since a worker here holds a GPU alone.
    """
    table = read_csv(path, ("job_id", "submit_time", "num_gpu", "duration", "user"), skip_bad_lines, ("gpu_type",))
    lines = table.lines
    columns = {
        "name": np.array(table["job_id"], dtype=object),
        "user": np.array(table["user"], dtype=object),
        "submit_time": numbers(lines, "submit_time", table["submit_time"]),
        "duration": numbers(lines, "duration", table["duration"]),
        "gpus": np.ceil(numbers(lines, "num_gpu", table["num_gpu"], blank=0.0)),
    }
    if "gpu_type" in table:
        columns["group"] = np.array(table["gpu_type"], dtype=object)
    lines.without_gpus(columns["gpus"] == 0)
    return lines.finish(columns, origin=None)


FORMAT = Format(
    description="Alibaba PAI 2020 pai_job_no_estimate_100K.csv",
    read=read,
    recognises=lambda head: head.startswith("job_id,num_inst,submit_time"),
)
