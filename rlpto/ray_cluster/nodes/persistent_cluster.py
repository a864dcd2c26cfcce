"""A Ray cluster of several nodes on this machine that stays up: `rlpto cluster up`, `status` and `down`.

A state file names the cluster's folder before it is created. The next command thus finds the remains of a killed one.
`down` ends only the processes of that folder.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlpto.io.errors import ClusterError, ConfigError
from rlpto.io.files import alone_in, state_folder, write_text
from rlpto.ray_cluster.nodes.environment import CONTROL, ray_environment, refuses
from rlpto.ray_cluster.nodes.processes import (
    arguments_of,
    end_cluster,
    end_processes,
    free_ports,
    head_family,
    head_is_alive,
    is_folder_of,
    make_folder,
    mark_of,
    of_folder,
    remove_dead_folders,
    started_for,
    unused_folder,
)

HEADLESS_TIMEOUT_S = 900
"""Time that the nodes of a durable cluster wait for their head. Ray's own 60 s are too short for a manual restart."""
ANSWER_TIMEOUT_S = 5.0
"""Longest wait for a head to accept a connection. A busy or suspended head is not dead: only a refusal counts."""
WATCH_INTERVAL_S = 2.0
"""Time between checks for dead nodes."""
NODE_RESOURCE = "rlpto_node_"
"""Prefix of the name of the Ray resource with a node's number in its cluster."""


@dataclass(frozen=True)
class StartedCluster:
    """A cluster started by `up`.

    address: HOST:PORT of the head; empty while it starts or ends. folder: holds the token, and Ray's sockets and logs.
    gpus: GPUs of each node. cpus: CPU slots of each node. durable: the head's state is on disk. mark: hash of the
    token, which identifies the folder as this cluster's.
    """

    address: str
    folder: str
    gpus: tuple[int, ...]
    cpus: int = 4
    durable: bool = False
    mark: str = ""

    @property
    def alive(self) -> int:
        """Number of its live processes, not counting the watcher of its nodes."""
        return sum(__name__ not in arguments_of(pid) for pid in of_folder(self.folder))

    @property
    def is_up(self) -> bool:
        """Whether it was fully started and is still usable. Only a durable cluster is usable without a head."""
        return bool(self.address and self.alive) and (self.durable or not refuses(self.address, ANSWER_TIMEOUT_S))


def state_file() -> Path:
    """File that records this user's cluster: $RLPTO_STATE, or a file in the XDG state folder."""
    named = os.environ.get("RLPTO_STATE")
    if named:
        return Path(named)
    return state_folder() / "cluster.json"


def noted_cluster() -> StartedCluster | None:
    """The cluster of the state file, whether or not fully started and alive. Raises ClusterError if the file is
    broken."""
    try:
        path = state_file()
    except ConfigError:  # this user has no folder for it
        return None
    try:
        return TypeAdapter(StartedCluster).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as refused:
        reason = str(refused)
    except ValidationError as wrong:
        reason = wrong.errors()[0]["msg"]
    raise ClusterError(f"{path}: not the state of a cluster ({reason}); remove the file if none is running")


def running_cluster() -> StartedCluster | None:
    """The cluster started by `up`, as long as any of its processes lives; if it is not durable, only as long as its
    head answers. Raises ClusterError if the state file is broken."""
    found = noted_cluster()
    return found if found is not None and found.is_up else None


