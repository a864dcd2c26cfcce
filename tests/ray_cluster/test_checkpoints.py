"""Checkpoints on disk: the newest two, whole, and never a damaged one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.errors import CheckpointError
from rlpto.ray_cluster.job.checkpoints import drop_checkpoints, list_checkpoints, read_newest, write_checkpoint


def test_the_newest_two_stay(tmp_path: Path) -> None:
    assert read_newest(tmp_path / "none") is None
    for step in (5, 900, 77, 1000):
        last = write_checkpoint(tmp_path, step, f"state of {step}".encode())
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [1000, 900]
    assert read_newest(tmp_path) == (last, b"state of 1000", [])
    drop_checkpoints(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_one_falls_back_to_the_one_before(tmp_path: Path) -> None:
    before = write_checkpoint(tmp_path, 1, b"one")
    newest = write_checkpoint(tmp_path, 2, b"two")
    Path(newest.path).write_bytes(b"twp")
    found = read_newest(tmp_path)
    assert found is not None
    assert found[:2] == (before, b"one")
    assert len(found[2]) == 1
    assert f"{newest.path}: damaged" in found[2][0]
    Path(before.path).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"damaged.*damaged"):
        read_newest(tmp_path)


def test_unfinished_and_foreign_files_are_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / ".step-000000000001-aa.ckpt.7.part").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    assert list_checkpoints(tmp_path) == []
    drop_checkpoints(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_disk_that_refuses_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = write_checkpoint(tmp_path, 1, b"one")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CheckpointError, match="cannot write a checkpoint there: no space left on device"):
        write_checkpoint(tmp_path, 2, b"two")
    assert list_checkpoints(tmp_path) == [kept]
    assert len(list(tmp_path.iterdir())) == 1
