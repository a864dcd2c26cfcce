"""A whole job service as `rlpto serve` starts it: both processes, a Ray cluster, and clients that know only REST."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from rlpto.client import Answer, Client
from rlpto.ray_cluster.nodes.processes import TITLE, load_factor, of_folder, start_time
from rlpto.service.settings import STATE_FILE, load_service
from rlpto.store.database import Store
from rlpto.store.jobs import ENDED, JobRow, get_job
from rlpto.store.status import heartbeat, policies
from tests.ray_cluster.joined import titled

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-c", "from rlpto.cli.main import run; run()")
START_S, WAIT_S, STOP_S = 180.0, 240.0, 120.0
TINY: dict[str, Any] = {
    "program": {
        "training": "tests.ray_cluster.programs:Plain", "samples": 101, "epochs": 20, "batch_size": 16, "pace": 0.1,
    },
    "most_gpus": 64,
    "most_epochs": 100_000,
}  # fmt: skip
"""A program of which an epoch takes 0.7 s on one GPU, half of it on two."""
EXPERIMENT = {
    "name": "service",
    "ray": {"checkpoint_interval": 5, "retries": 1, "heartbeat_timeout": 60},
}
"""On a busy machine a worker may not answer for 10 s, and would be replaced."""


def write_settings(folder: Path, nodes: int, gpus: int, interval: float = 10.0, **more: Any) -> Path:
    """Settings of a service with this number of nodes and of GPUs of each, on a free port; more: keys to add or to
    replace. interval [s] between decisions: of the experiment."""
    cluster, simulator = {"nodes": [{"count": nodes, "gpus": gpus}]}, {"interval": interval}
    experiment = {**EXPERIMENT, "cluster": cluster, "simulator": simulator}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    settings = {
        "folder": str(folder / "run"),
        "experiment": "experiment.yaml",
        "web": {"port": 0, "posts_per_second": 10_000},
        "quotas": {"jobs_queued": 100_000},
        "programs": {"tiny": TINY},
    }
    path = folder / "service.yaml"
    path.write_text(yaml.safe_dump({**settings, **more}))
    return path


class Served:
    """A service that a test starts, kills parts of, and ends. settings: its file. variables: of its processes.

    client: of the admin. store: for reading what happened. process: the parent.
    """

    def __init__(self, settings: Path, variables: Mapping[str, str] | None = None) -> None:
        self.path, self.settings = settings, load_service(settings)
        self._state = settings.parent / "state"
        self._log = settings.parent / "serve.log"
        without = {"RAY_ADDRESS", "RLPTO_STATE", "RLPTO_SERVICE", "RLPTO_TOKEN"}
        own = {"PYTHONPATH": str(REPOSITORY), "XDG_STATE_HOME": str(self._state), "PYTHONUNBUFFERED": "1"}
        self.environment = {key: value for key, value in os.environ.items() if key not in without} | own
        self.environment |= variables or {}
        self.process: subprocess.Popen[bytes]
        self.start()
        self.store = Store(self.settings.database, durable=False)

    def start(self) -> None:
        """Start `rlpto serve`, wait until it says that it is up, and find its address: another one after each start."""
        before = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", str(self.path), "--port", "0"], stdout=log, stderr=log, env=self.environment
            )
        self.until(lambda: b"submit:" in self._log.read_bytes()[before:], START_S)
        noted = json.loads((self._state / "rlpto" / "services.json").read_text())
        self.address = next(reversed(noted))
        self.token = Path(noted[self.address][0]).read_text().strip()
        assert self.token not in self.log(), "it is printed on a terminal alone"
        self.client = Client(self.address, self.token, retry_for_s=120.0)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What a user types on this machine."""
        return subprocess.run(
            [*COMMAND, *arguments], env=self.environment, capture_output=True, text=True, timeout=WAIT_S, check=False
        )

    def until(self, holds: Callable[[], bool], seconds: float = WAIT_S) -> None:
        """Wait for something; AssertionError with the logs if it does not come, or the service ends."""
        by = time.monotonic() + seconds * load_factor()
        while not holds():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < by, self.log()
            time.sleep(0.02)

    def log(self) -> str:
        """The ends of all logs."""
        files = [self._log, *sorted((self.settings.folder / "logs").glob("*.log"))]
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def scheduler(self) -> int:
        """Process id of the scheduler that has given the last sign of life; 0: it has ended."""
        beat = heartbeat(self.store)
        return 0 if beat is None or start_time(beat[1].process) is None else beat[1].process

    def kill(self, module: str) -> bool:
        """Kill the child of the parent that runs a module; False if there is none now."""
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # it has ended since
                if module in child.cmdline():
                    child.kill()
                    return True
        return False

    def submit(self, epochs: float, gpus: int = 1, **more: Any) -> str:
        """A job by REST; its id."""
        program = more.pop("program", "tiny")
        return str(self.client.submit(program, epochs=epochs, gpus=gpus, **more)["id"])

    def row(self, job: str) -> JobRow:
        """A job as the database has it."""
        found = get_job(self.store, job)
        assert found is not None
        return found

    def states(self, *jobs: str) -> set[str]:
        """States of some jobs."""
        return {self.row(job).state for job in jobs}

    def over(self, *jobs: str, seconds: float = WAIT_S) -> list[JobRow]:
        """Some jobs, once all of them are over."""
        self.until(lambda: self.states(*jobs) <= set(ENDED), seconds)
        return [self.row(job) for job in jobs]

    def switch(self, policy: str) -> Answer:
        """Put a policy in force by REST; its answer."""
        before = self.client.policy()
        found = self.client.switch(policy, "a test")
        assert found["number"] == before["number"] + (before["policy"] != policy)
        return found

    def workers(self) -> set[int]:
        """Process ids of all workers of this service's own cluster."""
        note = self.settings.folder / STATE_FILE
        return titled(of_folder(str(json.loads(note.read_text())["folder"])), TITLE) if note.exists() else set()

    def end(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it as Ctrl-C does."""
        self.process.send_signal(how)
        self.process.wait(STOP_S)

    def close(self) -> None:
        """End it, whatever is left of it."""
        try:
            if self.process.poll() is None:
                self.end()
        finally:
            self.client.close()
            self.store.close()


@contextmanager
def served(
    folder: Path, nodes: int = 2, gpus: int = 2, variables: Mapping[str, str] | None = None, **more: Any
) -> Iterator[Served]:
    """A service whose scheduler is at work; gone at the end, with its cluster."""
    service = Served(write_settings(folder, nodes, gpus, **more), variables)
    try:
        service.until(lambda: service.scheduler() != 0 and bool(policies(service.store)), START_S)
        yield service
    finally:
        service.close()
