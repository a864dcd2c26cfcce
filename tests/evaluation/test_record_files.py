"""Run records on disk."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.records import PolicySwitches, RunRecord
from rlpto.evaluation.record_files import load_record, save_record
from rlpto.evaluation.runner import Cell
from rlpto.io.errors import CheckpointError

from .helpers import empty_record, tiny_record, toy_record


def same(a: RunRecord, b: RunRecord) -> bool:
    """Equal in every field, type and bit."""
    for name in ("policy", "window", "seed", "capacity", "wall_seconds"):
        assert getattr(a, name) == getattr(b, name)
        assert type(getattr(a, name)) is type(getattr(b, name))
    for group in ("jobs", "decisions", "changes", "switches"):
        for field in fields(getattr(a, group)):
            x, y = getattr(getattr(a, group), field.name), getattr(getattr(b, group), field.name)
            if isinstance(x, tuple):
                assert x == y
            else:
                np.testing.assert_array_equal(x, y)
                assert x.dtype == y.dtype
    return True


@settings(max_examples=10)
@given(seed=st.integers(0, 99), jobs=st.integers(1, 10), policy=st.text(st.characters(codec="utf-8"), max_size=9))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, seed: int, jobs: int, policy: str) -> None:
    # NumPy strings cannot end in NUL, which no name of a policy does.
    record = toy_record(Cell(policy.rstrip("\0"), "w", seed), jobs=jobs)
    path = tmp_path_factory.mktemp("records") / "run.npz"
    save_record(record, path)
    assert same(load_record(path), record)


def test_round_trip_of_missing_times_of_no_jobs_and_of_switches(tmp_path: Path) -> None:
    switched = replace(tiny_record(), switches=PolicySwitches(np.array([0.0, 60.0]), ("fifo", "las")))
    for record in (tiny_record(finish=(1.0, np.nan, np.nan)), empty_record(), switched):
        save_record(record, tmp_path / "run.npz")
        assert same(load_record(tmp_path / "run.npz"), record)


def test_a_foreign_cut_pickled_or_inconsistent_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    save_record(tiny_record(), tmp_path / "whole.npz")
    with np.load(tmp_path / "whole.npz") as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "pickled.npz", **arrays | {"jobs.names": np.array([{"a": 1}, None, "c"], dtype=object)})
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:900])
    np.savez(tmp_path / "foreign.npz", a=np.zeros(3))
    for name in ("cut.npz", "foreign.npz", "absent.npz", "pickled.npz"):
        with pytest.raises(CheckpointError, match=f"{name}: .*expected a run record"):
            load_record(tmp_path / name)
    for name, wrong in {"jobs.epochs": np.ones(2), "changes.job": np.full(6, 99), "jobs.priority": np.ones(3)}.items():
        np.savez(tmp_path / "wrong.npz", **arrays | {name: wrong})
        with pytest.raises(CheckpointError, match=rf"wrong\.npz: .*{name}"):
            load_record(tmp_path / "wrong.npz")
