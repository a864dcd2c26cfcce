"""The environment variables under which Ray runs here, in drivers and on nodes that we start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLES: Mapping[str, str] = {
    # Nothing is sent anywhere.
    "RAY_USAGE_STATS_ENABLED": "0",
    # What nodes write about workers and nodes that died would land between the lines of a driver, which hears of it
    # anyway: the filter of repeated lines takes all of them for such.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Workers share the machine's cores; each thread of its own would only make them wait for each other.
    "OMP_NUM_THREADS": "1",
    # Ray would run workers at niceness 15, behind anything else on the machine.
    "RAY_worker_niceness": "0",
    # Ray would start a process for every core with the first driver; here nobody would use them.
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
"""What is set where the user has not set it."""

CONTROL = "rlpto_control"
"""Ray resource of a node that is kept for runners."""
LOOPBACK = "127.0.0.1"
"""Address of all nodes of a local cluster."""
TOKEN_FILE = "token"
"""File of a local cluster's folder with the token that Ray asks everybody for who connects."""
AUTH_MODE, AUTH_TOKEN, AUTH_TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Ray's settings of its authentication. The token itself comes before the path of a file with it."""
INTERFACES = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
"""Where a user says which network interface workers talk through; on a local cluster it is that of their node."""
EXTERNAL_ADDRESS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's setting whether 127.0.0.1 stands for the external address of this machine, at which a local cluster does not
answer."""


def ray_environment(folder: Path | str | None = None, *, loopback: bool = False) -> dict[str, str]:
    """Environment of a process that starts or joins Ray: the present one, with `VARIABLES` where they are not set.

    folder: of a local cluster (see `nodes.folders`), whose token and interface count then, whatever is set. None: a
    cluster that others have started, whose token the user names in Ray's own variables; who names one wants it used.
    loopback: that one can be reached from this machine only, as all those with a folder.
    """
    environment = {**VARIABLES, **os.environ}
    if folder is not None:
        for name in (AUTH_TOKEN, *INTERFACES):
            environment.pop(name, None)
        environment |= {"RAY_TMPDIR": str(folder), AUTH_MODE: "token", AUTH_TOKEN_PATH: str(Path(folder, TOKEN_FILE))}
    elif environment.get(AUTH_TOKEN) or environment.get(AUTH_TOKEN_PATH):
        environment.setdefault(AUTH_MODE, "token")
    if folder is not None or loopback:
        environment[EXTERNAL_ADDRESS] = "0"
    return environment


def use_ray_environment(folder: Path | str | None = None, *, loopback: bool = False) -> dict[str, str | None]:
    """Set the variables of `ray_environment` in this process, which is connected to no cluster.

    Returns what they were before, as `restore_environment` takes it.
    """
    wanted = ray_environment(folder, loopback=loopback)
    names = {name for name in wanted.keys() | os.environ.keys() if wanted.get(name) != os.environ.get(name)}
    before = {name: os.environ.get(name) for name in names}
    restore_environment({name: wanted.get(name) for name in names})
    return before


def restore_environment(before: Mapping[str, str | None]) -> None:
    """Put variables back to what they were; None: not set."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "ray" in sys.modules:  # it has read them, and would go on with what they were
        from ray import _raylet
        from ray._private import ray_constants

        constants: Any = ray_constants
        library: Any = _raylet  # neither of which has types
        constants.ENABLE_RAY_CLUSTER = constants.env_bool(EXTERNAL_ADDRESS, not constants.IS_WINDOWS_OR_OSX)
        library.Config.initialize("")
        library.AuthenticationTokenLoader.instance().reset_cache()
