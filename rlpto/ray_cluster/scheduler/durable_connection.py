"""A connection to SQLite whose writes wait for a full disk, and whose errors are one line."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlpto.errors import ClusterError

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
    """The SQLite database at `path`, in autocommit mode but for `transaction`.

    say: is told in one line that a write waits, now and then while it does, and when it goes on. What a transaction
    has written is remembered until it is committed, since SQLite may have rolled it back when the disk was full: then
    all of it is written again. Ctrl-C ends the wait, and from then on writes that fail raise.
    waits: seconds of each wait, for whoever takes note of them.

    Raises ClusterError for all that SQLite refuses otherwise, such as damage.
    """

    def __init__(self, path: Path, say: Callable[[str], object]) -> None:
        self.path = path
        self.waits: list[float] = []
        self._say = say
        self._may_wait = False
        self._inside = False
        self._written: list[tuple[str, Row]] = []
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
        with self.transaction():
            self._written += [(statement, values) for values in rows]
            self._attempt(lambda: self._run(statement, rows), self._begin_again)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything written inside is kept, or nothing of it. Inside another one: part of that."""
        if self._inside:
            yield
            return
        self._attempt(self._begin, self._begin)
        self._inside = True
        try:
            yield
            self._attempt(self._commit, self._commit_again)
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._inside = False
            self._written = []

    def _begin(self) -> None:
        self._base.execute("BEGIN IMMEDIATE")

    def _commit(self) -> None:
        self._base.execute("COMMIT")

    def _run(self, statement: str, rows: Sequence[Row]) -> None:
        for values in rows:
            self._base.execute(statement, values)

    def _begin_again(self) -> None:
        """Write anew what the present transaction has written so far."""
        self._roll_back()
        self._begin()
        for statement, values in self._written:
            self._base.execute(statement, values)

    def _commit_again(self) -> None:
        self._begin_again()
        self._commit()

    def _roll_back(self) -> None:
        if self._base.in_transaction:  # SQLite may have done so itself
            self._base.execute("ROLLBACK")

    def _attempt(self, action: Callable[[], None], again: Callable[[], None]) -> None:
        """Write; where that is refused for now, wait until it is not, and do it `again`."""
        with self._clear_errors():
            try:
                action()
            except sqlite3.Error as error:
                if not self._may_wait or not _may_succeed_later(error):
                    raise
                self._wait(error, again)

    def _wait(self, error: sqlite3.Error, again: Callable[[], None]) -> None:
        since, told = time.monotonic(), 0.0
        self._say(f"{self.path}: cannot be written ({error}): jobs go on, the scheduler waits")
        while True:
            try:
                time.sleep(RETRY_INTERVAL_S)
            except KeyboardInterrupt:
                self._may_wait = False  # whoever ends the session meanwhile does not wait either
                raise
            waited = time.monotonic() - since
            try:
                again()
            except sqlite3.Error as still:
                if not _may_succeed_later(still):
                    raise
                if waited >= told + NOTICE_INTERVAL_S:
                    told = waited
                    self._say(f"{self.path}: still cannot be written ({still}) after {waited:.0f} s: jobs go on")
                continue
            self.waits.append(waited)
            self._say(f"{self.path}: can be written again after {waited:.0f} s: the scheduler goes on")
            return

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except DAMAGE as error:
            if isinstance(error, sqlite3.Error) and _may_succeed_later(error):
                raise ClusterError(f"{self.path}: the session database cannot be written now: {error}") from None
            raise unusable(self.path, error) from None

    def close(self) -> None:
        """Write what is open, as far as there is room for it."""
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
