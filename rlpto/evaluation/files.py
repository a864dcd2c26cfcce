"""Writing files so that no half-written one is ever seen."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from rlpto.errors import CheckpointError


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Fill a temporary file beside `path` with `write`, then move it there.

    Raises CheckpointError if the file cannot be written; what was there before is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            write(file)
        temporary.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary.exists():
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically; raises CheckpointError."""
    write_atomic(path, lambda file: file.write(text.encode()))
