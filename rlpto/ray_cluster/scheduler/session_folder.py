"""Where the sessions of a run are, what their job controllers are found by, who works on them, and starting over."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from rlpto.io.errors import CheckpointError, ClusterError
from rlpto.ray_cluster.controllers import all_controllers, end_controllers
from rlpto.ray_cluster.messages import JobSpec

SESSIONS = "ray"
"""Folder of a run that holds a folder for each session: its database, checkpoints, tables and live curves."""
DATABASE = "state.sqlite"
"""The session database in the folder of a session."""


def session_name(run: Path, key: str) -> str:
    """Name by which the controllers of a session are found: the same for the same key in the same run folder, by any
    path to it, and no other. key: of the session in its run, letters and digits."""
    return f"{_run_name(run)}-{key}"


def remove_sessions(run: Path) -> None:
    """Throw away what the sessions of a run have left: their job controllers, workers included, and their files.

    This process is connected to the cluster. Raises ClusterError if a scheduler is at work on one of the sessions,
    CheckpointError if a file stays.
    """
    folder = run / SESSIONS
    with ExitStack() as locked:
        for session in sorted(path for path in folder.glob("*") if path.is_dir()):
            locked.enter_context(closing(SessionLock((session / DATABASE).resolve())))
        end_controllers(all_controllers(_run_name(run) + "-").values())
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointError(f"{folder}: cannot be removed: {error.strerror or error}") from None


def _run_name(run: Path) -> str:
    return hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:12]


def refuse_lost_database(path: Path, specs: Sequence[JobSpec], controllers: Collection[str]) -> None:
    """Raise ClusterError if there was a session before: what its jobs have done is not to be thrown away unasked.

    Without its database they could go on, but what they had cost and when they had begun would be unknown.
    """
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


class SessionLock:
    """Holds the lock of the session database at `path` until `close`, or until the process ends, however it does.

    The system locks the file's inode, for every path to it; its content, the process that holds the lock, is only
    for people. Raises ClusterError if another process holds it, it is a link, or cannot be made.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open(lock_of(path), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise ClusterError(f"{path}: no session database can be kept there: {_reason(error)}") from None
        if not _take(self._file):
            owner = os.pread(self._file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise ClusterError(f"{path}: another scheduler (process {owner}) is at work on it, expected none")
        with suppress(OSError):  # a full disk: the lock itself takes no room
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def close(self) -> None:
        """Let others have it."""
        os.close(self._file)


def lock_of(path: Path) -> Path:
    """The lock file of a session database."""
    return path.with_name(path.name + ".lock")


def is_locked(path: Path) -> bool:
    """True if a scheduler is at work on the session database at `path`."""
    try:
        file = _open(lock_of(path), os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _take(file)
    finally:
        os.close(file)


def _open(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _take(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return f"{error.filename} is a symbolic link, expected a file of its own"
    return (error.strerror or str(error)).lower()
