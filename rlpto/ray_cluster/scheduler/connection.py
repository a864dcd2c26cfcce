"""Connecting to a running Ray cluster as its only scheduler, and checking that its nodes have the jobs' code.

Two schedulers would give the same GPUs to jobs of both. The present scheduler is therefore recorded in Ray, which also
knows whether that process is still a driver, however it ended.
"""

from __future__ import annotations

import json
import os
import pkgutil
import platform
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import rlpto
from rlpto.io.errors import ClusterError, ConfigError, JobError, refusals_as
from rlpto.io.files import in_home
from rlpto.ray_cluster.controllers import alive_nodes
from rlpto.ray_cluster.messages import JobSpec, reason_of
from rlpto.ray_cluster.nodes.environment import (
    AUTH_MODE,
    AUTH_TOKEN,
    AUTH_TOKEN_PATH,
    CLIENT,
    LOOPBACK,
    driver,
    ray_environment,
)
from rlpto.ray_cluster.nodes.persistent_cluster import running_cluster
from rlpto.ray_cluster.nodes.processes import load_factor
from rlpto.ray_cluster.settings import ShipCode

AUTO = "auto"
"""The cluster of `rlpto cluster up` if it runs, else of RAY_ADDRESS, else the one recorded by this user's `ray start`.
Ray itself would also take another user's cluster whose processes it finds here, and wait for it."""
REACH_TIMEOUT_S = 5.0
"""Longest wait for any answer of a head."""
IMPORT_TIMEOUT_S, PROBE_TIMEOUT_S = 120.0, 20.0
"""Longest waits, on an idle machine, for workers to import all training programs and for all nodes to report their
version."""


