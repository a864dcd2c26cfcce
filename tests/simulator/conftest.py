"""A fixed case for tests that need no variety."""

from __future__ import annotations

import pytest

from rlpto.core.cluster import Node
from rlpto.core.queues import QueueSettings
from rlpto.simulator.settings import SimulatorSettings

from ..builders import Case, random_jobs, random_tables


@pytest.fixture
def case_of() -> Case:
    """Fifteen jobs on two nodes of four GPUs, no failures."""
    return Case(
        nodes=(Node(4), Node(4)),
        jobs=tuple(random_jobs(5, 15, 8, 8)),
        tables=random_tables(5, 8, 10.0),
        settings=SimulatorSettings(),
        queue=QueueSettings(),
        policy="fifo",
        seed=0,
    )
