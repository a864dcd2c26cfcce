"""A service that joins a Ray cluster which others have started with Ray's own command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.ray_cluster.joined import Joined, joined
from tests.service.served import Served, write_settings

GPUS = 2
EPOCHS = 1000.0
pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster() -> Iterator[Joined]:
    with joined(GPUS) as started:
        yield started


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
