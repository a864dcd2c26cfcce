"""The connection to the database: transactions that never wait half-way, and one-line errors.

A file is created completely or not at all. The scheduler, which owns the contents, waits while the disk is full.
"""

from __future__ import annotations

import fcntl
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rlpto.io.errors import ClusterError, system_reason
from rlpto.store.schema import SCHEMA, TABLES, changed_rows, row_sum

LOCK_TIMEOUT_S = 10.0
"""Longest wait for another process to finish writing."""
RETRY_INTERVAL_S = 1.0
"""Time between two attempts to write while the disk is full."""
NOTICE_INTERVAL_S = 120.0
"""Time between two messages about an ongoing wait."""
APPLICATION = 0x524C5054
"""SQLite's `application_id` of the database: RLPT."""

Values = Sequence[Any] | Mapping[str, Any]

DAMAGE = (sqlite3.Error, UnicodeDecodeError, OverflowError)
"""Exceptions of Python's SQLite on a damaged file; the latter two come from invalid names or numbers in it."""
_REFUSED = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)
"""Primary result codes of writes that may succeed later: no room, another writer, or a failing device."""
_READS = {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ}


class StoreError(ClusterError):
    """The database cannot be opened, read or written."""


class Store:
    """One connection to the database, for one thread. The file is created if missing.

    durable: completed writes survive a power cut (synchronous=FULL); otherwise they survive only a killed process.
    on_wait: makes writes wait while the disk is full, and is called with a line when a wait begins, during it, and when
    it ends. Ctrl-C ends the wait and resets it. Default: writes to a full disk raise. longest_wait_s: longest time that
    a write waited for the other process.

    Raises StoreError if the file is damaged, foreign, or of another version of RLPTO, or cannot be written.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        self.longest_wait_s = 0.0
        self.on_wait: Callable[[str], object] | None = None
        self._waits: list[float] = []
        self._written: list[tuple[str, Sequence[Values]]] = []
        with self._clear_errors():
            if not path.exists():
                _make(path)
            self._base = connect(path)
            check_version(self._base, path)
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._base.execute("PRAGMA foreign_keys = ON")
            self._turn = path.with_name(f"{path.name}-turn").open("ab")

    def rows(self, query: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._clear_errors():
            return self._base.execute(query, values).fetchall()

    def row(self, query: str, values: Values = ()) -> tuple[Any, ...] | None:
        """The first row of a query."""
        with self._clear_errors():
            found: tuple[Any, ...] | None = self._base.execute(query, values).fetchone()
            return found

    def fact(self, key: str) -> str | None:
        """The value of a key of the service or session; None if it was never set."""
        row = self.row("SELECT value FROM facts WHERE key = ?", (key,))
        return None if row is None else str(row[0])

    def set_fact(self, key: str, value: str) -> None:
        """Set the value of a key."""
        self.write("INSERT OR REPLACE INTO facts (key, value) VALUES (?, ?)", (key, value))

    def write(self, statement: str, *rows: Values) -> sqlite3.Cursor:
        """Run a statement once for each of `rows`, which hold its values."""
        with self.transaction():
            return self._run(statement, rows or [()])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all writes inside at its end, or none. A nested transaction belongs to the outer one."""
        if self._base.in_transaction:
            yield
            return
        with self._clear_errors():
            try:
                self._written = []
                self._begin()
                yield
                self._commit()
            finally:
                self._roll_back()

    def _begin(self) -> None:
        asked = time.monotonic()
        # SQLite polls for the lock with growing intervals, so a busy writer could starve the other process. A file
        # lock wakes waiters at once.
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            self._base.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._wait(error)
        self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - asked)

    def _run(self, statement: str, rows: Sequence[Values]) -> sqlite3.Cursor:
        if self.on_wait is not None:
            self._written.append((statement, rows))
        try:
            return self._execute(statement, rows)
        except sqlite3.Error as error:
            found = self._wait(error)
            assert found is not None
            return found

    def _execute(self, statement: str, rows: Sequence[Values]) -> sqlite3.Cursor:
        one = len(rows) == 1  # `executemany` does not give the number of the inserted row
        execute = (
            partial(self._base.execute, statement, rows[0]) if one else partial(self._base.executemany, statement, rows)
        )
        try:
            return execute()
        except sqlite3.OperationalError as error:
            if "user-defined function" not in str(error):
                raise
            # Ctrl-C came while the sum of a row was computed. SQLite reports it as unraisable, and
            # `rlpto.io.interrupts` raises it again. The write is not affected.
            return execute()

    def _commit(self) -> None:
        while True:
            try:
                self._base.execute("COMMIT")
                return
            except sqlite3.Error as error:
                self._wait(error)

    def _roll_back(self) -> None:
        """Roll back uncommitted changes, and let others write."""
        if self._base.in_transaction:
            self._base.execute("ROLLBACK")
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def _wait(self, error: sqlite3.Error) -> sqlite3.Cursor | None:
        """Wait until the current transaction can be repeated from its beginning, and return the result of its last
        statement.

        Raises `error`, or a later one, if waiting is of no use.
        """
        since, noted = time.monotonic(), -math.inf
        found: sqlite3.Cursor | None = None
        try:
            while True:
                if self.on_wait is None or not _may_succeed_later(error):
                    raise error
                self._roll_back()
                waited = time.monotonic() - since
                if waited >= noted + NOTICE_INTERVAL_S:
                    noted = waited
                    self.on_wait(f"{self.path}: cannot be written ({error}): jobs go on, the scheduler waits")
                time.sleep(RETRY_INTERVAL_S)
                try:
                    fcntl.flock(self._turn, fcntl.LOCK_EX)
                    self._base.execute("BEGIN IMMEDIATE")
                    for statement, rows in self._written:
                        found = self._execute(statement, rows)
                    break
                except sqlite3.Error as again:
                    error = again
            self._waits.append(time.monotonic() - since)
            self.on_wait(f"{self.path}: can be written again after {self._waits[-1]:.0f} s: the scheduler goes on")
        except KeyboardInterrupt:
            self.on_wait = None
            raise
        return found

    def check(self) -> None:
        """Check all data that a scheduler relies on. Raises StoreError if any has been altered."""
        with self._clear_errors():
            ((found,),) = self._base.execute("PRAGMA integrity_check(1)").fetchall()
            if found == "ok":
                found = changed_rows(self._base)
        if found:
            raise unusable(self.path, f"it is damaged: {found}")

    def take_waits(self) -> list[float]:
        """Durations of waits for a full disk since the last call [s]."""
        waits, self._waits = self._waits, []
        return waits

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo only the writes inside if they raise. Use it in a transaction that does not wait for room."""
        self._base.execute("SAVEPOINT one")
        try:
            yield
        except BaseException:
            self._base.execute("ROLLBACK TO one")
            raise
        finally:
            self._base.execute("RELEASE one")

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except DAMAGE as error:
            if isinstance(error, sqlite3.Error) and _may_succeed_later(error):
                raise StoreError(f"{self.path}: the database cannot be used now: {error}") from None
            raise unusable(self.path, error) from None
        except OSError as error:
            if error.filename is None:
                raise
            raise unusable(self.path, system_reason(error)) from None

    def close(self) -> None:
        """Close the file."""
        with self._clear_errors():
            self._base.close()
        self._turn.close()


def connect(path: Path) -> sqlite3.Connection:
    """Connect to the file without checking it."""
    base = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
    base.create_function("row_sum", -1, row_sum, deterministic=True)
    sqlite3.enable_callback_tracebacks(True)  # a Ctrl-C within `row_sum` reaches `sys.unraisablehook`
    return base


@contextmanager
def looking(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a database that another process may have open. Raises StoreError if there is none."""
    if not path.is_file():
        raise StoreError(f"{path}: no such file; expected the database of a run with --cluster ray, or of a service")
    try:
        with closing(connect(path)) as base:
            yield base
    except DAMAGE as error:
        raise unusable(path, error) from None


