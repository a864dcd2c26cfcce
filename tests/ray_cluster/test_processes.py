"""What is known of this machine's processes and ports."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import pytest

from rlpto.ray_cluster.nodes import processes
from rlpto.ray_cluster.nodes.processes import free_ports


def test_ports_are_free_and_none_that_whoever_connects_may_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text("10003\t60999\n")
    monkeypatch.setattr(processes, "EPHEMERAL", tmp_path / "range")
    with socket.socket() as taken:
        with suppress(OSError):  # somebody has it already: Ray's client server does by default
            taken.bind(("", 10001))
        assert sorted(free_ports(2)) == [10000, 10002]
        found = free_ports(4)
    assert len(set(found)) == 4, "more than there are below: the system chooses the others"
    assert 10001 not in found


def test_where_the_system_does_not_tell_it_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "EPHEMERAL", tmp_path / "missing")
    assert len(set(free_ports(3))) == 3
