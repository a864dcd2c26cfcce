"""A service that joins a Ray cluster which others have started with Ray's own command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rlpto.ray_cluster.nodes.processes import TITLE, free_ports, load_factor, of_folder, titled
from tests.service.served import REPOSITORY, Served, write_settings

GPUS = 2
EPOCHS = 1000.0
START_S, STOP_S = 120.0, 60.0
RAY = (sys.executable, "-c", "from ray.scripts.scripts import main; main()")

pytestmark = pytest.mark.cluster


class Joined:
    """A cluster of one node; its address, and the folder of its sockets and logs."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        with Path(folder, "start.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(*RAY, "start", "--head", "--block", f"--port={port}", f"--num-gpus={GPUS}", "--num-cpus=4"),
                    *(f"--temp-dir={folder}", "--include-dashboard=false", "--disable-usage-stats"),
                    *("--node-ip-address=127.0.0.1", "--min-worker-port=0", "--max-worker-port=0"),
                ],
                env=environment | {"PYTHONPATH": str(REPOSITORY)},
                stdout=log,
                stderr=log,
            )
        by = time.monotonic() + START_S * load_factor()
        while b"This command will now block" not in self.log():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < by, self.log()
            time.sleep(0.1)

    def log(self) -> bytes:
        """What Ray's command has printed."""
        return Path(self.folder, "start.log").read_bytes()

    def workers(self) -> set[int]:
        """Process ids of the jobs' workers."""
        return set(titled(of_folder(self.folder), TITLE))


@pytest.fixture
def cluster() -> Iterator[Joined]:
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        started = Joined(folder)
        try:
            yield started
        finally:
            started.process.terminate()  # it ends its own processes; `ray stop` would end everybody's
            started.process.wait(STOP_S)


def test_after_ctrl_c_jobs_are_left_as_the_settings_say(cluster: Joined, tmp_path: Path) -> None:
    path = write_settings(tmp_path, 1, 1, scheduler={"address": cluster.address}, on_stop="keep")
    service = Served(path)
    try:
        job = service.submit(EPOCHS, GPUS)
        service.until(lambda: service.row(job).progress > 1.0)
        assert [node["gpus"] for node in service.client.nodes()] == [GPUS], "those that are there, not the experiment's"
        before = cluster.workers()
        assert len(before) == GPUS
        service.end(signal.SIGINT)
        progress = service.row(job).progress
        assert cluster.workers() == before, "keep: it trains on"

        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "on_stop": "end"}))
        service.start()
        service.reconnect()
        service.until(lambda: service.row(job).progress > progress)
        assert cluster.workers() == before, "it was taken up"
        service.end(signal.SIGINT)
        assert cluster.workers() == set(), "end: it has written a checkpoint and waits"
        assert list(service.settings.folder.rglob("step-*.ckpt"))
        assert service.row(job).ended is None
        assert cluster.process.poll() is None, "the cluster is not the service's to end"
    finally:
        service.close()
