"""Checkpoints in a job's folder, from which controllers resume and which users download."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rlpto.io.errors import CheckpointError, refusals_as, system_reason
from rlpto.io.files import whole_file

KEPT_CHECKPOINTS = 2
"""Number of checkpoints kept. The previous one is used if the newest is damaged."""

_NAME = re.compile(r"step-(\d{12})-([0-9a-f]{64})\.ckpt")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk. step: its training step. sha256: hash of the file, in hexadecimal."""

    step: int
    path: str
    sha256: str


def write_checkpoint(folder: Path, step: int, state: bytes) -> Checkpoint:
    """Write `state` as the checkpoint of `step`. It and the newest of earlier steps stay, `KEPT_CHECKPOINTS` in all.

    Those of later steps are from a training that was given up, as none of them could be read; another one of this step
    may be damaged. The file's name holds its hash. Raises CheckpointError if the disk is full or the folder may not be
    written; all older checkpoints are then still there.
    """
    digest = hashlib.sha256(state).hexdigest()
    path = folder / f"step-{step:012d}-{digest}.ckpt"
    with whole_file(path, "a checkpoint") as unfinished:
        unfinished.write_bytes(state)
    found, new = list_checkpoints(folder), Checkpoint(step, str(path), digest)
    kept = [new, *[one for one in found if one.step < step][: KEPT_CHECKPOINTS - 1]]
    for other in found:
        if other not in kept:
            Path(other.path).unlink(missing_ok=True)
    return new


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """All checkpoints of a folder by name, newest first, without checking that they are sound."""
    if not folder.is_dir():
        return []
    found = ((path, *name_of(path.name)) for path in folder.iterdir())
    named = [Checkpoint(step, str(path), digest) for path, step, digest in found if digest]
    return sorted(named, key=lambda checkpoint: checkpoint.step, reverse=True)


def name_of(file: str) -> tuple[int, str]:
    """Step and SHA-256 in a checkpoint's file name; 0 and an empty string for other names."""
    match = _NAME.fullmatch(file)
    return (int(match[1]), match[2]) if match else (0, "")


def read_newest(folder: Path) -> tuple[Checkpoint, bytes, list[str]] | None:
    """The newest sound checkpoint, its content, and problems with newer ones; None if there are no checkpoints.

    Raises CheckpointError if there are checkpoints, but none is sound.
    """
    wrong: list[str] = []
    found = open_newest(folder, wrong.append)
    if found is not None:
        with found[1] as file:
            return found[0], file.read(), wrong
    if wrong:
        raise CheckpointError("; ".join(wrong))
    return None


def open_newest(folder: Path, say: Callable[[str], object] = lambda _: None) -> tuple[Checkpoint, BinaryIO] | None:
    """Open the newest sound checkpoint, positioned at its start; None if there is none. say: called with problems of
    newer ones.

    The open file stays readable even if the job removes it.
    """
    for checkpoint in list_checkpoints(folder):
        try:
            file = Path(checkpoint.path).open("rb")  # noqa: SIM115 - it is handed on open
            is_sound = hashlib.file_digest(file, "sha256").hexdigest() == checkpoint.sha256
        except OSError as refused:
            say(f"{checkpoint.path}: cannot be read: {system_reason(refused)}")
            continue
        if is_sound:
            file.seek(0)
            return checkpoint, file
        file.close()
        say(f"{checkpoint.path}: damaged: its content is not that of its hash")
    return None


def drop_checkpoints(folder: Path) -> None:
    """Remove all checkpoints of an earlier job of the same name. Raises CheckpointError if one cannot be removed."""
    refused = folder.glob("step-*.refused") if folder.is_dir() else ()
    for path in [*(Path(checkpoint.path) for checkpoint in list_checkpoints(folder)), *refused]:
        with refusals_as(CheckpointError, f"{path}: cannot be removed"):
            path.unlink(missing_ok=True)
