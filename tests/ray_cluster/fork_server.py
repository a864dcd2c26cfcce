"""Processes of tests' clusters that start in a moment: forked from one that has imported what jobs need already.

Nodes run this file for every process they need (`RLPTO_WORKER_PROGRAM`, set by `tests/conftest.py`), in place of Ray's
`default_worker.py`. The first of a cluster starts a fork server, this file run with `SERVE`, which listens on a socket
in the cluster's folder, and imports. All hand over what they were told, and end; what was forked goes on as Ray's own
program would have. Ray itself is not imported before: it reads variables then in which processes differ, and connects.
The server ends with the last raylet that it has served; what it forked for one ends with that.

Whoever finds no server, or is to have what cannot be handed over (see `traits`), starts without it, which is slow: 2.8
instead of 0.37 s on a quiet machine, and 3.5 s of a CPU instead of 0.4 s.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder: its files are modules of a package

import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

SERVE = "--serve"
"""First argument of the server; behind it the cluster's folder, the head's raylet, and the socket's descriptor."""
SOCKET, LOG, LOCK = "fork.sock", "fork.log", "fork.lock"
"""Files of the cluster's folder: where the server listens, what it says, and who may start it."""
FORKED = "rlpto-forked"
"""Name of the main thread of a process that was forked, until Ray gives it another."""
DEFAULT_WORKER = "default_worker.py"
"""What Ray would have run."""
MODULES = (
    *("torch", "torch._dynamo", "rlpto.ray_cluster.worker.training"),
    *("google.protobuf.json_format", "jsonschema", "msgpack", "requests", "yaml"),  # Ray's, which take half of its time
)
"""What is imported before anything is forked."""
GPUS = "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"
"""What a machine has of which a torch for CUDA or ROCm makes use."""
OF_RAY = b"RAY_", b"SPT_NOENV"
"""What the names of variables begin with that Ray gives processes: it reads them once it is imported."""
FORK_TIMEOUT_S = 60.0
"""Longest wait for a fork server: it imports first."""
REQUEST_TIMEOUT_S = 5.0
"""Longest wait of a fork server for the rest of what a process says."""
PAUSE_AFTER_ERROR_S = 0.05
"""Wait of a fork server after a request that it could not serve: that may be for lack of open files."""


