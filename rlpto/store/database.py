"""Opening the database: migrations with a backup, transactions that never wait half-way, one line for every error."""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rlpto.io.errors import ClusterError
from rlpto.store.schema import MIGRATIONS

LOCK_TIMEOUT_S = 10.0
"""Longest wait for the other process to finish a write."""
APPLICATION = 0x524C5054
"""SQLite's `application_id` of the database: RLPT."""

Values = Sequence[Any]


class StoreError(ClusterError):
    """The database cannot be opened, read or written."""


class Store:
    """One connection to the database, for one thread.

    durable: a write that was answered outlives a power cut (synchronous=FULL); else it outlives a killed process only.
    longest_wait_s: longest time that a write waited for the other process, since this was last set to 0.

    Raises StoreError if the file is damaged, foreign, or of a newer version of RLPTO, or cannot be written.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        self.longest_wait_s = 0.0
        with _clear_errors(path):
            self._base = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
            self._base.row_factory = sqlite3.Row
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._base.execute("PRAGMA foreign_keys = ON")
            migrate(self._base, path)
        self._turn = path.with_name(f"{path.name}-turn").open("ab")

    def rows(self, query: str, values: Values = ()) -> list[sqlite3.Row]:
        """All rows that a query finds."""
        with _clear_errors(self.path):
            return self._base.execute(query, values).fetchall()

    def row(self, query: str, values: Values = ()) -> sqlite3.Row | None:
        """The first row that a query finds."""
        with _clear_errors(self.path):
            found: sqlite3.Row | None = self._base.execute(query, values).fetchone()
            return found

    def write(self, statement: str, *rows: Values) -> int:
        """Run a statement once for each of `rows`, which hold its values; the number of rows changed."""
        with self.transaction():
            return self._base.executemany(statement, rows or [()]).rowcount

    def insert(self, statement: str, values: Values) -> int:
        """Insert one row; its number."""
        with self.transaction():
            return int(self._base.execute(statement, values).lastrowid or 0)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything written inside is kept at its end, or nothing of it. Inside another one: part of that."""
        if self._base.in_transaction:
            yield
            return
        with _clear_errors(self.path):
            asked = time.monotonic()
            # SQLite itself looks ever more rarely whether the other one is done, ten times a second in the end, so that
            # whoever writes all the time would keep it out. A lock of the system wakes those who wait.
            fcntl.flock(self._turn, fcntl.LOCK_EX)
            try:
                self._base.execute("BEGIN IMMEDIATE")
                self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - asked)
                yield
                self._base.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:
                    self._base.execute("ROLLBACK")
                raise
            finally:
                fcntl.flock(self._turn, fcntl.LOCK_UN)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Inside a transaction: what is written inside is undone alone where it raises."""
        self._base.execute("SAVEPOINT one")
        try:
            yield
        except BaseException:
            self._base.execute("ROLLBACK TO one")
            raise
        finally:
            self._base.execute("RELEASE one")

    def close(self) -> None:
        """Let go of the file."""
        self._base.close()
        self._turn.close()


def migrate(base: sqlite3.Connection, path: Path, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Bring the file to the newest version, each step whole or not at all; before the first step a file that holds
    anything is copied to `NAME.before-VERSION`. Two processes may try at once.

    Raises StoreError for a file that is foreign or newer.
    """
    if _version(base, path) == len(migrations):
        return
    with _one_at_a_time(base):
        version = _version(base, path)
        if version > len(migrations):
            raise StoreError(
                f"{path}: database of version {version}, but this RLPTO knows versions up to {len(migrations)}: "
                "expected a newer RLPTO"
            )
        if 0 < version < len(migrations):
            back_up(path, path.with_name(f"{path.name}.before-{len(migrations)}"))
        for number in range(version, len(migrations)):
            for statement in _statements(migrations[number]):
                base.execute(statement)
        base.execute(f"PRAGMA user_version = {len(migrations)}")
        base.execute(f"PRAGMA application_id = {APPLICATION}")


def back_up(path: Path, target: Path) -> None:
    """Copy a database, which may be in use, to `target`; whole or not at all."""
    unfinished = target.with_name(f".{target.name}.part")
    unfinished.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(unfinished)) as copy:
        source.backup(copy)
    unfinished.replace(target)


def _version(base: sqlite3.Connection, path: Path) -> int:
    version = int(base.execute("PRAGMA user_version").fetchone()[0])
    application = int(base.execute("PRAGMA application_id").fetchone()[0])
    if application not in (0, APPLICATION) or (version and application != APPLICATION):
        raise StoreError(f"{path}: expected the database of a job service, got another SQLite database")
    return version


@contextmanager
def _one_at_a_time(base: sqlite3.Connection) -> Iterator[None]:
    base.execute("BEGIN IMMEDIATE")
    try:
        yield
        base.execute("COMMIT")
    except BaseException:
        if base.in_transaction:
            base.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; `executescript` would commit what is under way."""
    statement = ""
    for part in script.split(";"):
        statement += f"{part};"
        if sqlite3.complete_statement(statement):
            if statement.strip(" \n;"):
                yield statement
            statement = ""


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        said = " ".join(str(error).split())[:200]
        raise StoreError(f"{path}: the database of the service cannot be used: {said}") from error
