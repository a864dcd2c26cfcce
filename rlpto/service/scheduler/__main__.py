"""The scheduler process of a job service on a real Ray cluster: `python -m rlpto.service.scheduler SETTINGS [--check]`.

--check: read the files named in the settings, and end. SIGTERM: runners train on, and the next scheduler takes them
over. SIGINT: the setting `on_stop` applies; a cluster that the service has started ends then.
"""

from __future__ import annotations

import argparse
import os
import signal
import ssl
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import FrameType

from rlpto.experiments.config import Config, load_config
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.on_ray import compile_ahead, real_nodes
from rlpto.io.errors import ConfigError, RlptoError
from rlpto.performance.tables import ANY_GPU
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.connection import AUTO, check_training
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_folder import session_name
from rlpto.ray_cluster.scheduler.session_rules import Clock
from rlpto.service.scheduler.catalogue import SESSION, ProgramChecks
from rlpto.service.scheduler.loop import SchedulerLoop, make_scheduler
from rlpto.service.scheduler.policy_catalogue import FALLBACK, PolicyWarmup, catalogue_of
from rlpto.service.scheduler.session import Environment
from rlpto.service.settings import STATE_FILE, ServiceSettings, WebSettings, load_service
from rlpto.store.database import Store
from rlpto.store.requests import switch_in_force

OFTEN_SWITCHED = ("elastic_fifo", "round_robin")
"""Policies made ready without being requested, in addition to the settings' policies."""
LOST = 1
"""Exit code if the cluster is lost, or for other errors that a restart may cure. Wrong settings have another code."""
DEFAULT_CPUS = 4
"""CPU slots of a node for which the experiment specifies none."""


