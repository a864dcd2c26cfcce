"""The lock of a session: one scheduler at a time, and none of the files that a link of the lock's name points to."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from rlpto.errors import ClusterError


class SessionLock:
    """Holds the lock of the session database at `path` until `close`, or until the process ends, however it does.

    The system locks the file's inode, whatever path led to it; what is in it, the process that holds the lock, is only
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
