"""Processes of this machine that belong to a cluster of ours: found by its folder, ended by their ids."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rlpto.io.cores import cores

TERMINATE_TIMEOUT_S = 4.0
"""Time for processes to end by themselves before they are killed."""
END_ROUNDS = 5
"""Number of checks for further processes started by those that were ended."""


def end_processes(family: Mapping[int, int]) -> None:
    """End processes, given by id and start time: asked first, then killed; waits until they are gone."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for pid, ticks in family.items():
            if start_time(pid) == ticks:
                signal_to(pid, how)
        by = time.monotonic() + TERMINATE_TIMEOUT_S
        while any(start_time(pid) == ticks for pid, ticks in family.items()) and time.monotonic() < by:
            time.sleep(0.05)


def end_cluster(folder: str) -> None:
    """End all processes of the cluster with a folder of ours, including those started meanwhile."""
    for _ in range(END_ROUNDS):
        family = family_of(folder)
        if not family:
            return
        end_processes(family)


def family_of(folder: str) -> dict[int, int]:
    """Id and start time of the processes of a cluster with this folder, and of all they have started."""
    return _timed(with_children(of_folder(folder)))


def head_family(folder: str) -> dict[int, int]:
    """Id and start time of the processes of a cluster's head, and of all they have started; none of other nodes."""
    return _timed(with_children({pid for pid in of_folder(folder) if _is_of_head(arguments_of(pid))}))


def head_is_alive(folder: str) -> bool:
    """True if the server of a cluster's head runs: the head's raylet and agents outlive it, and wait for another."""
    return any(first.endswith("gcs_server") for pid in head_family(folder) for first in arguments_of(pid)[:1])


def load_factor() -> float:
    """Runnable processes per core; at least 1. Timeouts for an idle machine are multiplied by it."""
    return max(1.0, os.getloadavg()[0] / cores())


def _timed(pids: Collection[int]) -> dict[int, int]:
    found = {pid: start_time(pid) for pid in pids}
    return {pid: ticks for pid, ticks in found.items() if ticks is not None and pid != os.getpid()}


def _is_of_head(arguments: list[str]) -> bool:
    """The raylet of the head is started with `--head`; the others are programs that only a head has."""
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
    if title in _command_line(pid):
        signal_to(pid, signal.SIGKILL)


EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""First and last of the system's ephemeral ports."""


def free_ports(count: int) -> list[int]:
    """`count` different ports on which no process listens now.

    If possible they lie below the ephemeral ports, any of which may be taken before the node listens on it. Ray needs
    half a minute to give up a node that cannot listen.
    """
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


AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
"""Ports of a node's agents, by the names of Ray's parameters. They are set, because a raylet that has to learn them
from its agents waits 15 s for these to start and then aborts, which is too short on a busy machine."""


def agent_ports() -> dict[str, int]:
    """Free ports for the agents of one node."""
    return dict(zip(AGENT_PORTS, free_ports(len(AGENT_PORTS)), strict=True))


CLUSTER_VARIABLE = "RLPTO_CLUSTER_FOLDER"
"""Environment variable with the folder of the cluster that a process was started for: all its descendants have it."""
RAY_TITLE = "ray::"
"""Prefixes of the process titles that Ray's agents and workers set."""


@contextmanager
def started_for(folder: str) -> Iterator[None]:
    """Inside, processes that are started belong to the cluster with this folder."""
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
    """Processes that were started for the cluster with this folder; a process that only names it in an argument is
    none.

    Ray's agents and workers overwrite their environment with their title; they are recognised by their open files of
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


def titled(pids: Iterable[int], title: str) -> list[int]:
    """Those of some processes whose command lines have `title` in them."""
    return sorted(pid for pid in pids if title in _command_line(pid))


def with_children(pids: set[int]) -> set[int]:
    """Processes, and those that they have started, and so on."""
    children = _children()
    found, todo = set(), list(pids)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return found


def _children() -> dict[int, list[int]]:
    """Processes of this machine by the one that has started them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    return children


def _command_line(pid: int) -> str:
    return "\0".join(arguments_of(pid))


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


def signal_to(pid: int, how: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return  # it has already ended
