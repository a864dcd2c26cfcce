"""The environment variables under which Ray runs here, in drivers and on nodes that we start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLES: Mapping[str, str] = {
    # Nothing is sent anywhere.
    "RAY_USAGE_STATS_ENABLED": "0",
    # A local start would otherwise write a token that the next cluster asks for and its nodes do not have.
    "RAY_AUTH_MODE": "disabled",
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


def ray_environment(temporary: Path | str | None = None) -> dict[str, str]:
    """Environment of a process that starts or joins Ray: the present one, with `VARIABLES` where they are not set.

    temporary: folder of Ray's sockets and logs (a short path: sockets have at most 107 characters); None: Ray's own.
    """
    environment = {**VARIABLES, **os.environ}
    if temporary is not None:
        environment["RAY_TMPDIR"] = str(temporary)
    return environment


def use_ray_environment(temporary: Path | str | None = None) -> dict[str, str | None]:
    """Set the variables of `ray_environment` in this process; to be called before ray is imported.

    Returns what they were before, as `restore_environment` takes it.
    """
    wanted = ray_environment(temporary)
    names = [*VARIABLES, "RAY_TMPDIR"]
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: wanted[name] for name in names if name in wanted})
    return before


def restore_environment(before: Mapping[str, str | None]) -> None:
    """Put variables back to what they were; None: not set."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
