"""A bed of hosts on one machine: each has its own network, mount, process and name (uts) namespace.

    with Hosts(3) as hosts:
        hosts[1].popen(["sleep", "60"])
        hosts.cut(1)

Host i has the name `host{i}` and the address 10.77.0.{i + 1}, and its own /tmp, /dev/shm, /proc and /etc/hosts. All
other files are this machine's. The hosts share its cores and its clock: `shifted` gives Python another one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.hosts.host import address_of, name_of, system

REPOSITORY = Path(__file__).resolve().parents[2]
NEW_FILES, NEW_NAME, NEW_PROCESSES, NEW_NETWORK = 0x0002_0000, 0x0400_0000, 0x2000_0000, 0x4000_0000
T = TypeVar("T")


class NoHostsError(Exception):
    """Raised where this machine does not allow hosts: says why, in one line."""


class Host:
    """A host that runs. namespaces: numbers of its process and network namespaces."""

    def __init__(self, number: int, hosts: int, shared: Sequence[Path]) -> None:
        self.number, self.name, self.address = number, name_of(number), address_of(number)
        self._commands: list[subprocess.Popen[Any]] = []
        self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def start() -> subprocess.Popen[bytes]:
            system("unshare", NEW_PROCESSES)
            return subprocess.Popen(
                [sys.executable, "-m", "tests.hosts.host", *map(str, (far.fileno(), number, hosts, *shared))],
                cwd=REPOSITORY,
                pass_fds=[far.fileno()],
                preexec_fn=lambda: system("unshare", NEW_FILES | NEW_NAME | NEW_NETWORK),
                start_new_session=True,
            )

        try:
            self._first = in_thread(start)
        except (OSError, subprocess.SubprocessError) as error:
            self._control.close()
            raise NoHostsError(f"hosts need root, or `unshare -Ur`, and namespaces of Linux: {error}") from None
        finally:
            far.close()
        self._pidfd = os.pidfd_open(self._first.pid)
        said, taps, *_ = socket.recv_fds(self._control, 1000, 1)
        if not taps:
            self.end()
            raise NoHostsError(f"this machine allows no hosts: {said.decode()}")
        self.tap = taps[0]
        self.namespaces = {os.readlink(f"/proc/{self._first.pid}/ns/{kind}") for kind in ("pid", "net")}

    def popen(self, command: Sequence[str | Path], cwd: Path = REPOSITORY, **options: Any) -> subprocess.Popen[Any]:
        """Start a command on this host, with the options of `subprocess.Popen`. It ends with the host."""

        def enter() -> None:
            system("setns", self._pidfd, NEW_FILES | NEW_NAME | NEW_NETWORK)
            os.chdir(cwd)

        def start() -> subprocess.Popen[Any]:
            system("setns", self._pidfd, NEW_PROCESSES)
            return subprocess.Popen(command, preexec_fn=enter, **options)

        self._commands.append(in_thread(start))
        return self._commands[-1]

    def run(self, command: Sequence[str | Path], timeout: float = 60.0, **options: Any) -> str:
        """Run a command on this host and return what it prints. Raises CalledProcessError, after `timeout` s
        TimeoutExpired."""
        options = {"stdout": subprocess.PIPE, "text": True, **options}
        started = self.popen(command, **options)
        try:
            out, _ = started.communicate(timeout=timeout)
        finally:
            started.kill()
            started.wait()
        if started.returncode:
            raise subprocess.CalledProcessError(started.returncode, [*map(str, command)], out)
        return str(out)

    def processes(self) -> set[int]:
        """Process ids on this machine of all processes of this host but its first one."""
        return processes_in(self.namespaces) - {self._first.pid}

    def end(self) -> None:
        """End this host with all its processes."""
        self._control.close()
        self._first.kill()
        for command in self._commands:  # the kernel waits until all of them have been waited for
            command.wait()
        self._first.wait()
        os.close(self._pidfd)


class Hosts:
    """`count` hosts on one switch. shared: folders below /tmp that all hosts share with this process.

    Raises NoHostsError if this machine allows none. After the context no process, namespace or device remains.
    """

    def __init__(self, count: int, *shared: Path) -> None:
        self._count = count
        private = (path.resolve() for path in (*shared, REPOSITORY, Path(sys.prefix)))
        self._shared = [path for path in private if path.is_relative_to("/tmp")]
        self._hosts: dict[int, Host] = {}
        self._namespaces: set[str] = set()

    def __enter__(self) -> Hosts:
        self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._switch = subprocess.Popen(
            [sys.executable, "-m", "tests.hosts.switch", str(far.fileno())],
            cwd=REPOSITORY,
            pass_fds=[far.fileno()],
            start_new_session=True,
        )
        far.close()
        try:
            for number in range(self._count):
                self.boot(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._switch.wait()
        for host in self._hosts.values():
            host.end()
        self._hosts.clear()
        assert not (left := processes_in(self._namespaces)), f"processes of ended hosts: {left}"

    def __getitem__(self, number: int) -> Host:
        return self._hosts[number]

    def boot(self, number: int) -> None:
        """Start a host, at first or after `kill`: with the same name and address, and without files in /tmp."""
        host = Host(number, self._count, self._shared)
        self._hosts[number] = host
        self._namespaces |= host.namespaces
        self._ask(number, {}, host.tap)
        os.close(host.tap)

    def kill(self, number: int) -> None:
        """Switch a host off: no frame leaves it any more, and all its processes are killed at once."""
        self._ask(number, None)
        self._hosts.pop(number).end()

    def cut(self, number: int) -> None:
        """Drop all frames from and to a host."""
        self._ask(number, {"cut": True})

    def delay(self, number: int, seconds: float) -> None:
        """Delay every frame from or to a host: a round trip takes twice that."""
        self._ask(number, {"delay": seconds})

    def lose(self, number: int, share: float) -> None:
        """Lose a share of the frames from and to a host, at random."""
        self._ask(number, {"lose": share})

    def heal(self, number: int) -> None:
        """End `cut`, `delay` and `lose` of a host."""
        self._ask(number, {"cut": False, "delay": 0.0, "lose": 0.0})

    def frames(self, number: int) -> Mapping[str, int]:
        """Frames from and to a host so far: `passed`, `lost` by `lose`, and `dropped` by `cut`."""
        return self._ask(number, {})

    def _ask(self, number: int, changes: Mapping[str, object] | None, *taps: int) -> Mapping[str, Any]:
        socket.send_fds(self._control, [json.dumps([number, changes]).encode()], taps)
        answer: Mapping[str, Any] = json.loads(self._control.recv(1000))
        return answer


def in_thread(call: Callable[[], T]) -> T:
    """Call in a new thread, which may enter a process namespace for its children, and cannot always leave it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def processes_in(namespaces: set[str]) -> set[int]:
    """Processes of this machine that are in one of some process or network namespaces."""
    found = set()
    for entry in (*Path("/proc").glob("[0-9]*/ns/pid"), *Path("/proc").glob("[0-9]*/ns/net")):
        with suppress(OSError):  # it has ended, or belongs to another user
            if os.readlink(entry) in namespaces:
                found.add(int(entry.parts[2]))
    return found


def shifted(folder: Path, seconds: float) -> dict[str, str]:
    """Variables of Python processes that read a clock `seconds` ahead of this machine's, with a file in `folder`.

    Clocks cannot differ between namespaces, so `time.time` is replaced at Python's start. Ray's compiled processes and
    the times of files keep the machine's clock, and so do all monotonic clocks.
    """
    (folder / "sitecustomize.py").write_text(SHIFT.format(seconds=seconds))
    return {"PYTHONPATH": f"{folder}:{REPOSITORY}"}


SHIFT = """
import time
own, nanoseconds = time.time, time.time_ns
time.time = lambda: own() + {seconds}
time.time_ns = lambda: nanoseconds() + int({seconds} * 1e9)
"""
