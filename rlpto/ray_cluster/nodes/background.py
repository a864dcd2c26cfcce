"""A Ray cluster of several nodes on this machine that stays up: `rlpto cluster up`, `status` and `down`.

A state file names the cluster's folder before anything of it is there, so that whatever a command leaves that is killed
is found by the next one. `down` ends the processes of that folder and nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rlpto.io.errors import ClusterError
from rlpto.io.files import write_text
from rlpto.ray_cluster.nodes.environment import CONTROL, ray_environment
from rlpto.ray_cluster.nodes.folders import make_folder, remove_dead_folders, unused_folder
from rlpto.ray_cluster.nodes.processes import (
    end_cluster,
    end_processes,
    free_ports,
    head_family,
    head_is_alive,
    of_folder,
)

HEADLESS_TIMEOUT_S = 900
"""So long the nodes of a durable cluster wait for their head; Ray's own 60 s are short for somebody who has to come and
restart it."""
Progress = Callable[[str], None]
"""Is told what comes next."""


@dataclass(frozen=True)
class StartedCluster:
    """What `up` has started.

    address: HOST:PORT of the head; empty while it starts. folder: of the token, and of Ray's sockets and logs. gpus: of
    each node. cpus: CPU slots of each node. durable: the head's state is on disk.
    """

    address: str
    folder: str
    gpus: tuple[int, ...]
    cpus: int = 4
    durable: bool = False

    @property
    def alive(self) -> int:
        """How many of its processes there still are."""
        return len(of_folder(self.folder))


def state_file() -> Path:
    """Where this user's cluster is noted: in $RLPTO_STATE, or the place for state by the XDG convention."""
    named = os.environ.get("RLPTO_STATE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rlpto" / "cluster.json"


def noted_cluster() -> StartedCluster | None:
    """The cluster of the state file, wholly started and alive or not. ClusterError if the file is broken."""
    path = state_file()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return StartedCluster(
            address=str(content["address"]),
            folder=str(content["folder"]),
            gpus=tuple(map(int, content["gpus"])),
            cpus=int(content["cpus"]),
            durable=bool(content["durable"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ClusterError(
            f"{path}: not the state of a cluster ({error}); remove the file if none is running"
        ) from None


def running_cluster() -> StartedCluster | None:
    """The cluster that `up` has started, as long as any of it lives. ClusterError if the state file is broken."""
    found = noted_cluster()
    return found if found is not None and found.address and found.alive else None


def start_cluster(
    gpus: Sequence[int], cpus: int = 4, durable: bool = False, on_progress: Progress = lambda _: None
) -> StartedCluster:
    """Start a head without GPUs and one node for each entry of `gpus`.

    cpus: slots of each. durable: the head keeps its state on disk, so that it can be restarted under running jobs (see
    `restart_head`); job controllers are on a node of their own then. What an earlier start has left that was killed is
    ended first.

    Raises ClusterError if there is one already, or Ray does not come up; nothing is left behind then.
    """
    with _only_command():
        present = noted_cluster()
        if present is not None:
            if present.address and present.alive:
                raise ClusterError(
                    f"a cluster is up already at {present.address}; end it with `rlpto cluster down` first"
                )
            _remove(present)
        remove_dead_folders()
        started = StartedCluster("", str(unused_folder()), tuple(gpus), cpus, durable)
        _note(started)
        try:
            make_folder(Path(started.folder))
            # A head that is to come back has to come back at the same port.
            address = _start_nodes(
                started, free_ports(1)[0] if durable else 0, head_only=False, on_progress=on_progress
            )
            started = replace(started, address=address)
            _note(started)
        except BaseException:
            _remove(started)
            raise
    return started


def restart_head(started: StartedCluster, on_progress: Progress = lambda _: None) -> StartedCluster:
    """Start the head of a durable cluster again after it has died; nodes, job controllers and jobs go on meanwhile.

    Raises ClusterError if the cluster is not durable, its head is alive, or Ray does not come up.
    """
    if not started.durable:
        raise ClusterError(
            f"the cluster at {started.address} cannot go on with another head: expected one of `cluster up --durable`"
        )
    with _only_command():
        if head_is_alive(started.folder):
            raise ClusterError(f"the head at {started.address} is alive: expected one that has ended")
        # What is left of the head's processes would be taken for a head that is still there.
        end_processes(head_family(started.folder))
        port = int(started.address.rpartition(":")[2])
        _start_nodes(started, port, head_only=True, on_progress=on_progress)
    return started


def stop_cluster() -> StartedCluster | None:
    """End every process of the noted cluster, remove its folder, and forget it: what it was, None if there was none.

    Raises ClusterError if the state file is broken, or another command is at work on the cluster.
    """
    with _only_command():
        found = noted_cluster()
        if found is not None:
            _remove(found)
        remove_dead_folders()
    return found


def _remove(started: StartedCluster) -> None:
    end_cluster(started.folder)
    shutil.rmtree(started.folder, ignore_errors=True)
    state_file().unlink(missing_ok=True)


def _note(started: StartedCluster) -> None:
    write_text(state_file(), json.dumps(asdict(started)) + "\n", "the cluster's state", ClusterError)


@contextmanager
def _only_command() -> Iterator[None]:
    """While this process starts or ends the noted cluster, no other one does."""
    folder = state_file().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ClusterError(f"{folder}: cannot keep the cluster's state there: {error.strerror or error}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(
                "another `rlpto cluster` command is at work on the cluster: wait for its end, or end it"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _start_nodes(started: StartedCluster, port: int, *, head_only: bool, on_progress: Progress) -> str:
    """Start a cluster's nodes, which outlive this process: the head's address. port: of the head; 0: any."""
    from rlpto.ray_cluster.nodes.ray_node import start_node

    durable = {
        # Ray's own fault tolerance of the head without a second database (alpha in Ray 2.60).
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(Path(started.folder, "gcs")),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEADLESS_TIMEOUT_S),
    }
    options: dict[str, Any] = {"cpus": started.cpus, "stays": True}
    gpus = () if head_only else started.gpus
    with ray_environment(started.folder, more=durable if started.durable else {}):
        try:
            on_progress("starting the head")
            address = str(start_node(port=port, **options).gcs_address)
            if started.durable and not head_only:
                on_progress("starting the node for job controllers")
                start_node(address, resources={CONTROL: 1}, **options)
            for number, count in enumerate(gpus, 1):
                on_progress(f"starting node {number} of {len(gpus)}")
                start_node(address, gpus=count, **options)
        except Exception as error:  # Ray raises nothing more special
            raise ClusterError(f"the local Ray cluster does not start: {str(error) or type(error).__name__}") from error
    return address
