"""Folders of local Ray clusters: Ray's sockets and logs, and the token. Those of dead clusters are removed."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from contextlib import suppress
from itertools import count
from pathlib import Path

from rlpto.ray_cluster.nodes.environment import TOKEN_FILE
from rlpto.ray_cluster.nodes.processes import of_folder, start_time

NAME = re.compile(r"rl-([0-9a-f]+)-([0-9a-f]+)-\d+")
"""Process that has made the folder, and its start time, so that a folder has a known owner from its creation.
Names are short, because paths of sockets in it have at most 107 characters."""


def unused_folder() -> Path:
    """Path for the folder of a new cluster of this process. It is not made."""
    own = f"rl-{os.getpid():x}-{start_time(os.getpid()) or 0:x}"
    paths = (Path(tempfile.gettempdir(), f"{own}-{number}") for number in count())
    return next(path for path in paths if not path.exists())


def make_folder(folder: Path, token: str | None = None) -> None:
    """Make the folder of a new cluster, for this user alone, with its token in it; None: a new one."""
    folder.mkdir(mode=0o700)
    descriptor = os.open(folder / TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token or new_token())


def new_token() -> str:
    """A random token."""
    return secrets.token_hex(32)


def mark_of(token: str) -> str:
    """Public mark of a token: it shows whether a folder belongs to the cluster with this token."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_folder_of(folder: Path, mark: str) -> bool:
    """True if a folder was made here by this user for the cluster whose token has this mark."""
    try:
        if not NAME.fullmatch(folder.name) or not stat.S_ISDIR(folder.lstat().st_mode):
            return False
        return folder.lstat().st_uid == os.getuid() and mark_of((folder / TOKEN_FILE).read_text("ascii")) == mark
    except (OSError, ValueError):
        return False


def remove_dead_folders() -> None:
    """Remove folders of this user's dead clusters."""
    for folder in Path(tempfile.gettempdir()).glob("rl-*"):
        match = NAME.fullmatch(folder.name)
        with suppress(OSError):  # another process removes it too
            if match and folder.lstat().st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink():
                owner_lives = start_time(int(match[1], 16)) == int(match[2], 16)
                if not (owner_lives or of_folder(str(folder)) or _answers(folder)):
                    shutil.rmtree(folder, ignore_errors=True)


def _answers(folder: Path) -> bool:
    """True if a process listens on a socket in the folder: one of a container that shares the folder is not seen
    otherwise."""
    for path in folder.glob("ray/session_*/sockets/*"):
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.settimeout(1.0)
            probe.connect(str(path))
            return True
    return False
