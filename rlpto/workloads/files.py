"""Writing files whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlpto.errors import RlptoError


@contextmanager
def whole_file(path: Path, what: str, error: type[RlptoError]) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place if all goes well and vanishes otherwise.

    Folders on the way are made. Raises `error`, saying that `what` cannot be written, where the
    file system refuses.
    """
    unfinished = path.with_name(f".{path.name}.part")
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