class Connection(ExitStack):
    """This process as a driver of the cluster at `address` (HOST:PORT or auto; ray://HOST:PORT for a driver that only
    runs tasks), until `close`; then `address` is no longer auto.

    The token of a protected cluster is taken from its folder if `rlpto cluster up` has started it, else from Ray's own
    variables, RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN, or from the file in which Ray's commands keep this user's token.

    ship_code: whether this package's code is sent to the nodes; auto sends it if a node lacks it and `rlpto` has not
    started the cluster. on_lost: called before this process ends because the head is gone. research: tasks of research
    will run there, which need the package's data, and exactly its version; variables: environment of all processes of
    this driver. Raises ConfigError for an invalid address; ClusterError if no cluster answers, or if its version or
    token differs.
    """

    def __init__(
        self,
        address: str = AUTO,
        ship_code: ShipCode = "never",
        on_lost: Callable[[], None] = lambda: None,
        *,
        research: bool = False,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._research, self._variables = research, dict(variables)
        found, folder = running_cluster(), None
        if found is not None and address in {AUTO, found.address}:
            address, folder = found.address, found.folder
        elif address == AUTO:
            address = _usual_address(research)
        loopback = _reach(address, research)
        try:
            self.enter_context(ray_environment(folder, loopback=loopback))
            self.address = self._connect(address, "never" if folder and ship_code == "auto" else ship_code, on_lost)
        except BaseException:
            self.close()
            raise

    def _connect(self, address: str, ship_code: ShipCode, on_lost: Callable[[], None]) -> str:
        from ray.exceptions import AuthenticationError

        from rlpto.ray_cluster.compat import takes_token

        refused = (
            f"the Ray cluster at {address} asks for its token: expected the file that holds it at "
            f"~/.ray/auth_token or in {AUTH_TOKEN_PATH}, or the token itself in {AUTH_TOKEN}"
        )
        try:
            asked = partial(
                takes_token, address.removeprefix(CLIENT), REACH_TIMEOUT_S, client=address.startswith(CLIENT)
            )
            taken = asked()
            token = in_home(AUTH_TOKEN_PATH, ".ray/auth_token")
            given = taken or os.environ.get(AUTH_TOKEN) or os.environ.get(AUTH_TOKEN_PATH)
            if not given and token is not None and token.is_file():
                self.enter_context(ray_environment(more={AUTH_MODE: "token", AUTH_TOKEN_PATH: str(token)}))
                taken = asked()
            if not taken:
                raise ClusterError(refused)
            ships = ship_code == "always"
            if ship_code == "auto":  # a driver must decide to send code when it connects
                with driver(address, on_lost):
                    ships = lacks_sources() if self._research else lacks_code()
            # Ray keeps the code, and each node unpacks it once. It matches names below the package, and "." for itself;
            # jobs need no data.
            left_out = ["__pycache__"] if self._research else ["__pycache__", "?*.*", "!*.py"]
            code = {"py_modules": [str(Path(rlpto.__file__).parent)], "excludes": left_out} if ships else {}
            variables = {"env_vars": self._variables} if self._variables else {}
            return self.enter_context(driver(address, on_lost, {**code, **variables}))
        except (AuthenticationError, ConnectionError, RuntimeError, ValueError, OSError) as error:
            if any(isinstance(one, AuthenticationError) for one in (error, error.__cause__)):
                raise ClusterError(refused) from None
            said = " ".join(str(error).split())
            if "ersion mismatch" in said:
                raise ClusterError(f"the Ray cluster at {address} is of another version: {said}") from error
            raise ClusterError(f"no Ray cluster at {address}: {reason_of(error)}") from error

    @property
    def protected(self) -> bool:
        """False if the cluster accepts everyone who reaches it."""
        return os.environ.get(AUTH_MODE, "").lower() == "token"


def _option(research: bool) -> str:
    return "--workers" if research else "--address"


def _usual_address(research: bool) -> str:
    """Address of the cluster that Ray's own commands would use for this user. Raises ClusterError if there is none."""
    from rlpto.ray_cluster.compat import noted_address_file

    address = os.environ.get("RAY_ADDRESS", "")
    if address in {"", AUTO, "local"}:
        noted, address = noted_address_file(), ""
        with suppress(OSError):
            if noted.stat().st_uid == os.getuid():
                address = noted.read_text(encoding="utf-8").strip()
    if not address:
        raise ClusterError(
            "no Ray cluster of yours on this machine; start one with `rlpto cluster up`, or give "
            f"{_option(research)} HOST:PORT"
        )
    return address


def _reach(address: str, research: bool) -> bool:
    """Check within seconds whether a process listens, which takes Ray a minute. True if one listens on a loopback
    address of this machine, but not on the external one. Raises ConfigError for an invalid address."""
    match = re.fullmatch(r"(\[?[\w.:-]+\]?):(\d{1,5})", address.removeprefix(CLIENT) if research else address)
    if match is None or not 0 < int(match[2]) < 65_536:
        expected = f"auto, HOST:PORT or {CLIENT}HOST:PORT" if research else "auto or HOST:PORT"
        raise ConfigError(f"{_option(research)} {address}: expected {expected}, such as 127.0.0.1:6379")
    host, port = match[1].strip("[]"), int(match[2])
    with refusals_as(ClusterError, f"no Ray cluster at {address}"):
        try:
            socket.create_connection((host, port), timeout=REACH_TIMEOUT_S).close()
        except UnicodeError:  # an empty or long part of a name
            raise ClusterError(f"no Ray cluster at {address}: {host} is no name of a host") from None
    if host not in {"localhost", LOOPBACK, "::1"}:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, socket.socket() as outside:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: only the route is looked up
        except OSError:
            return True
        outside.settimeout(REACH_TIMEOUT_S)
        return outside.connect_ex((str(probe.getsockname()[0]), port)) != 0


def lacks_code() -> bool:
    """True if a node of the connected cluster cannot import this version of the package, or if no node has GPUs: the
    code of nodes that come later is unknown."""
    nodes = alive_nodes()
    others = _differs("rlpto:__version__", rlpto.__version__, nodes)
    return others or not any(node["Resources"].get("GPU") for node in nodes)


def lacks_sources() -> bool:
    """True if a node of the connected cluster cannot import the package with exactly these files."""
    from rlpto.io.sources import FILES  # reads the whole package

    return _differs("rlpto.io.sources:FILES", FILES, alive_nodes())


def _differs(name: str, value: str, nodes: Sequence[Mapping[str, Any]]) -> bool:
    """True if the value of a name (MODULE:NAME) differs on a node, or cannot be imported there."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look: Any = ray.remote(num_cpus=0, max_retries=1)(pkgutil.resolve_name)  # a function that every node has
    there = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    asked = [look.options(scheduling_strategy=node).remote(name) for node in there]
    try:
        return set(ray.get(asked, timeout=PROBE_TIMEOUT_S * load_factor())) != {value}
    except RayError:
        return True


def check_training(specs: Sequence[JobSpec]) -> None:
    """Import the training program of every job in a worker of the cluster. Raises JobError for the first that fails. No
    GPU is used, and running jobs are not affected."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    first = {(spec.training, *spec.pip): spec for spec in reversed(specs)}.values()
    check: Any = ray.remote(num_cpus=0, max_retries=1)(_import_problem)
    answers = [check.options(runtime_env=spec.runtime_env).remote(spec.training) for spec in first]
    ray.wait(answers, num_returns=len(answers), timeout=IMPORT_TIMEOUT_S * load_factor())
    for spec, answer in zip(first, answers, strict=True):
        try:
            problem = ray.get(answer, timeout=1.0)
        except (GetTimeoutError, RayError) as error:
            problem = reason_of(error)[:300]
        if problem:
            raise JobError(f"job {spec.name}: training program {spec.training} cannot be used there: {problem}")


def _import_problem(training: str) -> str:
    """Describe why a training program cannot be imported on this machine; empty if it can."""
    import importlib

    module, _, name = training.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # anything that a user's module raises is the answer
        return f"{type(error).__name__}: {error}"
    return "" if isinstance(found, type) else f"module {module} has no class {name}"


KEY_PREFIX, KEY_NAMESPACE = "scheduler:", b"rlpto"
"""Prefix and namespace of schedulers' keys; the driver's id follows the prefix."""
LEAVE_TIMEOUT_S = 2.0
"""Longest wait for Ray to notice that a scheduler has ended."""


@dataclass(frozen=True)
class SchedulerProcess:
    """A scheduler of a cluster. folder: folder of its run. driver: its driver id in Ray. host, process: host and
    process id. ended: whether it has reported its own end."""

    folder: str
    driver: str
    host: str
    process: int
    ended: bool = False

    @property
    def alive(self) -> bool:
        """True if it is connected to the same cluster as this process."""
        from rlpto.ray_cluster.compat import drivers

        return not self.ended and any(one["JobID"] == self.driver and not one["IsDead"] for one in drivers())


def schedulers() -> list[SchedulerProcess]:
    """All schedulers that the connected cluster has ever had, newest last."""
    from rlpto.ray_cluster.compat import values

    # Ray numbers drivers: the order of the keys is theirs.
    return [SchedulerProcess(**json.loads(value)) for value in values(KEY_NAMESPACE, KEY_PREFIX)]


@contextmanager
def only_scheduler(folder: Path) -> Iterator[None]:
    """Register this process as the scheduler of the connected cluster. folder: folder of its run. Raises ClusterError
    if another scheduler is at work there; that one is not affected."""
    import ray

    from rlpto.ray_cluster.compat import drop_value, put_value

    driver = str(ray.get_runtime_context().get_job_id())
    own = SchedulerProcess(str(folder.absolute()), driver, platform.node(), os.getpid())
    key, deadline = f"{KEY_PREFIX}{driver}", time.monotonic() + LEAVE_TIMEOUT_S
    # Registered before it looks: two that start at the same time see each other.
    put_value(KEY_NAMESPACE, key, json.dumps(asdict(own)))
    while others := [other for other in schedulers() if other.driver != driver and other.alive]:
        if time.monotonic() > deadline:
            drop_value(KEY_NAMESPACE, key)
            raise ClusterError(
                f"another scheduler is at work on this Ray cluster, for {others[0].folder} (process "
                f"{others[0].process} on {others[0].host}): wait for its end, end it, or use another cluster"
            )
        time.sleep(0.1)
    yield
    # After an exception the cluster may be gone, and the process is about to end: Ray notices that.
    put_value(KEY_NAMESPACE, key, json.dumps(asdict(replace(own, ended=True))))
