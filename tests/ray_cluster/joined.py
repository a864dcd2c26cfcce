"""Clusters that Ray's own command starts, as others do it; and a Python of their nodes that knows nothing of RLPTO."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rlpto.ray_cluster.nodes.environment import AUTH_MODE, AUTH_TOKEN, AUTH_TOKEN_PATH
from rlpto.ray_cluster.nodes.local import WORKER_PROGRAM
from rlpto.ray_cluster.nodes.processes import (
    CLUSTER_VARIABLE,
    TITLE,
    arguments_of,
    end_cluster,
    free_ports,
    load_factor,
    of_folder,
)

REPOSITORY = Path(__file__).resolve().parents[2]
START_S, STOP_S, WAIT_S = 120.0, 60.0, 120.0
ATTEMPTS = 3
"""Starts of a node: on a busy machine the 30 s that Ray gives it may be short."""
RAY = ("-c", "from ray.scripts.scripts import main; main()")
CLIENT_SERVERS = {"RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "180", "GRPC_ENABLE_FORK_SUPPORT": "0"}
"""For busy machines: a server for a client of Ray has 30 s to start, and may be killed by gRPC when it does."""
AGENTS = "metrics-export", "dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent", "ray-client-server"
"""Ports that are set as in `nodes.local.AGENT_PORTS`: a node would else give up on a busy machine, and a head where
there is another one."""
WITHOUT = {"RAY_ADDRESS", AUTH_TOKEN, AUTH_TOKEN_PATH, WORKER_PROGRAM, "PYTHONPATH"}


def titled(pids: Iterable[int], title: str) -> set[int]:
    """Those of some processes whose command lines have `title` in them."""
    return {pid for pid in pids if title in "\0".join(arguments_of(pid))}


class Joined:
    """A node, by default a head; its address, for Ray's client too, and the folder of its sockets and logs.

    python: of the node, and more variables of its processes. options: more of `ray start`.
    """

    def __init__(
        self, folder: str, gpus: int, python: str, variables: Mapping[str, str], options: Sequence[str], port: int
    ) -> None:
        self.folder = folder
        agents = free_ports(len(AGENTS))
        self.address, self.client = f"127.0.0.1:{port}", f"ray://127.0.0.1:{agents[-1]}"
        environment = {key: value for key, value in os.environ.items() if key not in WITHOUT}
        head = ("--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false")
        with Path(folder, "start.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(python, *RAY, "start", "--block", f"--num-gpus={gpus}", "--num-cpus=4", *head, *options),
                    *("--disable-usage-stats", "--node-ip-address=127.0.0.1"),
                    *("--min-worker-port=0", "--max-worker-port=0"),
                    *(f"--{name}-port={number}" for name, number in zip(AGENTS, agents, strict=True)),
                ],
                env={**environment, **CLIENT_SERVERS, AUTH_MODE: "disabled", CLUSTER_VARIABLE: folder, **variables},
                cwd=folder,
                stdout=log,
                stderr=log,
            )

    def is_up(self) -> bool:
        """Wait until the node has started; False if it gave up."""
        by = time.monotonic() + START_S * load_factor()
        while b"This command will now block" not in self.log():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < by, self.log()
            time.sleep(0.1)
        return True

    def log(self) -> bytes:
        """What Ray's command has printed."""
        return Path(self.folder, "start.log").read_bytes()

    def wait_connected(self, condition: str) -> None:
        """Wait, in a process of its own that is connected, until an expression of Python is true. This process may be
        connected to another cluster. `report()` is that of the one controller there is.
        """
        program = (
            "import sys, time\n"
            "from rlpto.ray_cluster.controllers import all_controllers, answer_of\n"
            "from rlpto.ray_cluster.scheduler.connection import Connection\n"
            "def report(): return answer_of(next(iter(all_controllers().values())).report.remote())\n"
            f"with Connection(sys.argv[1]):\n    while not ({condition}): time.sleep(0.1)\n"
        )
        seconds = WAIT_S * load_factor()
        subprocess.run([sys.executable, "-c", program, self.address], cwd=REPOSITORY, check=True, timeout=seconds)

    def workers(self) -> set[int]:
        """Process ids of the jobs' workers."""
        return titled(of_folder(self.folder), TITLE)


@contextmanager
def joined(
    gpus: int,
    python: str = sys.executable,
    *,
    variables: Mapping[str, str],
    options: Sequence[str] = (),
    port: int = 0,
) -> Iterator[Joined]:
    """A cluster of one node. port: of the head, 0: any."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        try:
            for _ in range(ATTEMPTS):
                started = Joined(folder, gpus, python, variables, options, port or free_ports(1)[0])
                if started.is_up():
                    break
                end_cluster(Path(folder))
            yield started
        finally:
            started.process.terminate()
            started.process.wait(STOP_S)
            end_cluster(Path(folder))  # those that were started for it; `ray stop` would end everybody's


def without_rlpto(folder: Path) -> str:
    """A Python with all packages of this one but RLPTO."""
    venv.create(folder)
    python = folder / "bin" / "python"
    script = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    own = Path(subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip())
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        # A file *.pth may lead to an editable installation; none of what jobs need has one.
        if "rlpto" not in entry.name and entry.suffix != ".pth" and entry.name != "__pycache__":
            (own / entry.name).symlink_to(entry)
    return str(python)
