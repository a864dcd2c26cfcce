"""Checkpoints on disk: the newest two, whole, and never a damaged one."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest

from rlpto.io.errors import CheckpointError
from rlpto.ray_cluster.job.job_folder import LONGEST_FAILURE, JobFolder
from rlpto.store.checkpoints import drop_checkpoints, list_checkpoints, read_newest, write_checkpoint
from tests.ray_cluster.running import make_spec


def test_the_newest_two_stay_and_a_damaged_one_falls_back_to_the_one_before(tmp_path: Path) -> None:
    foreign = {tmp_path / ".step-000000000001-aa.ckpt.7.part", tmp_path / "notes.txt"}
    for path in foreign:
        path.write_bytes(b"mine")
    assert read_newest(tmp_path / "none") is None
    assert read_newest(tmp_path) is None
    for step in (5, 77, 900, 1000):
        newest = write_checkpoint(tmp_path, step, f"state of {step}".encode())
    _, before = list_checkpoints(tmp_path)
    assert before.step == 900
    assert read_newest(tmp_path) == (newest, b"state of 1000", [])
    Path(newest.path).write_bytes(b"state of 1001")
    found = read_newest(tmp_path)
    assert found is not None
    assert found[:2] == (before, b"state of 900")
    assert [text.split("damaged")[0] for text in found[2]] == [f"{newest.path}: "]
    Path(before.path).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"damaged.*damaged"):
        read_newest(tmp_path)
    drop_checkpoints(tmp_path)
    assert set(tmp_path.iterdir()) == foreign


def test_a_step_that_is_trained_again_replaces_its_damaged_checkpoint(tmp_path: Path) -> None:
    before = write_checkpoint(tmp_path, 900, b"before")
    Path(write_checkpoint(tmp_path, 1000, b"first").path).write_bytes(b"damaged")
    again = write_checkpoint(tmp_path, 1000, b"second")
    assert list_checkpoints(tmp_path) == [again, before]


def test_a_job_that_starts_over_keeps_its_new_checkpoints(tmp_path: Path) -> None:
    folder = JobFolder(make_spec(tmp_path))
    for step in (5000, 5100):
        folder.write(step, b"state")
    for checkpoint in list_checkpoints(tmp_path):
        Path(checkpoint.path).write_bytes(b"damaged")
    assert folder.newest_state() is None
    for step in (10, 20):
        folder.write(step, b"new state")
        assert folder.newest_state() == (step, b"new state")
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [20, 10]


def test_a_disk_that_refuses_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = write_checkpoint(tmp_path, 1, b"one")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CheckpointError, match="cannot write a checkpoint there: no space left on device"):
        write_checkpoint(tmp_path, 2, b"two")
    assert list_checkpoints(tmp_path) == [kept]
    assert len(list(tmp_path.iterdir())) == 1


def test_checkpoints_that_somebody_deletes_are_noted(tmp_path: Path) -> None:
    folder = JobFolder(make_spec(tmp_path / "job"))
    assert folder.begin(resume=False) is None
    folder.write(10, b"state")
    assert folder.failure == ""
    shutil.rmtree(tmp_path / "job")
    folder.write(20, b"state")
    assert "step-000000000010" in folder.failure
    assert "the checkpoint was deleted: a new one is written" in folder.failure
    assert folder.checkpoint is not None
    assert folder.checkpoint.step == 20
    shutil.rmtree(tmp_path / "job")
    assert folder.newest_state() is None
    assert "step-000000000020" in folder.failure
    assert folder.failure.endswith("the job starts over")
    assert "the checkpoint was deleted" in (tmp_path / "job" / "failures.log").read_text()
    shutil.rmtree(tmp_path / "job")
    again = JobFolder(make_spec(tmp_path / "job"))
    assert again.begin(resume=True) is None
    assert "files of the job's earlier controller are gone: it starts over" in again.failure


def test_one_step_that_is_written_twice_is_written_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background and, because the workers change just then, at once."""
    folder, both, write = JobFolder(make_spec(tmp_path / "job")), Barrier(2, timeout=0.2), Path.write_bytes

    def slowly(path: Path, content: bytes) -> int:
        written = write(path, content)
        with suppress(BrokenBarrierError):
            both.wait()
        return written

    monkeypatch.setattr(Path, "write_bytes", slowly)

    async def twice() -> None:
        await asyncio.gather(*(folder.save(5, b"state", True) for _ in range(2)))

    asyncio.run(twice())
    assert folder.failure == ""
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "job")] == [5]


def test_whatever_a_script_raises_is_a_text_that_files_and_the_database_take(tmp_path: Path) -> None:
    folder = JobFolder(make_spec(tmp_path / "job"))
    folder.log_failure('Traceback (most recent call last):\n  File "a.py"\nOSError: \udcff' + 10**6 * "x")
    assert folder.failure.encode().startswith(b'Traceback (most recent call last):\n  File "a.py"\nOSError: \\udcffxx')
    assert len(folder.failure) < LONGEST_FAILURE + 100
    assert "characters are left out" in folder.failure
    assert (tmp_path / "job" / "failures.log").read_text().endswith("xx\n")
