"""All policies on Pollux's workloads under each setting of what is known; about half a CPU-hour, each cell kept.

Mean JCT over the workloads, divided by Pollux's published mean. Weights were tuned on the generated workloads 101-106.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import _common
import numpy as np
from _common import Check
from parity import PUBLISHED

from rlpto.evaluation.runner import Cell
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.files import write_text

Row = dict[str, object]

CELLS = Path("runs/studies/knowledge.cells.json")
"""Mean JCT of every cell that has been run."""
ONLINE = ("knowledge.mode=online", "workload.mapping.fixed_batch_models=[ncf]")
SHARED = (*ONLINE, "knowledge.fits=shared")
SETTINGS: dict[str, tuple[str, ...]] = {
    "true speeds, declared epochs": (),
    "true speeds, epochs unknown": ("knowledge.remaining=unknown",),
    "own fits, declared epochs": ONLINE,
    "own fits, epochs unknown": (*ONLINE, "knowledge.remaining=unknown"),
    "shared fits, declared epochs": SHARED,
    "shared fits, epochs learnt": (*SHARED, "knowledge.remaining=learnt"),
    "shared fits, epochs unknown": (*SHARED, "knowledge.remaining=unknown"),
}
"""What policies and jobs know, by name."""
TUNED = "index:weights=configs/tuned/pollux-adaptive.yaml"
NEED_EPOCHS = ("srtf", "hesrpt", "optimus", "index", "pollux:favour=remaining", TUNED)
"""Policies that look at the work that is left; to the others it makes no difference what they are told of it."""
POLICIES: dict[str, str] = {
    "tuned index": TUNED,
    **{
        name: name
        for name in (
            *("pollux:favour=remaining", "pollux:favour=attained", "pollux", "index", "hesrpt", "max_throughput"),
            *("equal_share", "srtf", "optimus", "las", "tiresias", "elastic_fifo", "round_robin", "fifo"),
        )
    },
}
"""Policies by the name they have in the table."""
CLAIMS = {
    "true speeds, declared epochs": 0.80,
    "shared fits, declared epochs": 0.89,
    "shared fits, epochs unknown": 1.0,
}
"""Of Pollux's published mean: at most what the best policy reaches in a setting."""


def measure(data: Path | None) -> tuple[list[Check], dict[str, list[Row]]]:
    """Checks and the table; nothing without `data`, which has workloads and profiles."""
    if data is None or not (data / "traces" / "pollux").is_dir():
        return [], {}
    cell = kept_cells(lambda name: experiment_of(data, SETTINGS[name]))
    published = float(np.mean([jct for (policy, _), jct in PUBLISHED.items() if policy == "pollux"]))
    ratios: dict[str, dict[str, float]] = {}
    for name, spec in POLICIES.items():
        ratios[name] = {}
        for setting in SETTINGS:
            asked = setting if spec in NEED_EPOCHS else f"{setting.split(',')[0]}, declared epochs"
            ratios[name][setting] = cell(spec, asked) / published
    best = {setting: min(row[setting] for row in ratios.values()) for setting in SETTINGS}
    checks = [
        Check(f"best policy, {name}", best[name], "of Pollux's mean JCT", bound, False)
        for name, bound in CLAIMS.items()
    ]
    rows: list[Row] = [
        {"policy": name} | {key: f"{ratio:.3f}" for key, ratio in row.items()} for name, row in ratios.items()
    ]
    return checks, {"Mean JCT on workloads 1-4, divided by Pollux's published mean (2580 s)": rows}


def experiment_of(data: Path, settings: tuple[str, ...]) -> Experiment:
    """Pollux's workloads with jobs that choose their batch sizes."""
    overrides = [
        f"workload.path={json.dumps(str(data / 'traces' / 'pollux' / '*.csv'))}",
        f"profiles.folder={json.dumps(str(data / 'profiles'))}",
        "workload.mapping.adaptive_batch=true",
    ]
    return Experiment(load_config(_common.CONFIGS / "pollux.yaml", [*overrides, *settings]))


def kept_cells(make: Callable[[str], Experiment]) -> Callable[[str, str], float]:
    """A function from (policy, setting) to the mean JCT [s] over the published workloads, which keeps what it has run.

    make: the experiment of a setting.
    """
    digest = _common.sources_digest("knowledge")
    kept: dict[str, float] = {}
    if CELLS.exists():
        stored = json.loads(CELLS.read_text(encoding="utf-8"))
        kept = stored["cells"] if stored["digest"] == digest else {}
    experiments: dict[str, Experiment] = {}

    def cell(spec: str, setting: str) -> float:
        key = f"{spec} | {setting}"
        if key not in kept:
            if setting not in experiments:
                experiments[setting] = make(setting)
            experiment = experiments[setting]
            spec = spec.replace("configs/", f"{_common.CONFIGS}/")
            found = []
            for window in experiment.windows():
                if ("pollux", window) in PUBLISHED:
                    jobs = experiment.run_cell(Cell(spec, window, 0)).jobs
                    found.append(float(np.mean(jobs.finish_time - jobs.submit_time)))
            kept[key] = float(np.mean(found))
            CELLS.parent.mkdir(parents=True, exist_ok=True)
            write_text(CELLS, json.dumps({"digest": digest, "cells": kept}, indent=1), "cells")
        return kept[key]

    return cell
