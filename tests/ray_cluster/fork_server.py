"""Processes of tests' clusters that start in a moment: forked from one that has imported what jobs need already.

Nodes run this file for every process they need (`RLPTO_WORKER_PROGRAM`, set by `tests/conftest.py`), in place of Ray's
`default_worker.py`. The first of a cluster starts a fork server, this file run with `SERVE`, which listens on a socket
in the cluster's folder, and imports. Each hands over its arguments, environment and open files, and ends; the fork goes
on as Ray's own program would have. Ray itself is not imported before: it reads variables then in which processes
differ, and connects. The server ends with the last raylet that it has served; a fork ends with its raylet.

A process that finds no server starts without it, which is slow: 2.8 instead of 0.37 s on a quiet machine, and 3.5 s of
a CPU instead of 0.4 s.
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
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

SERVE = "--serve"
"""First argument of the server; behind it the cluster's folder, a raylet, and the descriptor of the socket."""
SOCKET, LOG, LOCK = "fork.sock", "fork.log", "fork.lock"
"""Files of the cluster's folder: where the server listens, its messages, and who may start it."""
MODULES = (
    *("torch", "torch._dynamo", "rlpto.ray_cluster.worker.training"),
    *("google.protobuf.json_format", "jsonschema", "msgpack", "requests", "yaml"),  # Ray's, which take half of its time
)
"""What is imported before anything is forked."""
MORE_MODULES = "RLPTO_FORK_MODULES"
"""Variable with more of them."""
GPUS = "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"
"""Devices of a machine with GPUs for a torch that is built for CUDA or ROCm."""
FORK_TIMEOUT_S, REQUEST_TIMEOUT_S = 60.0, 5.0
"""Longest wait for a fork server, which imports first, and of the server for the rest of a request."""


def main() -> None:
    """Be the server, or have this process's work done by a fork of it, or do it here."""
    arguments, raylet = sys.argv[1:], os.getppid()
    if arguments[:1] == [SERVE]:
        arguments = ForkServer(*arguments[1:]).serve()
    elif os.environ.get("RAY_RAYLET_PID") == str(raylet):  # else it has ended: a fork would not end with it
        folder = os.environ["RAY_TMPDIR"]
        start(folder, raylet)
        if ask(folder, arguments, raylet):
            os._exit(0)
    found = find_spec("ray")
    if found is None or not found.submodule_search_locations:
        raise ImportError("no module named ray")
    program = Path(found.submodule_search_locations[0], "_private", "workers", "default_worker.py")
    sys.argv = [str(program), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


def start(folder: str, raylet: int) -> None:
    """Start the server of the cluster with this folder, one of whose raylets is `raylet`, unless there is one."""
    path = Path(folder, SOCKET)
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX) as probe,
        Path(folder, LOG).open("ab") as log,
        Path(folder, LOCK).open("a") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if probe.connect_ex(str(path)) == 0:
            return
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


def ask(folder: str, arguments: Sequence[str], raylet: int) -> bool:
    """Have a process forked that takes this one's place; False if no server does so."""
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(FORK_TIMEOUT_S)
        try:
            server.connect(str(Path(folder, SOCKET)))
            socket.send_fds(server, [b"0"], [0, 1, 2])
            server.sendall(json.dumps([list(arguments), dict(os.environ), raylet]).encode())
            server.shutdown(socket.SHUT_WR)
            return bool(server.recv(1))
        except OSError:
            return False


def uses_gpus() -> bool:
    """True where torch was built for GPUs, and there are some: its state must not be shared."""
    import torch

    return bool(torch.version.cuda or torch.version.hip) and any(Path(gpu).exists() for gpu in GPUS)


class ForkServer:
    """Imports, then forks a process for each that asks at `listener`, until all raylets that it serves have ended.

    It has one thread, and has trained nothing: that would be lost in a fork.
    """

    def __init__(self, folder: str, raylet: str, listener: str) -> None:
        self._folder, self._listener = folder, socket.socket(fileno=int(listener))
        self._raylets = {os.pidfd_open(int(raylet)): int(raylet)}
        self._forked: dict[int, int] = {}

    def serve(self) -> list[str]:
        """Returns in forks only: the arguments of the process whose place they take."""
        if uses_gpus():
            sys.exit()
        gc.disable()  # it would look again and again among all that is imported, and find nothing
        for module in (*MODULES, *os.environ.get(MORE_MODULES, "").split()):
            import_module(module)
        gc.enable()
        gc.freeze()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no fork is waited for
        poll = select.poll()
        while self._raylets:
            for number in (self._listener.fileno(), *self._raylets, *self._forked):
                poll.register(number, select.POLLIN)
            for number, _ in poll.poll():
                if number != self._listener.fileno():
                    poll.unregister(number)
                    self._ended(number)
                    continue
                try:
                    arguments = self._fork()
                except (OSError, TypeError, ValueError):  # the process that asked starts without it
                    traceback.print_exc()
                    continue
                if arguments is not None:
                    return arguments
        os._exit(0)

    def _ended(self, number: int) -> None:
        """A raylet has ended, or a process that was forked. number: its pidfd."""
        raylet = self._raylets.pop(number, None)
        if raylet is None:
            self._forked.pop(number)
        else:
            for forked, own in self._forked.items():
                if own == raylet:
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(forked, signal.SIGKILL)  # it may be stopped
        os.close(number)

    def _fork(self) -> list[str] | None:
        """In the fork: the arguments of the process whose place it takes."""
        with self._listener.accept()[0] as peer:
            peer.settimeout(REQUEST_TIMEOUT_S)
            _, files, _, _ = socket.recv_fds(peer, 1, 3)
            if not files:
                return None  # it has only looked whether there is a server
            with peer.makefile() as request:
                arguments, environment, raylet = json.load(request)
            looked = select.poll()
            looked.register(peer, 0)
            if any(event & select.POLLHUP for _, event in looked.poll(0)):
                return self._close(files)  # it was killed while it waited
            if raylet not in self._raylets.values():
                self._raylets[os.pidfd_open(raylet)] = raylet
            forked = os.fork()
            if forked:
                self._forked[os.pidfd_open(forked)] = raylet
                peer.sendall(b"1")
                return self._close(files)
        self._become(files, environment)
        found: list[str] = arguments
        return found

    @staticmethod
    def _close(files: Sequence[int]) -> None:
        for number in files:
            os.close(number)

    def _become(self, files: Sequence[int], environment: dict[str, str]) -> None:
        """Take over the open files and variables of another process, and let go of the server's."""
        import numpy as np

        self._listener.close()
        self._close((*self._raylets, *self._forked))
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.setpgrp()  # Ray ends a process's group with it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environment)
        np.random.seed()  # unlike Python's own generator, it would draw the same in all of them


if __name__ == "__main__":
    main()
