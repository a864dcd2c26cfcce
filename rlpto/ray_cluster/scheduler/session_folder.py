"""Sessions seen from outside their schedulers: their folders, locks and progress, and their removal."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from rlpto.io.errors import CheckpointError, ClusterError, refusals_as, system_reason
from rlpto.io.files import FileLock
from rlpto.ray_cluster.controllers import all_controllers, end_controllers
from rlpto.ray_cluster.messages import JobSpec
from rlpto.store.database import looking

SESSIONS = "ray"
"""Subfolder of a run with one folder per session, which holds the session's database and jobs' checkpoints."""
DATABASE = "state.sqlite"
"""The session database in the folder of a session."""
PROBES_S = (0.05, 0.05, 0.1)
"""Pauses before the lock is tried again: `is_locked` holds it for an instant."""


def session_name(run: Path, key: str) -> str:
    """Name by which the controllers of a session are found. It is equal for the same key and run folder, by any path to
    the folder, and unique otherwise. key: key of the session in its run, letters and digits."""
    return f"{hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:12]}-{key}"


def remove_sessions(run: Path) -> None:
    """Remove all remains of a run's sessions: job controllers, including workers, and files.

    This process must be connected to the cluster. Raises ClusterError if a scheduler is at work on a session,
    CheckpointError if a file cannot be removed.
    """
    folder = run / SESSIONS
    with ExitStack() as locked:
        for session in sorted(path for path in folder.glob("*") if path.is_dir()):
            locked.enter_context(closing(SessionLock((session / DATABASE).resolve())))
        end_controllers(all_controllers(session_name(run, "")).values())
        with refusals_as(CheckpointError, f"{folder}: cannot be removed"), suppress(FileNotFoundError):
            shutil.rmtree(folder)


def refuse_lost_database(path: Path, specs: Sequence[JobSpec], controllers: Collection[str]) -> None:
    """For a session without a database: raise ClusterError if its jobs still run or have files.

    Their work must not be discarded without the user's consent, and without the database their costs and start times
    are lost."""
    left = sum(Path(spec.folder).exists() for spec in specs)
    if controllers:
        there = f"{len(controllers)} jobs of the session are at work"
    elif left:
        there = f"files of {left} jobs of the session are there"
    else:
        return
    raise ClusterError(
        f"{path}: there is no session database, but {there}: put the file back to go on with them, or give --fresh to "
        "end them and delete their checkpoints"
    )


class SessionLock(FileLock):
    """Holds the lock of the session database at `path`. The lock file's content, the id of the holding process, is only
    informative. Raises ClusterError if another process holds the lock, or if the file is a link or cannot be
    created."""

    def __init__(self, path: Path) -> None:
        lock = lock_of(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for pause in (*PROBES_S, None):
                try:
                    super().__init__(lock)
                    break
                except BlockingIOError:
                    if pause is None:
                        raise
                    time.sleep(pause)
        except BlockingIOError:
            owner = lock.read_text("ascii", "replace").strip() or "unknown"
            raise ClusterError(f"{path}: another scheduler (process {owner}) is at work on it, expected none") from None
        except OSError as error:
            reason = system_reason(error)
            if error.errno == errno.ELOOP:
                reason = f"{lock} is a symbolic link, expected a file of its own"
            raise ClusterError(f"{path}: no session database can be kept there: {reason}") from None
        with suppress(OSError):  # a full disk: the lock itself takes no room
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, str(os.getpid()).encode(), 0)


def lock_of(path: Path) -> Path:
    """The lock file of a session database."""
    return path.with_name(path.name + ".lock")


def is_locked(path: Path) -> bool:
    """True if a scheduler is at work on the session database at `path`."""
    try:
        FileLock(lock_of(path), os.O_RDONLY, shared=True).close()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def job_progress(database: Path) -> list[tuple[str, str, str, int, float, float | None]]:
    """Return all jobs of a session in order of submission: id, name, state (`rlpto.store.jobs`), GPUs held, share of
    the epochs that are done, and seconds from now until the predicted end. The last is None if no end is predicted or
    if the predicted end has passed. Raises ClusterError if there is no database."""
    with looking(database) as base:
        rows = base.execute(
            "SELECT jobs.id, name, state, gpus_held, MIN(progress / epochs, 1.0), finish FROM jobs "
            "LEFT JOIN predictions ON job = jobs.id WHERE number IS NOT NULL ORDER BY number"
        ).fetchall()
    now = time.time()
    return [(*job, None if finish is None or finish < now else finish - now) for *job, finish in rows]


def newest_database(folder: Path) -> Path | None:
    """The most recently written session database of a run folder; None if there is none."""
    return max(folder.glob(f"{SESSIONS}/*/{DATABASE}"), key=_written, default=None)


def _written(database: Path) -> float:
    """When a database was last changed, including its write-ahead log if it is open; 0 once it is gone."""
    times = [0.0]
    for file in (database, database.with_name(f"{database.name}-wal")):
        with suppress(FileNotFoundError):  # SQLite deletes the log when the last connection closes
            times.append(file.stat().st_mtime)
    return max(times)


def sessions_at_work(run: Path) -> list[Path]:
    """Session databases below a run folder that a scheduler has open."""
    databases = sorted({path.resolve() for path in run.glob("**/*.sqlite")})
    return [path for path in databases if is_locked(path)]


def read_table(path: Path, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of a table of a session database. Raises ClusterError if there is no database."""
    with looking(path) as base:
        cursor = base.execute(f"SELECT * FROM {table}")
        return [column[0] for column in cursor.description], cursor.fetchall()
