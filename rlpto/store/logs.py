"""The log of a job in its folder: output of its workers and progress of training, as numbered lines in at most two
files.

A line is JSON: {"n": number from 1 on, "at": seconds, "text": ...}. When `log.jsonl` is full, it replaces
`log.jsonl.1`; numbers continue across both.
"""

from __future__ import annotations

import json
import os
import re
import time
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

LOG, OLDER = "log.jsonl", "log.jsonl.1"
FILE_BYTES = 10_000_000
"""Size at which a new file is begun."""
LONGEST_LINE = 4000
"""Most characters of a line; the rest is cut off."""
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_START, _END = b'{"n": ', b'"}'


@dataclass(frozen=True)
class LogLine:
    """A line. n: number, from 1. at: time [s]."""

    n: int
    at: float
    text: str


def job_folder(run: Path, job: str) -> Path:
    """Folder of a job. Raises ValueError if `job` is not a job id, but for example a path."""
    if not _ID.fullmatch(job):
        raise ValueError(f"{job!r} is no id of a job")
    return run / "jobs" / job


def log_lines(run: Path, job: str, start: int, limit: int) -> list[LogLine]:
    """At most `limit` lines from number `start`. A negative `start` means that many lines at the end.

    Lines that are gone, or half-written by a killed process, are left out. Raises ValueError if `job` is not a job id.
    """
    folder = job_folder(run, job)
    lines = _whole_lines(folder / LOG)
    if not lines or (len(lines) < -start if start < 0 else start < _number(lines[0])):
        lines = _whole_lines(folder / OLDER) + lines
    first = max(len(lines) + start, 0) if start < 0 else bisect_left(lines, start, key=_number)
    return [found for line in lines[first : first + limit] if (found := _parsed(line)) is not None]


def _whole_lines(file: Path) -> list[bytes]:
    """Completely written lines of a file, in order of their numbers."""
    try:
        text = file.read_bytes()
    except OSError:
        return []
    return [line for line in text.split(b"\n") if line.startswith(_START) and line.endswith(_END)]


def _parsed(line: bytes) -> LogLine | None:
    try:
        found = json.loads(line)
        return LogLine(int(found["n"]), float(found["at"]), str(found["text"]))
    except (ValueError, KeyError, TypeError):
        return None


def _number(line: bytes) -> int:
    return int(line[len(_START) : line.index(b",")])


def encodable(text: str) -> str:
    """Escape surrogates in a text, such as from file names that are not UTF-8, because neither a file nor the database
    accepts them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class OutputLog:
    """The log of one job. It ignores write errors, because a log must not disturb training."""

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES) -> None:
        self._path, self._older, self._file_bytes = folder / LOG, folder / OLDER, file_bytes
        written = _whole_lines(self._path) or _whole_lines(self._older)
        self._number = _number(written[-1]) if written else 0

    def write(self, text: str, at: float | None = None) -> None:
        """Append text, line by line. at: time of the text [s of `time.time`]. Default: now."""
        when = round(time.time() if at is None else at, 3)
        lines = []
        for line in encodable(text).rstrip("\n").split("\n"):
            self._number += 1
            lines.append(json.dumps({"n": self._number, "at": when, "text": line[:LONGEST_LINE]}))
        written = ("\n".join(lines) + "\n").encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and self._path.stat().st_size + len(written) > self._file_bytes:
                self._path.replace(self._older)
            with self._path.open("ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read() != b"\n":
                        written = b"\n" + written  # a writer was killed within a line
                file.write(written)
        except OSError:
            return
