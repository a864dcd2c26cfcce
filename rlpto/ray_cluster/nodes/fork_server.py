"""Processes that start in a moment: forked from one of their machine that has imported what jobs need already.

Nodes that we start run this file for every process they need, in place of Ray's `default_worker.py`. The first one of a
cluster on a machine imports (seconds of a core, once) and leaves the machine's fork server behind. From that one each
node's fork server is forked, and from this all of the node's processes: whoever was started for it hands over what it
was told, and ends. What was forked goes on as Ray's own program would have. Ray itself is not imported before: it reads
variables then in which processes differ, and connects. A node's server ends with its raylet, the machine's with the
last of them.

Only processes share fork servers that have the same environment otherwise, the same Python and module paths, cores,
limits, control group and namespaces, so that nothing is lost of what a runtime environment or whoever started a node
asks for. A process that finds none starts by itself, which is slow: where a system has no abstract sockets (all but
Linux) or no pidfds, and where there are GPUs that torch was built for, which must not be touched before a fork.
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
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from rlpto.ray_cluster.nodes.processes import NODE

MACHINE = "rlpto-server"
"""Name of the main thread of a machine's fork server."""
FORKED = "rlpto-forked"
"""Name of that of a process that was forked, until Ray gives it another."""
DEFAULT_WORKER = "default_worker.py"
"""What Ray would have run."""
MODULES = (
    *("torch", "torch._dynamo", "rlpto.ray_cluster.worker.training"),
    *("google.protobuf.json_format", "jsonschema", "msgpack", "requests", "yaml"),  # Ray's, which take half of its time
)
"""What is imported before anything is forked."""
GPUS = "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"
"""What a machine has of which a torch for CUDA or ROCm makes use."""
OF_DRIVER = frozenset({"RAY_JOB_ID"})
"""Variables in which processes that share a node's fork server may differ."""
OF_NODE = frozenset({"RAY_RAYLET_PID"})
"""The same for a machine's."""
SPACES = "mnt", "pid", "user"
"""Namespaces outside of which nobody is served: abstract sockets belong to another one, of networks."""
CLUSTER = "--cluster-id="
"""What an argument starts with that tells the cluster of a process."""
PATIENCE = 60.0
"""Longest wait for a fork server, in s: somebody imports first."""
CUT_SHORT = 5.0
"""Longest wait of a fork server for the rest of what a process says, in s."""
_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")


def main() -> None:
    """Have this process's work done by one that is forked, or do it here."""
    arguments = sys.argv[1:]
    run_ray(hand_over(arguments) if sys.platform == "linux" else arguments)


def hand_over(arguments: list[str]) -> list[str]:
    """Have a process forked that does what this one was told, and end.

    Returns where nobody forks, and in processes that were forked: what they have to do.
    """
    raylet = os.getppid()
    if str(raylet) != os.environ.get("RAY_RAYLET_PID"):  # it has ended; without it a server would never end
        return arguments
    if not _system_tells():
        return arguments
    name = node_socket(raylet)
    with socket.socket(socket.AF_UNIX) as node:
        if not _bind(node, name):
            if ask(name, arguments):
                os._exit(0)
            return arguments
        name = machine_socket(arguments)
        with socket.socket(socket.AF_UNIX) as machine:
            if _bind(machine, name):
                if not _import_most():
                    return arguments
                importer = os.pidfd_open(os.getpid())
                if os.fork() == 0:
                    node.close()
                    return serve(machine, importer)
                os.close(importer)
        if ask(name, arguments, raylet, node):
            os._exit(0)
    return arguments


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


def node_socket(raylet: int) -> str:
    """Name of the abstract socket of the node's fork server for processes like this one. raylet: process id."""
    return _socket_name(str(raylet), OF_DRIVER)


def machine_socket(arguments: Sequence[str]) -> str:
    """The same of the machine's. arguments: of this process."""
    cluster = [argument for argument in arguments if argument.startswith(CLUSTER)]
    return _socket_name("".join(cluster), OF_DRIVER | OF_NODE)


def _socket_name(what: str, differing: Collection[str]) -> str:
    alike = sorted((name, value) for name, value in os.environ.items() if name not in differing)
    said = json.dumps([what, alike, sys.executable, sys.path, os.getcwd(), *_bounds()])
    return f"\0{MACHINE}-{hashlib.sha256(said.encode()).hexdigest()[:32]}"


def _bounds() -> list[object]:
    """What else this process has from whoever has started it: cores, niceness, limits, control group, namespaces."""
    files = [Path("/proc/self", name).read_text() for name in ("limits", "cgroup")]
    return [sorted(os.sched_getaffinity(0)), os.nice(0), *files, _spaces("self")]


def _spaces(process: object) -> list[int]:
    """Namespaces of a process, by its id."""
    return [os.stat(f"/proc/{process}/ns/{space}").st_ino for space in SPACES]


