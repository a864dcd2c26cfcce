"""Local clusters started by RLPTO: their folders, with Ray's sockets, logs and token, and their processes.

Processes are found by the folder, and ended by their ids; folders of dead clusters are removed.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import re
import secrets
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rlpto.io.cores import cores
from rlpto.ray_cluster.nodes.environment import TOKEN_FILE

NAME = re.compile(r"rl-([0-9a-f]+)-([0-9a-f]+)-\d+")
"""Folder name with the id and start time of the process that created it, which identifies its owner from the start.
Names are short, because paths of sockets in it have at most 107 characters."""


def unused_folder() -> Path:
    """Path for the folder of a new cluster of this process. The folder is not created."""
    own = f"rl-{os.getpid():x}-{start_time(os.getpid()) or 0:x}"
    paths = (Path(tempfile.gettempdir(), f"{own}-{number}") for number in itertools.count())
    return next(path for path in paths if not path.exists())


def make_folder(folder: Path, token: str | None = None) -> None:
    """Create the folder of a new cluster, for this user alone. token: token stored in it. Default: a new one."""
    folder.mkdir(mode=0o700)
    descriptor = os.open(folder / TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token or secrets.token_hex(32))


def mark_of(token: str) -> str:
    """Public hash of a token, by which a folder is recognised as belonging to the cluster with this token."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_folder_of(folder: Path, mark: str) -> bool:
    """True if this user created the folder here for the cluster whose token has this mark."""
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
    """True if a process listens on a socket in the folder. This also finds processes of a container that shares the
    folder."""
    for path in folder.glob("ray/session_*/sockets/*"):
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.settimeout(1.0)
            probe.connect(str(path))
            return True
    return False


TERMINATE_TIMEOUT_S = 4.0
"""Time for processes to end on request before they are killed."""
END_ROUNDS = 5
"""Number of checks for more processes, started by processes that were ended."""


def end_processes(family: Mapping[int, int]) -> None:
    """End processes, given by id and start time. They are asked first, then killed. Returns when they are gone."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for pid, ticks in family.items():
            with suppress(ProcessLookupError):  # it has ended
                if start_time(pid) == ticks:
                    os.kill(pid, how)
        by = time.monotonic() + TERMINATE_TIMEOUT_S
        while any(start_time(pid) == ticks for pid, ticks in family.items()) and time.monotonic() < by:
            time.sleep(0.05)


def end_cluster(folder: Path) -> None:
    """End all processes of the cluster with this folder, including ones started meanwhile. Ray's own shutdown needs the
    head, forgets nodes whose raylet was killed, and on a busy machine leaves agents behind."""
    for _ in range(END_ROUNDS):
        family = family_of(str(folder))
        if not family:
            break
        end_processes(family)


def remove_cluster(folder: Path) -> None:
    """End a cluster (`end_cluster`) and remove its folder."""
    end_cluster(folder)
    shutil.rmtree(folder, ignore_errors=True)


def family_of(folder: str) -> dict[int, int]:
    """Id and start time of the processes of a cluster with this folder, and of all their descendants."""
    return with_children(of_folder(folder))


def head_family(folder: str) -> dict[int, int]:
    """Id and start time of the processes of a cluster's head, without other nodes, and of all their descendants."""
    return with_children({pid for pid in of_folder(folder) if _is_of_head(arguments_of(pid))})


def head_is_alive(folder: str) -> bool:
    """True if the server of a cluster's head runs. The head's raylet and agents outlive it and wait for another."""
    return any(first.endswith("gcs_server") for pid in head_family(folder) for first in arguments_of(pid)[:1])


def load_factor() -> float:
    """Runnable processes per core; at least 1. Timeouts for an idle machine are multiplied by it."""
    return max(1.0, os.getloadavg()[0] / cores())


def _is_of_head(arguments: list[str]) -> bool:
    """True if a process belongs to a head: its raylet runs with `--head`, the others are programs that only a head
    has."""
    programs = ("gcs_server", "dashboard.py", "monitor.py")
    return "--head" in arguments or any(one.endswith(programs) and "log_monitor" not in one for one in arguments[:4])


def arguments_of(pid: int) -> list[str]:
    """Command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


TITLE = "TrainWorker"
"""Text in the command lines of jobs' workers: Ray writes the actor's class there."""


def kill_titled(pid: int, title: str) -> None:
    """Kill process `pid` of this machine if its command line has `title` in it."""
    if title in "\0".join(arguments_of(pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""File with the first and last of the system's ephemeral ports."""


def free_ports(count: int) -> list[int]:
    """Return `count` different ports on which no process listens now, if possible below the ephemeral ports, any of
    which may be taken before the node listens on it. Ray needs half a minute to give up a node that cannot listen."""
    lowest = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 0
    below = range(max(lowest - 10_000, 10_000), lowest)
    drawn = random.SystemRandom().sample(below, len(below))
    found: list[int] = []
    with ExitStack() as stack:
        for port in (*drawn, *[0] * count):  # 0: the system chooses
            probe = stack.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("", port))
                found.append(int(probe.getsockname()[1]))
            if len(found) == count:
                break
    return found


CLUSTER_VARIABLE = "RLPTO_CLUSTER_FOLDER"
"""Environment variable with the folder of the cluster that a process was started for; all its descendants inherit
it."""
RAY_TITLE = "ray::"
"""Prefix of the process titles that Ray's agents and workers set."""


@contextmanager
def started_for(folder: str) -> Iterator[None]:
    """Mark processes started while inside as belonging to the cluster with this folder."""
    before = os.environ.get(CLUSTER_VARIABLE)
    os.environ[CLUSTER_VARIABLE] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[CLUSTER_VARIABLE]
        else:
            os.environ[CLUSTER_VARIABLE] = before


def of_folder(folder: str) -> set[int]:
    """Processes started for the cluster with this folder. Naming the folder in an argument does not count.

    Ray's agents and workers overwrite their environment with their title; they are recognised by their open files in
    the folder.
    """
    mark, inside = f"\0{CLUSTER_VARIABLE}={folder}\0".encode(), f"{folder}/"
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended since, or belongs to another user
                marked = mark in b"\0" + (entry / "environ").read_bytes() + b"\0"
                if marked or any(file.startswith(inside) for file in _files_of_titled(entry)):
                    found.add(int(entry.name))
    return found - {os.getpid()}


def _files_of_titled(process: Path) -> Iterator[str]:
    """Paths of the open files of an agent or worker of Ray; empty for other processes."""
    if (process / "comm").read_text().startswith(RAY_TITLE):
        for entry in (process / "fd").iterdir():
            with suppress(OSError):  # closed
                yield os.readlink(entry)


def with_children(pids: Iterable[int]) -> dict[int, int]:
    """Id and start time of processes and all their descendants, never of this process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    todo, found = list(pids), set[int]()
    while todo:
        if (pid := todo.pop()) not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return {pid: ticks for pid in found - {os.getpid()} if (ticks := start_time(pid)) is not None}


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on: state, parent, ...; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def start_time(pid: int) -> int | None:
    """When a process was started, in ticks; None if it has ended (or waits to be reaped)."""
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else int(fields[19])