def start(folder: str, raylet: int) -> None:
    """Start the server of a cluster, unless there is one. folder: the cluster's. raylet: process id of one of its."""
    path = Path(folder, SOCKET)
    with (
        socket.socket(socket.AF_UNIX) as listener,
        Path(folder, LOG).open("ab") as log,
        Path(folder, LOCK).open("a") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if listener.connect_ex(str(path)) == 0:
            return  # another process was quicker
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(128)
        # From here on processes wait for it, rather than start without it.
        subprocess.Popen(
            [sys.executable, __file__, SERVE, f"{folder}/", str(raylet), str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def main() -> None:
    """Be the server, or have this process's work done by one that is forked, or do it here."""
    arguments = sys.argv[1:]
    if arguments[:1] == [SERVE]:
        arguments = serve(*arguments[1:])
    elif not has_own_environment():
        folder = os.environ["RAY_TMPDIR"]
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(Path(folder, SOCKET))) != 0:
                start(folder, os.getppid())
        if ask(folder, arguments):
            os._exit(0)
    run_ray(arguments)


def run_ray(arguments: Sequence[str]) -> None:
    """Be the process that Ray wanted."""
    found = find_spec("ray")
    if found is None or not found.submodule_search_locations:
        raise ImportError("no module named ray")
    sys.argv = [str(Path(found.submodule_search_locations[0], "_private", "workers", DEFAULT_WORKER)), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


def has_own_environment() -> bool:
    """True if this process has variables other than its raylet's, its parent: a runtime environment asks for them.

    True, too, if the raylet has ended: what is forked would not end with it.
    """
    if os.environ.get("RAY_RAYLET_PID") != str(os.getppid()):
        return True
    entries = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    theirs = dict(entry.split(b"=", 1) for entry in entries if entry)
    return any(not name.startswith(OF_RAY) for name, _ in os.environb.items() - theirs.items())


def traits() -> list[object]:
    """What this process has from whoever has started it, besides variables: in a fork it is that of the server."""
    files = [Path("/proc/self", name).read_text() for name in ("limits", "cgroup")]
    spaces = [os.stat(f"/proc/self/ns/{space}").st_ino for space in ("mnt", "net", "pid", "user")]
    return [sys.executable, os.getcwd(), sorted(os.sched_getaffinity(0)), os.nice(0), *files, *spaces]


def ask(folder: str, arguments: Sequence[str]) -> bool:
    """Have a process forked that takes over this one's arguments, environment and open files; False if nobody does.

    folder: of the cluster.
    """
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(FORK_TIMEOUT_S)
        try:
            server.connect(str(Path(folder, SOCKET)))
            socket.send_fds(server, [b"0"], [0, 1, 2])
            server.sendall(json.dumps([list(arguments), dict(os.environ), os.getppid(), traits()]).encode())
            server.shutdown(socket.SHUT_WR)
            return bool(server.recv(1))
        except OSError:
            return False


def uses_gpus() -> bool:
    """True where torch was built for GPUs, and there are some. Raises ImportError where there is no torch."""
    import torch

    return bool(torch.version.cuda or torch.version.hip) and any(Path(gpu).exists() for gpu in GPUS)


def import_modules() -> bool:
    """Import what controllers and workers need; False where it must not be shared, or cannot be imported."""
    gc.disable()  # it would look again and again among all that is imported, and find nothing
    try:
        if uses_gpus():
            return False
        for module in MODULES:
            import_module(module)
    except Exception:  # whoever needs it will raise it where users see it
        traceback.print_exc()
        return False
    finally:
        gc.enable()
    gc.freeze()
    return True


@dataclass(frozen=True)
class ForkRequest:
    """What a process was told that wants another one to take its place: arguments, environment and open files."""

    arguments: list[str]
    environment: dict[str, str]
    files: Sequence[int]


def serve(folder: str, raylet: str, listener: str) -> list[str]:
    """Be the fork server; returns in processes that are forked in place of others: what they have to do.

    They are forked from a process that has one thread, and has trained nothing: that would be lost.
    """
    server = ForkServer(folder, int(raylet), socket.socket(fileno=int(listener)))
    if not import_modules():
        sys.exit()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the end of what is forked
    request = server.serve()
    import numpy as np

    for number, file in enumerate(request.files):
        os.dup2(file, number)
        os.close(file)
    os.setpgrp()  # Ray ends a process's group with it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request.environment)
    np.random.seed()  # unlike Python's own generator, it would draw the same in all of them
    Path("/proc/self/comm").write_text(FORKED)
    return request.arguments


class ForkServer:
    """Forks a process for everyone alike who asks at `listener`; ends when all raylets that it serves have ended.

    folder: of the cluster. raylet: process id of the first of them, the head's.
    """

    def __init__(self, folder: str, raylet: int, listener: socket.socket) -> None:
        self._folder, self._listener, self._traits = folder, listener, traits()
        self._raylets: dict[int, int] = {}
        self._forked: dict[int, int] = {}
        self._add_raylet(raylet)

    def _add_raylet(self, raylet: int) -> None:
        """Live for a raylet, too. Raises OSError if it has ended."""
        if raylet not in self._raylets.values():
            self._raylets[os.pidfd_open(raylet)] = raylet

    def serve(self) -> ForkRequest:
        """Returns in forked processes only: in whose place."""
        poll = select.poll()
        while self._raylets:
            for number in (self._listener.fileno(), *self._raylets, *self._forked):
                poll.register(number, select.POLLIN)
            for number, _ in poll.poll():
                if number == self._listener.fileno():
                    try:
                        request = self._fork()
                    except (OSError, TypeError, ValueError):  # whoever asked starts by itself
                        traceback.print_exc()
                        time.sleep(PAUSE_AFTER_ERROR_S)
                        continue
                    if request is not None:
                        return request
                else:
                    poll.unregister(number)
                    self._ended(number)
        os._exit(0)

    def _ended(self, number: int) -> None:
        """A raylet has ended, or a process that was forked. number: its pidfd."""
        raylet = self._raylets.pop(number, None)
        if raylet is None:
            self._forked.pop(number)
        else:
            for forked, its_raylet in self._forked.items():
                if its_raylet == raylet:
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(forked, signal.SIGKILL)  # it may be stopped
        os.close(number)

    def _fork(self) -> ForkRequest | None:
        """In the process that is forked: in whose place."""
        with self._listener.accept()[0] as peer:
            peer.settimeout(REQUEST_TIMEOUT_S)
            _, files, _, _ = socket.recv_fds(peer, 1, 3)
            try:
                with peer.makefile() as said:
                    arguments, environment, raylet, alike = json.load(said)
                if alike != self._traits or len(files) != 3 or _has_given_up(peer):
                    return None
                self._add_raylet(raylet)
                waits, goes_on = socket.socketpair()
                with waits, goes_on:
                    forked = os.fork()
                    if forked == 0:
                        goes_on.close()
                        if not waits.recv(1):
                            os._exit(1)  # it could not be noted, and whoever asked starts by itself
                        request, files = ForkRequest(arguments, environment, files), []
                        self._close()
                        return request
                    self._forked[os.pidfd_open(forked)] = raylet
                    peer.sendall(b"1")
                    goes_on.sendall(b"1")
            finally:
                for number in files:
                    os.close(number)
        return None

    def _close(self) -> None:
        """Let go of all that is the server's, in a process that is none."""
        self._listener.close()
        for number in (*self._raylets, *self._forked):
            os.close(number)


def _has_given_up(peer: socket.socket) -> bool:
    """True if who has asked does not wait for the answer, or was killed."""
    poll = select.poll()
    poll.register(peer, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


if __name__ == "__main__":
    main()
