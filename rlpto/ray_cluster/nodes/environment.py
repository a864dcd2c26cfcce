"""Environment of Ray: variables of drivers and of nodes that we start, and signals of drivers."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlpto.io.errors import ClusterError

VARIABLES: Mapping[str, str] = {
    # Nothing is sent anywhere.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Messages of nodes about dead workers and nodes would land between the lines of a driver, which learns of them
    # anyway: the filter of repeated lines takes all of them for such.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Workers share the machine's cores, so more threads per worker would only make them wait for each other.
    "OMP_NUM_THREADS": "1",
    # Ray would run workers at niceness 15, behind anything else on the machine.
    "RAY_worker_niceness": "0",
    # Ray would start a process for every core with the first driver; they would be unused here.
    "RAY_prestart_worker_first_driver": "0",
    # On a busy machine Ray's own 30 s are short.
    "RAY_gcs_server_port_wait_time_s": "120",
    # A dead node is noticed within about a second, a hung one within about eight: sooner, and nodes of a machine that
    # is very busy are taken for hung, its head too.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1500",
    "RAY_health_check_failure_threshold": "4",
    "RAY_health_check_initial_delay_ms": "1000",
}
"""Defaults of variables that the user has not set."""

CONTROL = "rlpto_control"
"""Ray resource of a node reserved for job controllers."""
LOOPBACK = "127.0.0.1"
"""Address of all nodes of a local cluster."""
TOKEN_FILE = "token"
"""File of a local cluster's folder with the token that Ray requires of every client."""
AUTH_MODE, AUTH_TOKEN, AUTH_TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Ray's settings of its authentication. The token itself takes precedence over the path of its file."""
INTERFACES = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
"""Variable with the network interface of workers; on a local cluster it is that of their node."""
EXTERNAL_ADDRESS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's setting whether 127.0.0.1 stands for the external address of this machine, at which a local cluster does not
answer."""


@contextmanager
def ray_environment(
    folder: Path | str | None = None, *, loopback: bool = False, more: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """Inside, this process has the variables with which Ray is started or joined: `VARIABLES` where they are not set.

    folder: of a local cluster (see `nodes.processes`), whose token and interface replace those that are set; None: a
    cluster started by others, with the token of Ray's own variables, if there is one. loopback: that one, too, can be
    reached from this machine only. Raises ClusterError if this process is connected to a cluster.
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
"""Time between checks that the head listens, and refusals in a row after which it counts as gone."""
EXIT_WITHOUT_HEAD = 2
"""Exit status of a driver that has lost its head."""


def refuses(address: str, timeout: float) -> bool:
    """True if connections to an address (HOST:PORT) are refused; a slow answer, after `timeout` s, is no refusal."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return False


def watch_head(address: str, on_lost: Callable[[], None], left: threading.Event) -> None:
    """End this process with a one-line message once nothing listens at the head's `address`, unless it has `left`.

    Otherwise every Ray call would wait a minute for the head, ignoring signals, and then abort the process.
    """
    refused = 0
    while not left.wait(HEAD_LOOK_S):
        refused = refused + 1 if refuses(address, HEAD_LOOK_S) else 0
        if refused >= HEAD_LOOKS and not left.is_set():
            print(
                f"rlpto: the head of the Ray cluster at {address} is gone. If it is a durable one, start it again with "
                "`rlpto cluster restart-head`, then this command: its jobs go on.",
                file=sys.stderr,
                flush=True,
            )
            on_lost()
            os._exit(EXIT_WITHOUT_HEAD)


@contextmanager
def driver(
    address: str, on_lost: Callable[[], None] = lambda: None, runtime_env: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Inside, this process is a driver of the cluster at `address`; yields its HOST:PORT. Raises what Ray raises.

    on_lost: called before this process ends because the head is gone. SIGTERM raises KeyboardInterrupt there, so that
    the clean-up after Ctrl-C runs then too: Ray's own handler would end the process. runtime_env: Ray's, of all
    processes that are started for this driver, and of those that they start.
    """
    import ray

    before = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {} if runtime_env is None else {"runtime_env": dict(runtime_env)}
    context: Any = ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    _on_sigterm(signal.default_int_handler)
    found, left = str(context.address_info["gcs_address"]), threading.Event()
    threading.Thread(target=watch_head, args=(found, on_lost, left), daemon=True).start()
    try:
        yield found
    finally:
        left.set()
        ray.shutdown()
        _on_sigterm(before)


def _on_sigterm(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # as Ray does: others cannot
        signal.signal(signal.SIGTERM, handler)


def set_variables(values: Mapping[str, str | None]) -> None:
    """Set variables of this process, which is connected to no cluster; None: not set."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "ray" in sys.modules:  # Ray has read them, and would keep the old values
        from rlpto.ray_cluster.compat import reread_environment

        reread_environment(EXTERNAL_ADDRESS)
