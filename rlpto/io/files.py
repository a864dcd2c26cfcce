"""Writing files whole or not at all, comparing and locking them, and folders of a user."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from rlpto.io.errors import CheckpointError, ConfigError, RlptoError, refusals_as

_PART = re.compile(r"\..+\.(?P<host>[^.]*)-(?P<pid>\d+)\.part")
_HOST = re.sub(r"[^A-Za-z0-9_]", "_", socket.gethostname())
PART_LIFETIME_S = 86_400.0
"""An unfinished file unchanged for this long has no live writer on any host, and is removed."""


@contextmanager
def whole_file(path: Path, what: str, error: type[RlptoError] = CheckpointError) -> Iterator[Path]:
    """Yield an unfinished file in the folder of `path`. It replaces `path` on success and is removed on failure.

    Missing folders are created. If `path` is a link of this user or of root, the file that it leads to is replaced.
    Raises `error`, saying that `what` cannot be written, if the file system refuses or the path names no file, such as
    a device or a pipe; `path` is then unchanged.
    """
    if not path.name:
        raise error(f"{path}: cannot write {what} there: expected the name of a file")
    with refusals_as(error, f"{path}: cannot write {what} there"):
        target, parent = path, os.path.realpath(path.parent)
        if path.is_symlink() and path.lstat().st_uid in (0, os.geteuid()):  # others could lead us to any file of ours
            target = Path(os.path.realpath(path))
        special = parent == "/dev" or parent.startswith("/proc/")  # /dev/stdout may be a link to a log
        if special or (target.exists() and not (target.is_file() or target.is_dir())):
            raise error(f"{path}: cannot write {what} there: expected a file, got a device, pipe or socket")
        unfinished = target.with_name(f".{target.name}.{_HOST}-{os.getpid()}.part")
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent.absolute())
        try:
            yield unfinished
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)


class FileLock:
    """The lock of a file or folder, held until `close` or any end of this process.

    The system locks the inode, for every path to it. descriptor: descriptor of the open file. flags: flags for opening
    it. shared: whether others may hold the lock in this way too. Raises BlockingIOError if another process holds the
    lock, OSError if the path cannot be opened or is a link.
    """

    def __init__(self, path: Path, flags: int = os.O_RDWR | os.O_CREAT, *, shared: bool = False) -> None:
        self.descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self.descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock."""
        os.close(self.descriptor)


@contextmanager
def alone_in(folder: Path, busy: str, error: type[RlptoError] = CheckpointError) -> Iterator[None]:
    """Hold the lock of a folder, which is made if necessary. Raises `error`: `busy` if another process holds it, or the
    reason why the folder cannot be used."""
    with refusals_as(error, f"{folder}: cannot write there"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(folder.resolve(), os.O_RDONLY)
        except BlockingIOError:
            raise error(busy) from None
    try:
        yield
    finally:
        lock.close()


def in_home(variable: str, usual: str) -> Path | None:
    """The folder named by an environment variable, or the usual path in this user's home; None if there is neither."""
    named, home = os.environ.get(variable), os.path.expanduser("~")
    if named:
        return Path(named)
    return None if home == "~" else Path(home, usual)


def state_folder() -> Path:
    """Folder of this user's state: in $XDG_STATE_HOME, or the home folder. Raises ConfigError if there is neither."""
    folder = in_home("XDG_STATE_HOME", ".local/state")
    if folder is None:
        raise ConfigError("this user has no home folder: expected a folder for state in $XDG_STATE_HOME")
    return folder / "rlpto"


def is_there(path: Path) -> bool:
    """Whether a file or folder exists; False, unlike `path.exists()`, for a path too long or without permission."""
    return os.path.exists(path)


def file_there(path: Path) -> bool:
    """Whether a file exists; False for a path too long or without permission."""
    return os.path.isfile(path)


def folder_there(path: Path) -> bool:
    """Whether a folder exists; False for a path too long or without permission."""
    return os.path.isdir(path)


@cache
def _sweep(folder: Path) -> None:
    """Remove the unfinished files of killed processes from a folder, once per process and folder."""
    for path in folder.glob(".*.part"):
        left = _PART.fullmatch(path.name)
        with suppress(OSError):  # another process may have removed or finished it
            if left is not None and _is_stale(path, left["host"], int(left["pid"])):
                path.unlink()


def _is_stale(path: Path, host: str, pid: int) -> bool:
    if host == _HOST and pid != os.getpid():
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False
    return time.time() - path.stat().st_mtime > PART_LIFETIME_S


def write_text(path: Path, text: str, what: str, error: type[RlptoError] = CheckpointError) -> None:
    """Write `text` as UTF-8 by `whole_file`."""
    with whole_file(path, what, error) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="")


def digest(path: Path) -> str:
    """SHA-256 of a file. Raises ConfigError if it cannot be read."""
    with refusals_as(ConfigError, f"{path}: cannot read the file"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
