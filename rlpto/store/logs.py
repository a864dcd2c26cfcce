"""The log of a job in its folder: what rank 0 prints, and how training goes, as numbered lines in two files at most.

A line is JSON: {"n": number from 1 on, "at": seconds, "text": ...}. When `log.jsonl` is full it becomes `log.jsonl.1`,
in place of the one before; numbers go on over both.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

LOG, OLDER = "log.jsonl", "log.jsonl.1"
FILE_BYTES = 10_000_000
"""Size of a file at which another one is begun."""
LONGEST_LINE = 4000
"""Characters of a line; what is beyond is cut off."""
_TAIL_BYTES = 65_536
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class LogLine:
    """A line. n: counts from 1. at: s."""

    n: int
    at: float
    text: str


def job_folder(run: Path, job: str) -> Path:
    """Where everything of a job is kept. Raises ValueError for what is no id, such as a path."""
    if not _ID.fullmatch(job):
        raise ValueError(f"{job!r} is no id of a job")
    return run / "jobs" / job


def log_files(run: Path, job: str) -> tuple[Path, Path]:
    """The older and the newer log file of a job, which need not be there. Raises ValueError as `job_folder`."""
    folder = job_folder(run, job)
    return folder / OLDER, folder / LOG


def log_lines(run: Path, job: str, start: int, limit: int) -> list[LogLine]:
    """At most `limit` lines from number `start` on; a negative start: the last so many lines.

    Lines that are gone, or half-written by a killed process, are left out. Raises ValueError as `job_folder`.
    """
    older, newer = log_files(run, job)
    if start < 0:
        wanted = min(-start, limit)
        found = list(_take(_lines_backwards(newer), wanted))
        if len(found) < wanted:
            found += _take(_lines_backwards(older), wanted - len(found))
        return found[::-1]
    first = next(_lines(newer), None)
    files = (older, newer) if first is None or start < first.n else (newer,)
    return list(_take((line for file in files for line in _lines(file, start) if line.n >= start), limit))


def _take(lines: Iterator[LogLine], count: int) -> Iterator[LogLine]:
    for _, line in zip(range(count), lines, strict=False):
        yield line


def _lines(file: Path, start: int = 0) -> Iterator[LogLine]:
    """Lines of a file in order, from somewhat before number `start` on."""
    try:
        with file.open("rb") as opened:
            opened.seek(_offset_before(opened, start))
            for raw in opened:
                line = _parsed(raw)
                if line is not None:
                    yield line
    except FileNotFoundError:
        return


def _offset_before(opened: BinaryIO, start: int) -> int:
    """Where a line begins that stands at most a block before the one of number `start`: numbers ascend, so halve."""
    low, high = 0, opened.seek(0, 2)
    while high - low > _BLOCK_BYTES:
        opened.seek((low + high) // 2)
        opened.readline()
        at, line = opened.tell(), _parsed(opened.readline())
        if line is None or line.n >= start or at >= high:
            high = (low + high) // 2
        else:
            low = at
    return low


def _lines_backwards(file: Path) -> Iterator[LogLine]:
    try:
        with file.open("rb") as opened:
            at, rest = opened.seek(0, 2), b""
            while at > 0:
                size = min(_BLOCK_BYTES, at)
                at -= size
                opened.seek(at)
                rest, *whole = (opened.read(size) + rest).split(b"\n")
                yield from filter(None, map(_parsed, reversed(whole)))
            found = _parsed(rest)
            if found is not None:
                yield found
    except FileNotFoundError:
        return


def _parsed(raw: bytes) -> LogLine | None:
    try:
        line = json.loads(raw)
        return LogLine(int(line["n"]), float(line["at"]), str(line["text"]))
    except (ValueError, KeyError, TypeError):
        return None


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
