"""One local Ray cluster for all tests of the room: 4 nodes with 2 logical GPUs each, and a head without any."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase

NODES, GPUS = 4, 2
OWN = ("test_own_clusters.py", "test_chaos.py")
"""Files whose tests start clusters of their own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need the cluster, so that they can be run by themselves (`make test-cluster`)."""
    for item in items:
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


class OneSharesTheCluster(LoadScopeScheduling):
    """Gives one process of xdist all tests but those of `OWN` and of services, so that there is one shared cluster."""

    def _split_scope(self, nodeid: str) -> str:
        path = PurePosixPath(nodeid.partition("::")[0])
        return path.name if path.name in OWN or "service" in path.parts else "shared"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """How `pytest -n 2 --dist loadgroup tests/ray_cluster tests/service` shares tests out."""
    return OneSharesTheCluster(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SessionDatabase]:
    """A new database of a session."""
    with SessionDatabase(tmp_path / "state.sqlite") as opened:
        yield opened


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[LocalCluster]:
    """The running cluster, to which this process is connected; gone at the end, with every process it started.

    Tests that kill a node add a new one before they end, so that there are always `NODES` of them.
    """
    # Tests meet no cluster but their own, also where the user's environment names one.
    before = os.environ.pop("RAY_ADDRESS", None)
    with LocalCluster([GPUS] * NODES) as cluster:
        yield cluster
    if before is not None:
        os.environ["RAY_ADDRESS"] = before
