"""One local Ray cluster for all tests of a process: 4 nodes with 2 logical GPUs each, and a head without any.

Where tests run in several processes there are two: most of these tests wait, so that two need half of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlpto.core.cluster import Node
from rlpto.evaluation.runner import Cell
from rlpto.experiments.on_ray import session_of
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.nodes.processes import of_folder
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase

NODES, GPUS = 4, 2
CELL = Cell("equal_share", "jobs", 0)
"""What most sessions on it are of."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SessionDatabase]:
    """A new database of a session."""
    with SessionDatabase(tmp_path / "state.sqlite") as opened:
        yield opened


@pytest.fixture(scope="package")
def ray_cluster() -> Iterator[LocalCluster]:
    """The running cluster, to which this process is connected; gone after the last of them, with all its processes.

    Tests that kill a node add a new one before they end, so that there are always `NODES` of them.
    """
    with pytest.MonkeyPatch.context() as patch:
        # Tests meet no cluster but their own, also where the user's environment names one.
        patch.delenv("RAY_ADDRESS", raising=False)
        # Hung nodes are noticed within 12 s, not 8: on a very busy machine the head would be taken for one.
        patch.setenv("RAY_health_check_failure_threshold", "6")
        with LocalCluster([Node(GPUS)] * NODES) as cluster:
            yield cluster
        assert not of_folder(str(cluster.folder))
        assert not cluster.folder.exists()


@pytest.fixture
def no_controller_is_left(ray_cluster: LocalCluster, tmp_path: Path) -> Iterator[LocalCluster]:
    """Ends what a failed test has left, so that it does not disturb those after it."""
    yield ray_cluster
    left = RayBackend(session_of(tmp_path, CELL))
    if left.find():
        left.end_all()
