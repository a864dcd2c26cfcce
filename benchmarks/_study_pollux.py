"""Pollux against its acceptance: objective, thresholds, and parity with its simulator; about two CPU-minutes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from _common import Check
from _pollux_instances import load
from parity import PUBLISHED, experiment_of
from pollux_objective import STORED, latency, objective, thresholds

from rlpto.evaluation.runner import Cell

Row = dict[str, object]

MOST_OFF_PERCENT, MOST_OFF_ON_AVERAGE_PERCENT = 3.0, 1.5
"""Of a workload's published mean JCT, and of the mean over the workloads."""


def measure(data: Path | None) -> tuple[list[Check], dict[str, list[Row]]]:
    """Checks and tables; nothing without `data`, which has the stored rounds."""
    path = None if data is None else data / "pollux" / STORED
    if data is None or path is None or not path.is_file():
        return [], {}
    stored = load(path)
    stored[0].solve(1, 0)  # compile
    near, quality = objective(stored)
    limited, bands = thresholds(stored)
    fast, crowds = latency(json.loads(path.read_text()))
    same, published = parity(data)
    tables = {
        "Parity: mean JCT with jobs' own fits, against the published one": published,
        "The objective on stored rounds": quality,
        "Thresholds on stored rounds": bands,
        "Crowds": crowds,
    }
    return same + near + limited + fast, tables


def parity(data: Path) -> tuple[list[Check], list[Row]]:
    """Mean JCT on the published workloads."""
    experiment = experiment_of("pollux", data / "traces" / "pollux", data / "profiles")
    rows: list[Row] = []
    for window in experiment.windows():
        if ("pollux", window) in PUBLISHED:
            jobs = experiment.run_cell(Cell("pollux", window, 0)).jobs
            found, published = float(np.mean(jobs.finish_time - jobs.submit_time)), PUBLISHED["pollux", window]
            off = 100 * (found / published - 1)
            restarts = float(jobs.rescales.mean())
            rows.append(
                {
                    "workload": window,
                    "mean JCT [s]": found,
                    "published [s]": published,
                    "off [%]": off,
                    "restarts": restarts,
                }
            )
    found, published = (float(np.mean([row[key] for row in rows])) for key in ("mean JCT [s]", "published [s]"))
    worst = max(abs(float(str(row["off [%]"]))) for row in rows)
    checks = [
        Check("parity, worst workload off by", worst, "%", MOST_OFF_PERCENT, False),
        Check(
            "parity, mean of workloads off by",
            100 * abs(found / published - 1),
            "%",
            MOST_OFF_ON_AVERAGE_PERCENT,
            False,
        ),
    ]
    return checks, rows
