"""Who is taken in when: newcomers join together, unless one of them takes too long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rlpto.ray_cluster.job.worker_actors import Worker
from rlpto.ray_cluster.job.worker_roster import JOIN_WAIT_S, WorkerRoster
from rlpto.ray_cluster.worker.actor import Ready
from tests.ray_cluster.running import make_spec


def test_newcomers_join_together_unless_one_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roster = WorkerRoster(make_spec(tmp_path), lambda: None)
    first, second = Worker("a", None), Worker("b", None)
    roster.starting = [first, second]
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert roster.ready_to_join() == []
    first.ready, first.warm_since = Ready(0.0, 0.0), 100.0
    assert roster.ready_to_join() == [], "the other one is still starting"
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 + JOIN_WAIT_S + 0.1)
    assert roster.ready_to_join() == [first]
    second.ready, second.warm_since = Ready(0.0, 0.0), 101.0
    monkeypatch.setattr(time, "monotonic", lambda: 101.0)
    assert roster.ready_to_join() == [first, second]
