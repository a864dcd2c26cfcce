"""Ray's environment: variables of drivers and of nodes that RLPTO starts, and signals of drivers."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlpto.io.errors import ClusterError

VARIABLES: Mapping[str, str] = {
    # Nothing is sent anywhere.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Messages of nodes about dead workers and nodes would clutter a driver's output, which learns of them
    # anyway: the filter of repeated lines is made to drop all of them.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Workers share the machine's cores, so more threads per worker would only make them wait for each other.
    "OMP_NUM_THREADS": "1",
    # Ray would run workers at niceness 15, behind anything else on the machine.
    "RAY_worker_niceness": "0",
    # Ray would start a process for every core with the first driver; they would be unused here.
    "RAY_prestart_worker_first_driver": "0",
    # Metrics of Ray itself, which nobody reads here, take two fifths of the CPU time of an idle local cluster.
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    # By default Ray repeats a task that runs out of memory without end, after pauses of 1, 2, 4, ... s.
    "RAY_task_oom_retries": "3",
    # On a busy machine Ray's own 30 s are short.
    "RAY_gcs_server_port_wait_time_s": "120",
    # A dead node is noticed within about a second, a hung one within about eight. With shorter times, nodes of a
    # very busy machine, even its head, would count as hung.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1500",
    "RAY_health_check_failure_threshold": "4",
    "RAY_health_check_initial_delay_ms": "1000",
    # From grpcio 1.81 on, a process that forks under gRPC may be killed before it executes its program
    # (github.com/grpc/grpc/issues/43055). Ray starts the servers of its clients like that.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
"""Defaults of variables that the user has not set."""

CONTROL = "rlpto_control"
"""Ray resource of a node reserved for job controllers."""
CLIENT = "ray://"
"""Beginning of the address of a server for Ray's client, on the head."""
LOOPBACK = "127.0.0.1"
"""Address of all nodes of a local cluster."""
TOKEN_FILE = "token"
"""File of a local cluster's folder with the token that Ray requires of every client."""
AUTH_MODE, AUTH_TOKEN, AUTH_TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Ray's authentication settings. The token takes precedence over the path of its file."""
INTERFACES = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
"""Variables with the network interface of workers; on a local cluster, the interface of their node."""
EXTERNAL_ADDRESS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch to use 127.0.0.1 as the external address of this machine; a local cluster does not listen on the real
one."""


@contextmanager
def ray_environment(
    folder: Path | str | None = None, *, loopback: bool = False, more: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """Set the environment variables for starting or joining Ray while inside; `VARIABLES` are defaults for unset ones.

    folder: folder of a local cluster (`nodes.processes`), whose token and interface replace the user's settings.
    Default: a cluster started by others, with the token from Ray's own variables, if any. loopback: whether such a
    cluster can be reached only from this machine. Raises ClusterError if this process is connected to a cluster.
    """
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        raise ClusterError("this process is connected to a Ray cluster already, expected none")
    wanted: dict[str, str | None] = {**VARIABLES, **os.environ, **more}
    if folder is not None:
        wanted |= dict.fromkeys((AUTH_TOKEN, *INTERFACES))
        wanted |= {"RAY_TMPDIR": str(folder), AUTH_MODE: "token", AUTH_TOKEN_PATH: str(Path(folder, TOKEN_FILE))}
    elif wanted.get(AUTH_TOKEN) or wanted.get(AUTH_TOKEN_PATH):
        wanted.setdefault(AUTH_MODE, "token")
    if folder is not None or loopback:
        wanted[EXTERNAL_ADDRESS] = "0"
    changed = {name: value for name, value in wanted.items() if value != os.environ.get(name)}
    before = {name: os.environ.get(name) for name in changed}
    set_variables(changed)
    try:
        yield
    finally:
        set_variables(before)


HEAD_LOOK_S, HEAD_LOOKS = 1.0, 3
"""Time between checks that the head listens, and consecutive refusals after which it counts as gone."""
EXIT_WITHOUT_HEAD = 2
"""Exit status of a driver that has lost its head."""
GONE = (
    "rlpto: the head of the Ray cluster at {}, or its node on this machine, is gone. Start it again, with `rlpto "
    "cluster restart-head` if it is a durable one, then this command: jobs go on, and finished cells are kept."
)
_REPORT = """
import socket, sys
if not sys.stdin.buffer.read():
    try:
        socket.socket(socket.AF_UNIX).connect(sys.argv[1])
    except (ConnectionRefusedError, FileNotFoundError):
        print(sys.argv[2], file=sys.stderr)
"""


def refuses(address: str, timeout: float) -> bool:
    """True if connections to an address (HOST:PORT) are refused; a slow answer, after `timeout` s, is no refusal."""
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return False


def watch_head(address: str, on_lost: Sequence[Callable[[], None]], left: threading.Event) -> None:
    """End this process with a one-line message once nothing listens at the head's `address`, unless it has `left`.

    Otherwise every Ray call would wait a minute for the head, ignoring signals, and then abort the process.
    """
    refused = 0
    while not left.wait(HEAD_LOOK_S):
        refused = refused + 1 if refuses(address, HEAD_LOOK_S) else 0
        if refused >= HEAD_LOOKS and not left.is_set():
            print(GONE.format(address), file=sys.stderr, flush=True)
            for call in on_lost:
                call()
            os._exit(EXIT_WITHOUT_HEAD)


@contextmanager
def report_lost_node(store: str, message: str) -> Iterator[Callable[[], None]]:
    """Print a message if this process ends while inside, and nothing listens at the socket of its node's object store.

    Ray ends a driver at once, and says nothing, when that store ends. Only another process can print then. Yields a
    function after which nothing is printed.
    """
    command = [sys.executable, "-I", "-S", "-c", _REPORT, store, message]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as other:

        def silence() -> None:
            if other.returncode is None:
                other.communicate(b"left")

        try:
            yield silence
        finally:
            silence()


@contextmanager
def driver(
    address: str, on_lost: Callable[[], None] = lambda: None, runtime_env: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Connect as a driver of the cluster at `address` while inside; yields its HOST:PORT, or the address of its server
    for Ray clients. Ray's exceptions pass through.

    on_lost: called before this process ends because the head is gone. SIGTERM raises KeyboardInterrupt, to run the same
    clean-up as Ctrl-C; Ray's own handler would end the process. runtime_env: Ray's `runtime_env` of all processes
    started for this driver, and of their children.
    """
    import ray

    before = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {} if runtime_env is None else {"runtime_env": dict(runtime_env)}
    logging.getLogger("ray.util.client.logsclient").disabled = True  # of the server, whose errors are raised here too
    context: Any = ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    _on_sigterm(signal.default_int_handler)
    found, left, lost = address, threading.Event(), [on_lost]
    with ExitStack() as stack:
        stack.callback(_on_sigterm, before)
        if not address.startswith(CLIENT):
            found = str(context.address_info["gcs_address"])
            store = str(context.address_info["object_store_address"])
            lost.insert(0, stack.enter_context(report_lost_node(store, GONE.format(found))))
        stack.callback(ray.shutdown)
        stack.callback(left.set)
        threading.Thread(target=watch_head, args=(found, lost, left), daemon=True).start()
        yield found


def _on_sigterm(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # as Ray does: others cannot
        signal.signal(signal.SIGTERM, handler)


def set_variables(values: Mapping[str, str | None]) -> None:
    """Set variables of this process, which is connected to no cluster; the value None unsets a variable."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "ray" in sys.modules:  # Ray has read them, and would keep the old values
        from rlpto.ray_cluster.compat import reread_environment

        reread_environment(EXTERNAL_ADDRESS)
