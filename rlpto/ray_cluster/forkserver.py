"""Processes that start in a moment: forked from one of their node that has imported what jobs need already.

Nodes that we start run this file for every process they need, in place of Ray's `default_worker.py`. The first one
becomes the node's fork server: it imports (seconds of a core, once), then forks a process for itself and for each that
comes later; those hand it what they were told, and end. What was forked goes on as Ray's own program would have. Ray
itself is not imported before: it reads variables then in which processes differ, and connects.

Only processes with the same environment otherwise, the same Python and module paths share a fork server, so that
nothing is lost of what a runtime environment asks for. A process that finds none starts by itself, which is slow: where
a system has no abstract sockets (all but Linux), and where torch was built for CUDA, which must not be touched before a
fork.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder: its files are modules of a package

import gc
import hashlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

SERVER = "rlpto-server"
"""Name of the main thread of a fork server."""
UNUSED = "rlpto-"
"""Name of the main thread of a process that has served nobody yet, before the id of its driver: Ray gives it another.
Its environment, which tells the driver otherwise, is that of the fork server for those who look at it."""
DEFAULT_WORKER = "default_worker.py"
"""What Ray would have run."""
MODULES = (
    *("torch", "torch._dynamo", "rlpto.ray_cluster.training"),
    *("google.protobuf.json_format", "jsonschema", "msgpack", "requests", "yaml"),  # Ray's, which take half of its time
)
"""What a fork server imports."""
OWN = frozenset({"RAY_JOB_ID"})
"""Variables in which processes that share a fork server may differ."""
PATIENCE = 60.0
"""Longest wait for a fork server, in s: it imports first."""
CUT_SHORT = 5.0
"""Longest wait of a fork server for the rest of what a process says, in s."""
_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")


def main() -> None:
    """Have this process's work done by one that is forked; or become the fork server; or do it here."""
    arguments = sys.argv[1:]
    if sys.platform == "linux":
        raylet = os.getppid()
        name = socket_name(raylet)
        with socket.socket(socket.AF_UNIX) as listener:
            if not _bind(listener, name):
                if ask(name, arguments):
                    os._exit(0)
            elif _import_most():
                arguments = Server(listener, raylet).serve(arguments)
    run_ray(arguments)


def program() -> str:
    """Path of this file, for Ray."""
    return str(Path(__file__).resolve())


def run_ray(arguments: Sequence[str]) -> None:
    """Be the process that Ray wanted."""
    found = find_spec("ray")
    if found is None or not found.submodule_search_locations:
        raise ImportError("no module named ray")
    sys.argv = [str(Path(found.submodule_search_locations[0], "_private", "workers", DEFAULT_WORKER)), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


def socket_name(raylet: int) -> str:
    """Name of the abstract socket of the fork server for processes like this one. raylet: process id."""
    alike = sorted((name, value) for name, value in os.environ.items() if name not in OWN)
    what = json.dumps([raylet, alike, sys.executable, sys.path, os.getcwd()])
    return f"\0{SERVER}-{hashlib.sha256(what.encode()).hexdigest()[:32]}"


def _bind(listener: socket.socket, name: str) -> bool:
    """Become the one who listens; False if somebody else was quicker."""
    try:
        listener.bind(name)
    except OSError:
        return False
    listener.listen(128)
    return True


def ask(name: str, arguments: Sequence[str]) -> bool:
    """Have a process forked that takes over this one's arguments, environment and open files; False if nobody does."""
    said = json.dumps([list(arguments), dict(os.environ)]).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(PATIENCE)
        try:
            server.connect(name)
            if not _is_mine(server):
                return False
            socket.send_fds(server, [_LENGTH.pack(len(said))], [0, 1, 2])
            server.sendall(said)
            return bool(server.recv(1))
        except OSError:
            return False


def _is_mine(peer: socket.socket) -> bool:
    """True if this user is at the other end: anybody may use an abstract socket."""
    _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.getuid())


def _import_most() -> bool:
    """Import what runners and workers need; False where it must not be shared, or cannot be imported."""
    gc.disable()  # it would look again and again among all that is imported, and find nothing
    try:
        for module in MODULES:
            import_module(module)
        import torch
    except Exception:  # whoever needs it will raise it where users see it
        traceback.print_exc()
        return False
    finally:
        gc.enable()
    gc.freeze()
    return torch.version.cuda is None


@dataclass(frozen=True)
class Request:
    """What a process was told that wants another one to take its place, over a connection to it, and its open files."""

    arguments: list[str]
    environment: dict[str, str]
    peer: socket.socket
    files: Sequence[int]

    def close(self) -> None:
        """Let go of the connection and the files."""
        self.peer.close()
        for number in self.files:
            os.close(number)


class Server:
    """Forks processes of one raylet, and ends with it.

    Its process has one thread, and has trained nothing: that would be lost in a fork.
    """

    def __init__(self, listener: socket.socket, raylet: int) -> None:
        self._listener = listener
        self._raylet = os.pidfd_open(raylet)
        self._group = os.getpgid(raylet)

    def serve(self, first: list[str]) -> list[str]:
        """Fork a process in place of this one, told `first`, then for everyone who asks.

        Returns in forked processes only: what they were told.
        """
        os.setpgid(0, self._group)  # Ray ends a process's group with it, and this one is no longer what Ray started
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the end of what is forked
        if os.fork() == 0:
            self._leave(dict(os.environ))
            return first
        Path("/proc/self/comm").write_text(SERVER)
        while True:
            ready, _, _ = select.select([self._listener.fileno(), self._raylet], [], [])
            if self._raylet in ready:
                os._exit(0)
            try:
                request = _read(self._listener.accept()[0])
                if request is None:
                    continue
                if os.fork() == 0:
                    for number, file in enumerate(request.files):
                        os.dup2(file, number)
                    request.close()
                    self._leave(request.environment)
                    return request.arguments
                request.peer.sendall(b"1")
                request.close()
            except (OSError, ValueError, struct.error):  # whoever asked has ended, or starts by itself
                traceback.print_exc()

    def _leave(self, environment: Mapping[str, str]) -> None:
        """Make a process that was just forked one of its own."""
        import numpy as np

        self._listener.close()
        os.close(self._raylet)
        os.setpgrp()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environment)
        np.random.seed()  # unlike Python's own generator, it would draw the same in all of them
        Path("/proc/self/comm").write_text(UNUSED + environment.get("RAY_JOB_ID", ""))


def _read(peer: socket.socket) -> Request | None:
    """What a process says that has connected; None if it is another user's."""
    peer.settimeout(CUT_SHORT)
    if not _is_mine(peer):
        peer.close()
        return None
    length, files, _, _ = socket.recv_fds(peer, _LENGTH.size, 3)
    request = Request([], {}, peer, files)
    try:
        arguments, environment = json.loads(_receive(peer, *_LENGTH.unpack(length)))
    except (OSError, ValueError, struct.error):
        request.close()
        raise
    return replace(request, arguments=arguments, environment=environment)


def _receive(peer: socket.socket, length: int) -> bytes:
    """So many bytes. Raises ConnectionError if fewer come."""
    received = b""
    while len(received) < length:
        more = peer.recv(length - len(received))
        if not more:
            raise ConnectionError(f"{len(received)} bytes came, {length} were announced")
        received += more
    return received


if __name__ == "__main__":
    main()
