"""The log of a job in its folder: what rank 0 prints, and how training goes, as numbered lines in two files at most.

A line is JSON: {"n": number from 1 on, "at": seconds, "text": ...}. When `log.jsonl` is full it becomes `log.jsonl.1`,
in place of the one before; numbers go on over both.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

LOG, OLDER = "log.jsonl", "log.jsonl.1"
FILE_BYTES = 10_000_000
"""Size of a file at which another one is begun."""
LONGEST_LINE = 4000
"""Characters of a line; what is beyond is cut off."""
_TAIL_BYTES = 65_536


class OutputLog:
    """The log of one job. Where the disk refuses it is silent: a log is no reason to disturb training."""

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES) -> None:
        self._path, self._older, self._file_bytes = folder / LOG, folder / OLDER, file_bytes
        self._number = _last_number(self._path) or _last_number(self._older) or 0

    def write(self, text: str, at: float | None = None) -> None:
        """Append text, line by line. at: when that was said, on the clock of `time.time`; None: now."""
        when = round(time.time() if at is None else at, 3)
        lines = []
        for line in text.rstrip("\n").split("\n"):
            self._number += 1
            lines.append(json.dumps({"n": self._number, "at": when, "text": line[:LONGEST_LINE]}))
        written = ("\n".join(lines) + "\n").encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and self._path.stat().st_size + len(written) > self._file_bytes:
                self._path.replace(self._older)
            with self._path.open("ab") as file:
                if file.tell() and not _ends_whole(self._path):
                    written = b"\n" + written  # a writer was killed within a line
                file.write(written)
        except OSError:
            return


def _last_number(path: Path) -> int | None:
    """Number of the last whole line of a file; None: there is none."""
    for line in reversed(_tail(path).split(b"\n")):
        try:
            return int(json.loads(line)["n"])
        except (ValueError, KeyError, TypeError):
            continue
    return None


def _ends_whole(path: Path) -> bool:
    return _tail(path, 1) == b"\n"


def _tail(path: Path, size: int = _TAIL_BYTES) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - size))
            return file.read()
    except OSError:
        return b""
