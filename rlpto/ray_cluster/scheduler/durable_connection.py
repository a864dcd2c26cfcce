"""A connection to SQLite whose writes wait for a full disk, and whose errors are one line."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlpto.io.errors import ClusterError

LOCK_TIMEOUT_S = 10.0
"""Longest wait for another process that writes, before that is said and waited for as a full disk is."""
RETRY_INTERVAL_S = 1.0
"""Time between two attempts to write what the disk had no room for."""
NOTICE_INTERVAL_S = 120.0
"""Time between two lines about a wait that goes on."""

DAMAGE = (sqlite3.Error, UnicodeDecodeError, OverflowError)
"""What a damaged file makes Python's SQLite raise: the latter two where names or numbers in it make no sense."""

Row = Sequence[Any]
_REFUSED = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)
"""Primary result codes of writes that may succeed later: no room, somebody else writes, or the device refuses."""
_READS = {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ}


class DurableConnection:
    """The SQLite database at `path`, which this process alone writes to.

    say: is told in one line that a write waits, now and then while it does, and when it goes on. Ctrl-C ends the wait,
    and from then on writes that fail raise.

    Raises ClusterError for all that SQLite refuses otherwise, such as damage.
    """

    def __init__(self, path: Path, say: Callable[[str], object]) -> None:
        self.path = path
        self._waits: list[float] = []
        self._say = say
        self._may_wait = False
        self._pending: list[tuple[str, Row]] | None = None
        with self._clear_errors():
            self._base = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)

    def wait_for_room(self) -> None:
        """From now on writes wait where they would fail: the database is known to be sound."""
        self._may_wait = True

    def rows(self, query: str, values: Row = ()) -> list[tuple[Any, ...]]:
        """All rows that a query finds."""
        with self._clear_errors():
            return self._base.execute(query, values).fetchall()

    def write(self, statement: str, *rows: Row) -> None:
        """Run a statement once for each of `rows`, which hold its values; all of them or none."""
        with self.transaction() as pending:
            pending += [(statement, values) for values in rows]

    @contextmanager
    def transaction(self) -> Iterator[list[tuple[str, Row]]]:
        """Everything written inside is kept at its end, or nothing of it. Inside another one: part of that.

        Yields what is to be written. Until the end nobody reads it, this process neither.
        """
        if self._pending is not None:
            yield self._pending
            return
        self._pending = []
        try:
            yield self._pending
            self._write(self._pending)
        finally:
            self._pending = None

    def _write(self, statements: Sequence[tuple[str, Row]]) -> None:
        """Write all of it; where that is refused for now, wait until it is not."""
        since, told = time.monotonic(), -math.inf
        with self._clear_errors():
            while True:
                try:
                    with self._base:
                        self._base.execute("BEGIN IMMEDIATE")
                        for statement, values in statements:
                            self._base.execute(statement, values)
                    break
                except sqlite3.Error as error:
                    if not self._may_wait or not _may_succeed_later(error):
                        raise
                    refused = error
                waited = time.monotonic() - since
                if waited >= told + NOTICE_INTERVAL_S:
                    told = waited
                    self._say(f"{self.path}: cannot be written ({refused}): jobs go on, the scheduler waits")
                try:
                    time.sleep(RETRY_INTERVAL_S)
                except KeyboardInterrupt:
                    self._may_wait = False  # whoever ends the session meanwhile does not wait either
                    raise
        if told > -math.inf:
            self._waits.append(time.monotonic() - since)
            self._say(f"{self.path}: can be written again after {self._waits[-1]:.0f} s: the scheduler goes on")

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except DAMAGE as error:
            if isinstance(error, sqlite3.Error) and _may_succeed_later(error):
                raise ClusterError(f"{self.path}: the session database cannot be written now: {error}") from None
            raise unusable(self.path, error) from None

    def take_waits(self) -> list[float]:
        """Seconds of each wait for a full disk since this was last asked."""
        waits, self._waits = self._waits, []
        return waits

    def close(self) -> None:
        """Let go of the file."""
        with self._clear_errors():
            self._base.close()


def unusable(path: Path, reason: object) -> ClusterError:
    """The error of a session database that is damaged, or is none."""
    said = " ".join(str(reason).split())  # SQLite quotes what it cannot read, whatever is in it
    return ClusterError(
        f"{path}: cannot be used as a session database: {said[:300]}; expected the file as a scheduler has left it: "
        "put back a copy, or start over with --fresh or another run folder"
    )


def _may_succeed_later(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in _REFUSED and code not in _READS
