"""A Ray cluster of several nodes on this machine that stays up: `rlpto cluster up`, `status` and `down`.

A state file says what was started; `down` ends that and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rlpto.errors import ClusterError
from rlpto.files import write_text
from rlpto.ray_cluster.nodes.environment import CONTROL, ray_environment
from rlpto.ray_cluster.nodes.processes import (
    agent_ports,
    end_processes,
    family_of,
    free_ports,
    head_family,
    listens,
    start_time,
)

START_SECONDS = 120.0
"""Longest wait for one `ray start`: joining a head that is not there, Ray would try for many minutes."""

STARTS = 4
"""Attempts to start a node."""
HEADLESS_SECONDS = 900
"""So long the nodes of a durable cluster wait for their head; Ray's own 60 s are short for somebody who has to come and
restart it."""


@dataclass(frozen=True)
class StartedCluster:
    """What `up` has started.

    address: HOST:PORT of the head. temporary: Ray's folder. gpus: of each node. processes: id and start time (in ticks
    since the machine's start, so that an id that was given to somebody else is not mistaken for ours). cpus: slots of
    each node. durable: the head's state is on disk.
    """

    address: str
    temporary: str
    gpus: tuple[int, ...]
    processes: tuple[tuple[int, int], ...]
    cpus: int = 4
    durable: bool = False

    @property
    def alive(self) -> int:
        """How many of its processes there still are."""
        return sum(start_time(pid) == ticks for pid, ticks in self.processes)


def state_file() -> Path:
    """Where this user's cluster is noted: in $RLPTO_STATE, or the place for state by the XDG convention."""
    named = os.environ.get("RLPTO_STATE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rlpto" / "cluster.json"


def running_cluster() -> StartedCluster | None:
    """The cluster that `up` has started, as long as any of it lives. ClusterError if the state file is broken."""
    path = state_file()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = StartedCluster(
            address=str(content["address"]),
            temporary=str(content["temporary"]),
            gpus=tuple(map(int, content["gpus"])),
            processes=tuple((int(pid), int(ticks)) for pid, ticks in content["processes"]),
            cpus=int(content["cpus"]),
            durable=bool(content["durable"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"{path}: not the state of a cluster ({error}); remove the file if none is running"
        ) from None
    return found if found.alive else None


def start_cluster(gpus: Sequence[int], cpus: int = 4, durable: bool = False) -> StartedCluster:
    """Start a head without GPUs and one node for each entry of `gpus`.

    cpus: slots of each. durable: the head keeps its state on disk, so that it can be restarted under running jobs (see
    `restart_head`); their runners are on a node of their own then.

    Raises ClusterError if there is one already, or Ray does not come up; nothing is left behind then.
    """
    present = running_cluster()
    if present is not None:
        raise ClusterError(f"a cluster is up already at {present.address}; end it with `rlpto cluster down` first")
    temporary = tempfile.mkdtemp(prefix="rl")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    started = StartedCluster(address, temporary, tuple(gpus), (), cpus, durable)
    try:
        _ray_start(_head(address, cpus), temporary, durable)
        started = _noted(started)
        if durable:
            _ray_start([*_node(address, cpus, 0), f"--resources={json.dumps({CONTROL: 1})}"], temporary, durable)
        for count in gpus:
            _ray_start(_node(address, cpus, count), temporary, durable)
        return _noted(started)
    except BaseException:
        stop_cluster(_noted(started))
        raise


def restart_head(started: StartedCluster) -> StartedCluster:
    """Start the head of a durable cluster again after it has died; nodes, runners and jobs go on meanwhile.

    Raises ClusterError if the cluster is not durable, its head is alive, or Ray does not come up.
    """
    if not started.durable:
        raise ClusterError(
            f"the cluster at {started.address} cannot go on with another head: expected one of `cluster up --durable`"
        )
    if listens(started.address):
        raise ClusterError(f"the head at {started.address} is alive: expected one that has ended")
    # What is left of the head's processes would be taken for a head that is still there, and so would the nodes that
    # live on this machine.
    end_processes(head_family(started.temporary))
    # Ray would take the nodes that live on this machine for a head that is still there.
    Path(started.temporary, "ray", "ray_current_cluster").unlink(missing_ok=True)
    _ray_start(_head(started.address, started.cpus), started.temporary, durable=True)
    return _noted(started)


def stop_cluster(started: StartedCluster) -> None:
    """End every process of a cluster, remove its folder, and forget it."""
    mine = [pid for pid, ticks in started.processes if start_time(pid) == ticks]
    end_processes(family_of(started.temporary, mine))
    shutil.rmtree(started.temporary, ignore_errors=True)
    state_file().unlink(missing_ok=True)


def _head(address: str, cpus: int) -> list[str]:
    host, _, port = address.rpartition(":")
    return [
        *("--head", f"--node-ip-address={host}", f"--port={port}", "--num-gpus=0", f"--num-cpus={cpus}"),
        *("--include-dashboard=false", f"--ray-client-server-port={free_ports(1)[0]}", "--disable-usage-stats"),
    ]


def _node(address: str, cpus: int, gpus: int) -> list[str]:
    return [f"--address={address}", "--node-ip-address=127.0.0.1", f"--num-gpus={gpus}", f"--num-cpus={cpus}"]


# Several nodes of one machine must not share a range of ports; 0 lets the system choose.
_COMMON = (
    "--object-store-memory=83886080",
    "--min-worker-port=0",
    "--max-worker-port=0",
    "--log-color=false",
)


def _command(arguments: Sequence[str]) -> list[str]:
    ports = agent_ports()
    # The command line calls one of them by another name.
    ports["dashboard_agent_grpc_port"] = ports.pop("metrics_agent_port")
    named = [f"--{name.replace('_', '-')}={port}" for name, port in ports.items()]
    return [sys.executable, "-m", "rlpto.ray_cluster.nodes.ray_start", "start", *arguments, *_COMMON, *named]


def _ray_start(arguments: Sequence[str], temporary: str, durable: bool = False) -> None:
    """One `ray start`; more than one where the machine is too busy for the 30 s that Ray gives it."""
    for _ in range(STARTS - 1):
        try:
            return _finish(_begin(arguments, temporary, durable))
        except ClusterError as error:
            if "timed out during startup" not in str(error):
                raise
    return _finish(_begin(arguments, temporary, durable))


def _begin(arguments: Sequence[str], temporary: str, durable: bool = False) -> subprocess.Popen[str]:
    environment = ray_environment(temporary)
    if durable:
        # Ray's own fault tolerance of the head without a second database (alpha in Ray 2.60).
        environment |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(Path(temporary, "gcs"))}
        environment["RAY_gcs_rpc_server_reconnect_timeout_s"] = str(HEADLESS_SECONDS)
    return subprocess.Popen(
        _command(arguments),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C here must not reach a cluster that is to stay
    )


def _finish(process: subprocess.Popen[str]) -> None:
    try:
        said, _ = process.communicate(timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ClusterError(f"`ray start` has not come up within {START_SECONDS:.0f} s") from None
    if process.returncode:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        raise ClusterError(f"`ray start` has failed: {lines[-1] if lines else 'without a word'}")


def _noted(started: StartedCluster) -> StartedCluster:
    """The cluster with all processes that it has now, in the state file too."""
    known = {*started.processes, *family_of(started.temporary).items()}
    noted = replace(started, processes=tuple(sorted(known)))
    write_text(state_file(), json.dumps(asdict(noted)) + "\n", "the cluster's state", ClusterError)
    return noted
