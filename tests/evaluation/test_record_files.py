"""Records written to files and read again."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.records import PolicySwitches, RunRecord
from rlpto.evaluation.record_files import RECORD, load_record, record_bytes
from rlpto.evaluation.runner import Cell
from rlpto.io.archive import read_archive, write_archive
from rlpto.io.errors import CheckpointError

from .helpers import empty_record, tiny_record, toy_record


def same(a: RunRecord, b: RunRecord) -> bool:
    """Equal in every field, type and bit."""
    for name in ("policy", "window", "seed", "capacity", "wall_seconds", "end"):
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
    record = toy_record(Cell(policy, "w", seed), jobs=jobs)
    path = tmp_path_factory.mktemp("records") / "run.safetensors"
    path.write_bytes(record_bytes(record))
    assert same(load_record(path), record)


def test_round_trip_of_missing_times_of_no_jobs_and_of_switches(tmp_path: Path) -> None:
    switched = replace(tiny_record(), switches=PolicySwitches(np.array([0.0, 60.0]), ("fifo", "las")))
    for record in (tiny_record(finish=(1.0, np.nan, np.nan)), empty_record(), switched):
        (tmp_path / "run.safetensors").write_bytes(record_bytes(record))
        assert same(load_record(tmp_path / "run.safetensors"), record)


def test_a_foreign_cut_or_inconsistent_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "whole.safetensors").write_bytes(record_bytes(tiny_record()))
    archive = read_archive(tmp_path / "whole.safetensors", (RECORD,))
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:900])
    write_archive(tmp_path / "foreign.safetensors", {"format": RECORD}, {"a": np.zeros(3)}, "a test")
    for name in ("cut", "foreign", "absent"):
        with pytest.raises(CheckpointError, match=f"{name}.safetensors: .*expected rlpto record 2"):
            load_record(tmp_path / f"{name}.safetensors")
    for name, wrong in {"jobs.epochs": np.ones(2), "changes.job": np.full(6, 99), "jobs.priority": np.ones(3)}.items():
        write_archive(tmp_path / "wrong", archive.manifest, archive.arrays | {name: wrong}, "a test")
        with pytest.raises(CheckpointError, match=rf"wrong: .*{name}"):
            load_record(tmp_path / "wrong")
    texts: dict[str, np.ndarray] = {
        "jobs.names": np.ones(3),
        "jobs.models": np.full(9, 255, np.uint8),
        "jobs.names.ends": np.array([1, 0, 3]),
        "jobs.models.ends": np.array([1, 2]),
    }
    for name, wrong in texts.items():
        write_archive(tmp_path / "wrong", archive.manifest, archive.arrays | {name: wrong}, "a test")
        with pytest.raises(CheckpointError, match="wrong: "):
            load_record(tmp_path / "wrong")


@pytest.mark.slow
def test_a_million_names_are_kept(tmp_path: Path) -> None:
    record = toy_record(Cell("fifo", "w", 0), jobs=2)
    times = {
        field.name: np.resize(getattr(record.jobs, field.name), 10**6)
        for field in fields(record.jobs)
        if field.name not in ("names", "models")
    }
    names = tuple(f"the job with the number {number}" for number in range(10**6))
    many = replace(record, jobs=replace(record.jobs, names=names, models=names, **times))
    (tmp_path / "run.safetensors").write_bytes(record_bytes(many))
    assert load_record(tmp_path / "run.safetensors").jobs.names == names
