"""Printed output of a training program, kept by its worker until the controller takes it."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any, TextIO

MOST_LINES, LONGEST_LINE = 2000, 4000
"""Most kept lines, and most characters of one; further lines replace the oldest, longer lines are cut."""
Lines = tuple[tuple[float, str], ...]
"""When a line was printed (`time.time()`), and the line."""


class PrintedLines:
    """Records the lines that Python code of this process prints, and passes them on to their former destination.

    Output of libraries that bypass Python's `sys.stdout` and `sys.stderr` is not recorded.
    """

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str]] = deque(maxlen=MOST_LINES)
        self._dropped = 0

    def install(self) -> None:
        """From now on."""
        sys.stdout, sys.stderr = _Tee(sys.stdout, self), _Tee(sys.stderr, self)

    def add(self, line: str) -> None:
        """A line was printed."""
        self._dropped += len(self._lines) == MOST_LINES
        self._lines.append((time.time(), line[:LONGEST_LINE]))

    def take(self) -> Lines:
        """The lines since this was last asked."""
        lines, dropped = [], self._dropped
        while self._lines:  # another thread may print meanwhile
            lines.append(self._lines.popleft())
        self._dropped = 0
        if dropped:
            lines.insert(0, (lines[0][0], f"({dropped} lines are left out)"))
        return tuple(lines)


class _Tee:
    """A text stream whose lines are noted."""

    def __init__(self, stream: TextIO, lines: PrintedLines) -> None:
        self._stream, self._noted, self._rest = stream, lines, ""

    def write(self, text: str) -> int:
        *whole, self._rest = (self._rest + text).replace("\r\n", "\n").split("\n")
        for line in whole:
            self._noted.add(line.rpartition("\r")[2])  # the last state of a progress bar that is redrawn
        if len(self._rest) > 2 * LONGEST_LINE:
            self._rest = self._rest[-LONGEST_LINE:]
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