def _system_tells() -> bool:
    """True where servers get to know what they have to. Old systems have no pidfds, and some forbid them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        _bounds()
    except OSError:
        return False
    return True


def _bind(listener: socket.socket, name: str) -> bool:
    """Become the one who listens; False if somebody else was quicker."""
    try:
        listener.bind(name)
    except OSError:
        return False
    listener.listen(128)
    return True


def ask(name: str, arguments: Sequence[str], raylet: int = 0, listener: socket.socket | None = None) -> bool:
    """Have a process forked that takes over this one's arguments, environment and open files; False if nobody does.

    raylet, listener: process id and socket for the node's fork server, which is to be forked first.
    """
    said = json.dumps([list(arguments), dict(os.environ), raylet]).encode()
    files = [0, 1, 2] if listener is None else [0, 1, 2, listener.fileno()]
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(PATIENCE)
        try:
            server.connect(name)
            if not _is_mine(server):
                return False
            socket.send_fds(server, [_LENGTH.pack(len(said))], files)
            server.sendall(said)
            return bool(server.recv(1))
        except OSError:
            return False


def _is_mine(peer: socket.socket) -> bool:
    """True if this user is at the other end: anybody may use an abstract socket."""
    _, user = _credentials(peer)
    return user == os.getuid()


def _is_here(peer: socket.socket) -> bool:
    """True if who has connected lives where this process does, rather than in a container that shares the network."""
    process, _ = _credentials(peer)
    try:
        return _spaces(process) == _spaces("self")
    except OSError:
        return False


def _credentials(peer: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    said = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(said)
    return process, user


def uses_gpus() -> bool:
    """True where torch was built for GPUs, and there are some. Raises ImportError where there is no torch."""
    import torch

    return bool(torch.version.cuda or torch.version.hip) and any(Path(gpu).exists() for gpu in GPUS)


def _import_most() -> bool:
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
class Request:
    """What a process was told that wants another one to take its place, its raylet's id, and its open files.

    peer: the connection to it.
    """

    arguments: list[str]
    environment: dict[str, str]
    raylet: int
    peer: socket.socket
    files: Sequence[int]

    def confirm(self) -> None:
        """Let who asked end: another process has taken its place."""
        with suppress(OSError):  # it has been killed
            self.peer.sendall(b"1")
        self.close()

    def close(self) -> None:
        """Let go of the connection and the files."""
        self.peer.close()
        for number in self.files:
            os.close(number)


def serve(listener: socket.socket, importer: int) -> list[str]:
    """Be the machine's fork server. importer: pidfd of the process that has imported.

    Returns in processes that are forked in place of others: what they have to do. Those they are forked from have one
    thread, and have trained nothing: that would be lost in a fork.
    """
    os.setpgrp()  # Ray ends a process's group with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the end of what is forked
    first = Server(listener, MACHINE, {importer}, of_nodes=True).serve()
    # This process is a node's fork server from here on. If it fails to become one, who asked starts by itself.
    own = socket.socket(fileno=os.dup(first.files[-1]))
    node = Server(own, f"{NODE}{first.raylet}", {os.pidfd_open(first.raylet)})
    if os.fork() == 0:
        node.close()
        return _leave(first)
    first.confirm()
    return _leave(node.serve())


class Server:
    """Forks a process for everyone who asks at `listener`; ends when all have ended that it lives for.

    name: of the main thread. lives_for: pidfds of processes. of_nodes: it forks servers of nodes, each of which is
    given its socket and confirms by itself, and lives for them, too.
    """

    def __init__(self, listener: socket.socket, name: str, lives_for: set[int], of_nodes: bool = False) -> None:
        self._listener, self._lives_for, self._of_nodes = listener, lives_for, of_nodes
        Path("/proc/self/comm").write_text(name)

    def serve(self) -> Request:
        """Returns in forked processes only: in whose place."""
        while True:
            ready, _, _ = select.select([self._listener.fileno(), *self._lives_for], [], [])
            for ended in self._lives_for.intersection(ready):
                self._lives_for.remove(ended)
                os.close(ended)
            if not self._lives_for:
                os._exit(0)
            if self._listener.fileno() in ready and (request := self._fork()) is not None:
                return request

    def _fork(self) -> Request | None:
        """In the process that is forked: in whose place."""
        try:
            request = _read(self._listener.accept()[0])
        except (OSError, TypeError, ValueError, struct.error):  # whoever asked starts by itself
            traceback.print_exc()
            return None
        if request is None:
            return None
        if len(request.files) != 3 + self._of_nodes or select.select([request.peer], [], [], 0)[0]:
            request.close()  # nonsense; or who asked says nothing more: it has given up, or was killed
            return None
        try:
            forked = os.fork()
        except OSError:  # there are too many; whoever asked tries by itself
            traceback.print_exc()
            request.close()
            return None
        if forked == 0:
            self.close()
            for number in range(3):
                os.dup2(request.files[number], number)
            return request
        if not self._of_nodes:
            request.confirm()
            return None
        with suppress(ProcessLookupError):  # it has failed
            self._lives_for.add(os.pidfd_open(forked))
        request.close()
        return None

    def close(self) -> None:
        """Let go of all that is the server's, in a process that is none."""
        self._listener.close()
        for number in self._lives_for:
            os.close(number)


def _leave(request: Request) -> list[str]:
    """Make a process that was just forked one of its own; returns what it has to do."""
    import numpy as np

    request.close()
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request.environment)
    np.random.seed()  # unlike Python's own generator, it would draw the same in all of them
    Path("/proc/self/comm").write_text(FORKED)
    return request.arguments


def _read(peer: socket.socket) -> Request | None:
    """What a process says that has connected; None if it is another user's, or from elsewhere."""
    peer.settimeout(CUT_SHORT)
    if not (_is_mine(peer) and _is_here(peer)):
        peer.close()
        return None
    length, files, _, _ = socket.recv_fds(peer, _LENGTH.size, 4)
    request = Request([], {}, 0, peer, files)
    try:
        arguments, environment, raylet = json.loads(_receive(peer, *_LENGTH.unpack(length)))
    except (OSError, TypeError, ValueError, struct.error):
        request.close()
        raise
    return replace(request, arguments=arguments, environment=environment, raylet=raylet)


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