def check_version(base: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError for a database that is foreign, or of another version."""
    version = int(base.execute("PRAGMA user_version").fetchone()[0])
    application = int(base.execute("PRAGMA application_id").fetchone()[0])
    if application != APPLICATION:
        raise StoreError(f"{path}: expected a database of RLPTO, got an empty file or another SQLite database")
    if version != SCHEMA:
        raise StoreError(
            f"{path}: database of version {version}, expected {SCHEMA}: go on with the version of rlpto that has "
            "written it, or start over (--fresh, or another folder)"
        )


def unusable(path: Path, reason: object) -> StoreError:
    """Return the error for a file that is damaged or is no database."""
    said = " ".join(str(reason).split())  # SQLite may quote unreadable content of any length
    return StoreError(
        f"{path}: the database cannot be used: {said[:300]}; expected the file as rlpto has left it: put back a copy, "
        "or start over (--fresh, or another folder)"
    )


def _make(path: Path) -> None:
    """Create a database, which others see with all its tables or not at all. Two processes may try at once."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    unfinished.unlink(missing_ok=True)
    try:
        with closing(connect(unfinished)) as base:
            base.executescript(
                f"BEGIN; {TABLES}; PRAGMA user_version = {SCHEMA}; PRAGMA application_id = {APPLICATION}; COMMIT"
            )
        with suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _may_succeed_later(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in _REFUSED and code not in _READS
