"""A node of the cluster that a service has started itself is announced to go."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.service.served import served

pytestmark = pytest.mark.cluster


def test_a_job_leaves_a_node_before_it_goes(tmp_path: Path) -> None:
    with served(tmp_path, 2, 1) as service:
        job = service.submit(1000.0)
        service.until(lambda: service.row(job).progress > 1.0)
        (node,) = (found["id"] for found in service.client.nodes() if found["jobs"])
        done = service.command("cluster", "drain", node[:12], "--in", "600")
        assert done.returncode == 0, done.stderr
        before = service.row(job)
        service.until(lambda: [found["id"] for found in service.client.nodes() if found["jobs"]] not in ([], [node]))
        service.until(lambda: service.row(job).progress > before.progress)
        assert service.row(job).recoveries == before.recoveries, "it has lost no step"
        (going,) = (found for found in service.client.nodes() if found["id"] == node)
        assert 0 < going["leaves"] - time.time() < 600
