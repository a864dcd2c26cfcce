"""One local Ray cluster for all tests of the room: 4 nodes with 2 logical GPUs each, and a head without any."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rlpto.ray_cluster.local import LocalCluster

NODES, GPUS = 4, 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need the cluster, so that they can be run by themselves (`make test-cluster`)."""
    for item in items:
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[LocalCluster]:
    """The running cluster, to which this process is connected; gone at the end, with every process it started.

    Tests that kill a node add a new one before they end, so that there are always `NODES` of them.
    """
    # Tests meet no cluster but their own, whatever the user's environment says.
    before = os.environ.pop("RAY_ADDRESS", None)
    with LocalCluster([GPUS] * NODES) as cluster:
        yield cluster
    if before is not None:
        os.environ["RAY_ADDRESS"] = before