class StopRequest:
    """A flag set by signals. SIGTERM: runners train on, and another scheduler takes them over. SIGINT: the service
    ends, and runners train on if the settings say so (`keep`)."""

    def __init__(self, keeps: bool) -> None:
        self.asked = False
        self.keep = True
        self._keeps = keeps

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle a signal."""
        self.asked = True
        if number == signal.SIGINT:
            self.keep = self._keeps


def main() -> None:
    """Serve until a signal. Exit code 2 means that settings, database or cluster are faulty; stderr gives the
    reason."""
    parser = argparse.ArgumentParser(prog="rlpto.service.scheduler", description=__doc__)
    parser.add_argument("settings", help="settings of the service")
    parser.add_argument("--check", action="store_true", help="read what the settings name, and end")
    given = parser.parse_args()
    try:
        (check if given.check else serve)(load_service(given.settings))
    except RlptoError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def check(settings: ServiceSettings) -> None:
    """Read all files named in the settings, without writing. Raises ConfigError for any error in them."""
    config = load_config(settings.experiment)
    if settings.scheduler.address is None:
        _check_local(config)
    known = sorted(catalogue_of(settings.scheduler.policies))
    if settings.scheduler.policy not in known:
        raise ConfigError(f"scheduler.policy: {settings.scheduler.policy}: expected one of {', '.join(known)}")
    if settings.scheduler.policies:
        experiment = Experiment(config)
        for name, spec in settings.scheduler.policies.items():
            try:
                experiment.policy(spec, real=True)
            except RlptoError as wrong:
                raise ConfigError(f"scheduler.policies.{name}: {wrong}") from None
    _check_certificate(settings.web)
    if settings.web.oidc is not None:
        settings.web.oidc.secret()


def serve(settings: ServiceSettings) -> None:
    """Serve until a signal. Raises RlptoError if settings, database or cluster are faulty."""
    config = load_config(settings.experiment)
    folder = settings.folder.absolute()
    settings = settings.model_copy(update={"folder": folder})
    local = settings.scheduler.address is None
    stop = StopRequest(settings.on_stop == "keep" and not local)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as stack:
        database = stack.enter_context(SessionDatabase(settings.database))
        if local:
            os.environ["RLPTO_STATE"] = str(folder / STATE_FILE)
            start_local_nodes(config)
        address = settings.scheduler.address or AUTO
        config = stack.enter_context(real_nodes(config, address, folder, _quiet, lambda: os._exit(LOST), rents=True))
        for number in (signal.SIGTERM, signal.SIGINT):  # after Ray has put its own handlers in place
            signal.signal(number, stop)
        experiment = Experiment(config)
        warmup = PolicyWarmup(lambda spec: compile_ahead(experiment, [spec]), _quiet)
        _make_ready(warmup, settings, database)
        environment = Environment(
            backend=RayBackend(session_name(folder, SESSION), notice_file=config.ray.notice_file),
            wall=time.time,
            clock=Clock,
            make=lambda spec: experiment.policy(spec, real=True),
            checks=ProgramChecks(_import_problem, stack.enter_context(ThreadPoolExecutor(1, "checks"))),
            ready=warmup,
            stopping=lambda: stop.asked,
        )
        _serve(make_scheduler(settings, config, database, environment), stop)
    if local and not stop.keep:
        from rlpto.ray_cluster.nodes.persistent_cluster import stop_cluster

        stop_cluster()


def _serve(loop: SchedulerLoop, stop: StopRequest) -> None:
    """Serve until a signal, and leave the session in order. Errors, which a restart may cure, raise SystemExit with
    another code than for wrong settings."""
    try:
        while not stop.asked:
            loop.step()
    except RlptoError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(LOST) from error
    finally:
        # An error of the scheduler counts like SIGTERM: training jobs must not be stopped by it.
        loop.close(keep=stop.keep)


def _make_ready(warmup: PolicyWarmup, settings: ServiceSettings, store: Store) -> None:
    """Wait until the policy in force is ready, and start preparing policies that are likely to be requested.

    If a requested policy cannot be used, the answer gives the reason.
    """
    extra, before = settings.scheduler.policies, switch_in_force(store)
    known = {name: spec for name, (spec, _) in catalogue_of(extra).items()}
    present = settings.scheduler.policy if before is None else before.policy
    wanted = [known[name] for name in (FALLBACK, present) if name in known]
    for spec in (*wanted, *(known[name] for name in (*OFTEN_SWITCHED, *extra))):
        warmup(spec)
    while not all(map(warmup, wanted)):
        time.sleep(0.05)


def _import_problem(training: str, pip: Sequence[str]) -> str:
    """Describe why workers cannot import a training class; empty if they can. pip: packages to install first."""
    try:
        check_training([JobSpec("check", training, "check", training, "", 1, 1, 1, pip=pip)])
    except RlptoError as error:
        return str(error)
    return ""


def start_local_nodes(config: Config) -> None:
    """Start the nodes of an experiment on this machine, unless they are up.

    Raises ConfigError for several GPU types, ClusterError if Ray does not come up.
    """
    from rlpto.ray_cluster.nodes.persistent_cluster import running_cluster, start_cluster

    if running_cluster() is not None:
        return
    _check_local(config)
    groups = config.cluster.nodes
    gpus = [group.gpus for group in groups for _ in range(group.count)]
    start_cluster(gpus, max(DEFAULT_CPUS, *(group.cpus for group in groups)), on_progress=_quiet)


def _check_local(config: Config) -> None:
    if any(group.gpu != ANY_GPU for group in config.cluster.nodes):
        raise ConfigError(
            "cluster.nodes: a service starts nodes of one GPU type; expected no `gpu` there, or scheduler.address "
            "of a running cluster"
        )
    if config.cluster.shape.rented_groups:
        raise ConfigError("cluster.nodes: a service rents no nodes itself, expected no `rented`, or scheduler.address")
    if config.ray.autoscale is not None:
        raise ConfigError("ray.autoscale: a service starts no autoscaler, expected null, or scheduler.address")


def _check_certificate(web: WebSettings) -> None:
    """Read the certificate and its key in the same way as the web process."""
    if web.certificate is None:
        return
    try:
        # Without a password function, OpenSSL would ask the terminal for an encrypted key's password.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(web.certificate, web.key, password=lambda: "")
    except (OSError, ValueError) as wrong:
        raise ConfigError(
            f"web: {web.certificate}, {web.key}: expected a certificate and its key in PEM, without a password: {wrong}"
        ) from None


def _quiet(line: str) -> None:
    """Write a progress message to the log of the service."""
    if line:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