def start_cluster(
    gpus: Sequence[int],
    cpus: int = 4,
    durable: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> StartedCluster:
    """Start a head without GPUs and one node for each entry of `gpus`.

    cpus: CPU slots of each node. durable: the head keeps its state on disk and can be restarted under running jobs
    (`restart_head`); job controllers then have their own node. Remains of a killed start or end, and of a cluster whose
    head has died, are ended first.

    Raises ClusterError if a cluster is up already, or if Ray does not come up; nothing is left behind then.
    """
    with _only_command():
        present = noted_cluster()
        if present is not None:
            if present.is_up:
                raise ClusterError(
                    f"a cluster is up already at {present.address}; end it with `rlpto cluster down` first"
                )
            _remove(present)
        remove_dead_folders()
        token = secrets.token_hex(32)
        started = StartedCluster("", str(unused_folder()), tuple(gpus), cpus, durable, mark_of(token))
        _note(started)
        try:
            make_folder(Path(started.folder), token)
            nodes = [_options(started, number) for number in range(1, len(gpus) + 1)]
            controllers = [{"cpus": cpus, "resources": {CONTROL: 1}}] if durable else []
            port = free_ports(1)[0] if durable else 0  # a restarted head must use the same
            started = replace(started, address=_start_nodes(started, [*controllers, *nodes], port, on_progress))
            _note(started)
            _start_watch(started)
        except BaseException:
            _remove(started)
            raise
    return started


def restart_head(started: StartedCluster, on_progress: Callable[[str], None] = lambda _: None) -> None:
    """Restart the head of a durable cluster after it has died; nodes, job controllers and jobs continue meanwhile.
    Raises ClusterError if the cluster is not durable, its head is alive, or Ray does not come up."""
    if not started.durable:
        raise ClusterError(
            f"the cluster at {started.address} cannot go on with another head: expected one of `cluster up --durable`"
        )
    with _only_command():
        if head_is_alive(started.folder):
            raise ClusterError(f"the head at {started.address} is alive: expected one that has ended")
        # Remaining processes of the head would look like a live head.
        end_processes(head_family(started.folder))
        _start_nodes(started, [], int(started.address.rpartition(":")[2]), on_progress)


def stop_cluster() -> StartedCluster | None:
    """End all processes of the recorded cluster, remove its folder, and forget it. Returns it, or None if there was
    none. Raises ClusterError if the state file is broken, or another command is at work on the cluster."""
    with _only_command():
        found = noted_cluster()
        if found is not None:
            _remove(found)
        remove_dead_folders()
    return found


def _remove(started: StartedCluster) -> None:
    """End a recorded cluster. Raises ClusterError, and ends nothing, if the recorded folder is not the cluster's."""
    folder = Path(started.folder)
    with suppress(OSError):
        folder.rmdir()  # a start that was killed leaves it empty
    if os.path.lexists(folder) and not is_folder_of(folder, started.mark):
        raise ClusterError(
            f"{state_file()}: names the folder {folder}, which `rlpto cluster up` has not made: nothing was ended; "
            "remove the file if no cluster is running"
        )
    if started.address:
        with suppress(ClusterError):  # a full disk keeps no cluster alive
            _note(replace(started, address=""))  # if this process is killed now, the remains do not count as a cluster
    end_cluster(folder)
    state_file().unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)  # last, because a partly removed folder may lack the identifying token


def _note(started: StartedCluster) -> None:
    write_text(state_file(), json.dumps(asdict(started)) + "\n", "the cluster's state", ClusterError)


def _only_command() -> AbstractContextManager[None]:
    """Lock out other commands while this process starts or ends the recorded cluster."""
    busy = "another `rlpto cluster` command is at work on the cluster: wait for its end, or end it"
    return alone_in(state_file().parent, busy, ClusterError)


def missing_nodes(started: StartedCluster) -> list[int]:
    """Numbers (from 1) of a cluster's nodes without a raylet, which was killed or has died."""
    raylets = " ".join(one for pid in of_folder(started.folder) for one in arguments_of(pid))
    return [number for number in range(1, len(started.gpus) + 1) if f"{NODE_RESOURCE}{number}," not in raylets]


def _start_watch(started: StartedCluster) -> None:
    """Start a process that restarts dead nodes of the cluster; it ends with the cluster."""
    log = Path(started.folder, "watch.log")
    with started_for(started.folder), log.open("ab") as output:
        subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(asdict(started))],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def watch_nodes(started: StartedCluster) -> None:
    """Restart dead nodes of a cluster until its folder is gone. The head is not restarted."""
    from rlpto.ray_cluster.nodes.local import start_node

    while is_folder_of(Path(started.folder), started.mark):
        time.sleep(WATCH_INTERVAL_S)
        if missing_nodes(started) and head_is_alive(started.folder):
            time.sleep(WATCH_INTERVAL_S)  # a node that ends with all others must not be started again
            for number in missing_nodes(started) if head_is_alive(started.folder) else ():
                print(f"node {number} of {len(started.gpus)} is gone: starting it again", flush=True)
                try:
                    with _variables(started):
                        start_node(started.address, stays=True, **_options(started, number))
                except ClusterError as error:  # the next check tries again
                    print(error, flush=True)


def _options(started: StartedCluster, number: int) -> dict[str, Any]:
    """`RayNode` options of the node with this number (from 1)."""
    resources = {f"{NODE_RESOURCE}{number}": 1}
    return {"gpus": started.gpus[number - 1], "cpus": started.cpus, "resources": resources}


def _start_nodes(
    started: StartedCluster, nodes: Sequence[dict[str, Any]], port: int, on_progress: Callable[[str], None]
) -> str:
    """Start the head of a cluster, and nodes, with `start_nodes`; they outlive this process. Returns the head's
    address."""
    from rlpto.ray_cluster.nodes.local import start_nodes

    with _variables(started):
        head, *_ = list(start_nodes(nodes, on_progress, cpus=started.cpus, port=port, stays=True))
    return str(head.gcs_address)


def _variables(started: StartedCluster) -> AbstractContextManager[None]:
    """Set the variables of a cluster's nodes while inside. For a durable one they include Ray's own fault tolerance of
    the head without a second database (alpha in Ray 2.60)."""
    durable = {
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(Path(started.folder, "gcs")),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEADLESS_TIMEOUT_S),
    }
    return ray_environment(started.folder, more=durable if started.durable else {})


if __name__ == "__main__":
    watch_nodes(StartedCluster(**json.loads(sys.argv[1])))
