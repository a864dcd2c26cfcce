"""Fuzzed: files that users give. Experiments, weights, calibrations, profiles, measurements, traces, counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from _fuzz_mutations import (
    broken_bytes,
    broken_text,
    broken_tree,
    pick,
    plain_json,
)
from _fuzz_registry import ROOT, broken_file, broken_yaml, prepared, put_file, target
from numpy.random import Generator

from rlpto.cli.forecast_series import Counted, What, read_series
from rlpto.experiments.config import load_config, resolved_yaml
from rlpto.experiments.sweep import read_space
from rlpto.io.settings_text import described_yaml
from rlpto.performance.compile import compile_tables
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.measurements import read_measurements
from rlpto.performance.profiles import Profile, builtin_profiles, load_file, profile_yaml
from rlpto.performance.tables import JobType
from rlpto.policies.index_weights import IndexWeights, load_index_weights, save_index_weights
from rlpto.policies.steering import STEERING_FEATURES
from rlpto.policies.steering_file import load_steering_weights, save_steering_weights
from rlpto.workloads.calibration import load_calibration
from rlpto.workloads.describe import tables
from rlpto.workloads.files import read_any
from rlpto.workloads.importers.registry import detect_format, import_trace
from rlpto.workloads.listed import listed_job
from rlpto.workloads.sources import FollowedFile
from rlpto.workloads.synthetic import generate
from rlpto.workloads.trace import make_trace, read_trace, write_trace
from rlpto.workloads.volume import task_volume
from tests.workloads.test_importers import SAMPLES


@cache
def configs() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted((ROOT / "configs").glob("*.yaml")))


@broken_file(3, "exp.yaml", lambda rng: broken_yaml(rng, pick(rng, configs())))
def config_file(path: Path) -> None:
    config = load_config(path)
    resolved = put_file(path.parent, "resolved.yaml", resolved_yaml(config).encode())
    assert load_config(resolved) == config, "a resolved configuration reads back otherwise"


@target(2)
def weights_file(rng: Generator, folder: Path) -> None:
    path = folder / "weights.yaml"
    if rng.random() < 0.5:
        save_index_weights(IndexWeights(), path)
    else:
        save_steering_weights(np.zeros(len(STEERING_FEATURES)), path)
    path.write_bytes(broken_yaml(rng, path.read_text()))
    assert np.isfinite(load_steering_weights(path)).all()
    load_index_weights(path)


@cache
def _calibration() -> str:
    return described_yaml(load_calibration("philly"))


@broken_file(0.5, "like.yaml", lambda rng: broken_yaml(rng, _calibration()))
def calibration_file(path: Path) -> None:
    generate(load_calibration(path), 0.1, 0)


@cache
def profiles() -> Mapping[str, Profile]:
    return builtin_profiles()


@cache
def _profile() -> str:
    return profile_yaml(profiles()["cifar10"])


@broken_file(2, "profiles.yaml", lambda rng: broken_yaml(rng, _profile()))
def profile_file(path: Path) -> None:
    profiles = load_file(path)
    for name in profiles:
        compile_tables(FittedProfiles(profiles), [JobType(name)], 8, 4)


MEASURED = {
    "placements.csv": "placement,local_bsz,step_time,sync_time\n"
    + "".join(
        f"{place},{size},{0.1 * size},{0.01 * len(str(place))}\n" for place in (1, 2, 11, 22) for size in (8, 16)
    ),
    "scalability.csv": "num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,16,8,1.0,0.2\n4,16,16,1.5,0.3\n",
    **{
        f"validation-{batch}.csv": "progress,iteration,metric,grad_sqr,grad_var\n"
        + "".join(f"{10 * i},{10 * i},{0.1 * i},1.0,2.0\n" for i in range(1, 5))
        for batch in (8, 32)
    },
}


@target(2)
def measurements(rng: Generator, folder: Path) -> None:
    broken = pick(rng, list(MEASURED))
    for name, text in MEASURED.items():
        put_file(folder, name, broken_text(rng, text) if name == broken else text.encode())
    read_measurements(folder)


@target(5)
def trace_text(rng: Generator, folder: Path) -> None:
    name = pick(rng, list(SAMPLES))
    path = put_file(folder, "trace.log", broken_text(rng, SAMPLES[name]))
    trace = import_trace(name if rng.random() < 0.8 else detect_format(path), path, bool(rng.integers(2))).trace
    _used(trace, folder)


def _used(trace: Any, folder: Path) -> None:
    """Everything that a trace is used for at once."""
    tables(trace, 8)
    task_volume(trace, 600.0, "gpus")
    write_trace(trace, folder / "out.parquet")
    assert len(read_trace(folder / "out.parquet")) == len(trace), "a trace reads back otherwise"


@prepared
def _parquet() -> bytes:
    columns = {"name": ["a", "b"], "submit_time": [0.0, 5.0], "duration": [1.0, np.nan], "gpus": [1, 2]}
    path = Path("fuzz.parquet")
    write_trace(make_trace(columns, "fuzz"), path)
    return path.read_bytes()


@broken_file(2, "trace.parquet", lambda rng: broken_bytes(rng, _parquet()))
def trace_parquet(path: Path) -> None:
    _used(read_any(path), path.parent)


FOLLOWED = """\
{"model": "cifar10", "submit": 0, "gpus": 2}
{"name": "second", "model": "ncf", "submit": 60.5, "epochs": 3, "priority": "high", "max_gpus": 4}
{"closed": true}
"""


@broken_file(2, "jobs.jsonl", lambda rng: _broken_lines(rng, FOLLOWED))
def followed_file(path: Path) -> None:
    facts = FittedProfiles(profiles()).facts
    source = FollowedFile(path, lambda entry, number: listed_job(entry, number, facts, 8))
    source.poll()
    source.poll()


def _broken_lines(rng: Generator, text: str) -> bytes:
    """JSON lines broken as text, or with a value of one of them replaced."""
    if rng.random() < 0.4:
        return broken_text(rng, text)
    lines = text.encode().splitlines(keepends=True)
    at = int(rng.integers(len(lines)))
    lines[at] = plain_json(broken_tree(rng, json.loads(lines[at]))) + b"\n"
    return b"".join(lines)


COUNTS = "time,count\n" + "".join(f"2020-04-01 {hour:02d}:00:00,{hour}\n" for hour in range(24))


@broken_file(2, "counts.csv", lambda rng: broken_text(rng, COUNTS))
def counts_file(path: Path) -> None:
    read_series(path, Counted("1h", What.jobs, None, None, None, "time", "count"))


SPACE = "agent.ppo.learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true}\nagent.network.width: [16, 32]\n"


@broken_file(1, "space.yaml", lambda rng: broken_yaml(rng, SPACE))
def space_file(path: Path) -> None:
    read_space(path)
