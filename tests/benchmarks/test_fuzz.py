"""A few hundred broken files, settings and answers; `python benchmarks/fuzz.py --cases 100000` breaks more."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from rlpto.experiments.config import Config, resolved_yaml
from rlpto.workloads.importers.registry import FORMATS

# At the end: there is a ray.py in it.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import _fuzz_targets as targets

CASES = 12
SLOW = {"agent_file", "environment", "forecaster_file", "verb"}
"""Need seconds to begin with; the benchmark has them."""


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        pytest.param(target, allowed, id=target.__name__)
        for _, target, allowed in targets.TARGETS
        if target.__name__ not in SLOW
    ],
)
def test_broken_input_ends_in_one_line(target, allowed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = 0
    for case in range(CASES):
        folder = tmp_path / str(case)
        folder.mkdir()
        try:
            target(np.random.default_rng([7, case]), folder)
        except allowed as error:
            refused += 1
            said = str(error)
        else:
            said = ""
        assert "\n" not in said or target is targets.arguments
        assert not list(folder.rglob("*.part"))
    assert refused, "nothing was broken"


def test_every_kind_of_file_setting_and_answer_has_a_target() -> None:
    names = {target.__name__ for _, target, _ in targets.TARGETS}
    assert len(names) == len(targets.TARGETS)
    assert {"trace_text", "trace_parquet", "followed_file", "profile_file", "config_file", "agent_file"} <= names
    assert {"forecaster_file", "counts_file", "record_file", "run_folder", "session_file", "override"} <= names
    assert {"policy_answer", "arguments", "environment", "verb"} <= names
    assert set(targets.SAMPLES) == set(FORMATS)
    resolved = yaml.safe_load(resolved_yaml(Config()))
    assert {key for key, value in leaves(resolved) if value is not None} <= {".".join(key) for key in targets.KEYS}


def leaves(tree: object, around: str = "") -> Iterator[tuple[str, object]]:
    """Keys of plain data with dots, list positions left out."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{around}.{key}" if around else key)
    else:
        yield around, tree
