"""Connecting to a Ray cluster that is there already, and whether the jobs' code is there too."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rlpto.errors import ClusterError, ConfigError, JobError
from rlpto.ray_cluster.messages import NAMESPACE, JobSpec, controller_name
from rlpto.ray_cluster.nodes.background import running_cluster
from rlpto.ray_cluster.nodes.environment import restore_environment, use_ray_environment
from rlpto.ray_cluster.scheduler.driver import Attachment, refuse_second

AUTO = "auto"
"""The cluster of `rlpto cluster up` if it runs, else the one that Ray finds: RAY_ADDRESS, or on this machine."""
REACH_SECONDS = 5.0
"""Longest wait for a head to answer at all."""
IMPORT_SECONDS = 120.0
"""Longest wait for a worker to import a training program."""


class Connection:
    """This process as a driver of the cluster at `address` (HOST:PORT or auto), until `close`.

    Raises ConfigError for text that is no address; ClusterError if no cluster answers there, or one of another version.
    """

    def __init__(self, address: str = AUTO) -> None:
        found = running_cluster() if address == AUTO else None
        self._before = use_ray_environment(found.temporary if found else None)
        try:
            self._attachment = self._connect(found.address if found else address)
        except BaseException:
            restore_environment(self._before)
            raise
        self.address = self._attachment.address

    @staticmethod
    def _connect(address: str) -> Attachment:
        refuse_second()
        if address != AUTO:
            _reach(address)
        try:
            return Attachment(address)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise ClusterError(_explain(address, error)) from error

    def close(self) -> None:
        """Disconnect. Detached runners go on."""
        self._attachment.detach()
        restore_environment(self._before)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _reach(address: str) -> None:
    """Find out within seconds whether anybody listens: Ray itself would try for a minute."""
    match = re.fullmatch(r"(\[?[\w.:-]+\]?):(\d{1,5})", address)
    if match is None or not 0 < int(match[2]) < 65_536:
        raise ConfigError(f"--address {address}: expected auto or HOST:PORT, such as 127.0.0.1:6379")
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=REACH_SECONDS).close()
    except OSError as error:
        raise ClusterError(f"no Ray cluster at {address}: {(error.strerror or str(error)).lower()}") from None


def _explain(address: str, error: Exception) -> str:
    """One line about why there is no connection."""
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return f"the Ray cluster at {address} is of another version: {text}"
    if address == AUTO:
        where = os.environ.get("RAY_ADDRESS", "this machine")
        return f"no Ray cluster on {where}; start one with `rlpto cluster up`, or give --address HOST:PORT"
    return f"no Ray cluster at {address}: {text}"


def jobs_with_controllers() -> list[tuple[str, str]]:
    """Session and job of every runner on the cluster that this process is connected to."""
    from ray.util import list_named_actors

    pattern = re.escape(controller_name("S", "J")).replace("S", "([^:]+)").replace("J", "(.+)")
    names = [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE]
    found = (re.fullmatch(pattern, name) for name in names)
    return sorted((match[1], match[2]) for match in found if match)


def check_training(specs: Sequence[JobSpec]) -> None:
    """Let a worker of the cluster import the training program of every job.

    Raises JobError for the first that cannot be imported there. Takes no GPU, so that running jobs go on.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    first = {spec.training: spec.name for spec in reversed(specs)}
    check: Any = ray.remote(num_cpus=0, max_retries=1)(_import_problem)
    answers = {training: check.remote(training) for training in first}
    for training, answer in answers.items():
        try:
            problem = ray.get(answer, timeout=IMPORT_SECONDS)
        except (GetTimeoutError, RayError) as error:
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if problem:
            raise JobError(f"job {first[training]}: training program {training} cannot be used there: {problem}")


def _import_problem(training: str) -> str:
    """What is wrong with a training program on this machine; empty: nothing."""
    import importlib

    module, _, name = training.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # whatever a user's module raises is the answer
        return f"{type(error).__name__}: {error}"
    return "" if isinstance(found, type) else f"module {module} has no class {name}"
