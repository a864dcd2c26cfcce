"""Writing files whole or not at all, and telling them apart."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlpto.errors import CheckpointError, ConfigError, RlptoError


@contextmanager
def whole_file(path: Path, what: str, error: type[RlptoError] = CheckpointError) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place if all goes well and vanishes otherwise.

    Folders on the way are made. Raises `error`, saying that `what` cannot be written, where the
    file system refuses; what stood at `path` before is then unchanged.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield unfinished
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as refused:
        reason = (refused.strerror or str(refused)).lower()
        raise error(f"{path}: cannot write {what} there: {reason}") from None


def write_text(path: Path, text: str, what: str, error: type[RlptoError] = CheckpointError) -> None:
    """Write `text` as UTF-8 by `whole_file`."""
    with whole_file(path, what, error) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="")


def digest(path: Path) -> str:
    """SHA-256 of a file. Raises ConfigError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file: {(error.strerror or str(error)).lower()}") from None
