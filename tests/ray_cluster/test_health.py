"""Nodes that do not answer: noticed by checks of their raylets, and whether this machine is cut off instead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorUnavailableError

from rlpto.ray_cluster import compat, health
from rlpto.ray_cluster.health import SILENT_ROUNDS, NodeHealth, is_cut_off
from rlpto.ray_cluster.job import supervision
from rlpto.ray_cluster.job.supervision import FaultError, collect
from rlpto.ray_cluster.job.worker_actors import Worker
from rlpto.ray_cluster.worker.actor import WorkerHeartbeat

HEAD = "10.0.0.1"


class Network:
    """Machines in memory, with a node each, by address; this one is the head's. cut: addresses that do not answer."""

    def __init__(self, count: int, patch: pytest.MonkeyPatch) -> None:
        self.now, self.cut = 1000.0, set[str]()
        self.addresses = [f"10.0.0.{number}" for number in range(1, count + 1)]
        self.health = NodeHealth()
        patch.setattr(time, "monotonic", lambda: self.now)
        patch.setattr(ray.util, "get_node_ip_address", lambda: HEAD)
        patch.setattr(health, "alive_nodes", self.nodes)
        patch.setattr(compat, "channel_to", lambda address: SimpleNamespace(address=address, close=lambda: None))
        patch.setattr(compat, "ask_health", self.ask)

    def nodes(self) -> list[dict[str, Any]]:
        """Ray's entries; a node's id is its address."""
        return [{"NodeID": at, "NodeManagerAddress": at, "NodeManagerPort": 1} for at in self.addresses]

    def ask(self, channel: Any, _: float) -> Future[bytes]:
        answer: Future[bytes] = Future()
        address = channel.address.removesuffix(":1")
        if address != HEAD and self.cut & {address, HEAD}:
            answer.set_exception(TimeoutError())
        else:
            answer.set_result(b"")
        return answer

    def pass_rounds(self, count: int = SILENT_ROUNDS) -> set[str]:
        """Nodes that are silent after some more rounds, of 2.5 s each."""
        for _ in range(count):
            self.health.look(self.nodes())  # asks
            self.now += 0.5
            self.health.look(self.nodes())  # takes in the answers
            self.now += 2.0
        return set(self.health.silent)


def test_a_node_that_misses_three_rounds_is_silent_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(4, monkeypatch)
    assert not network.pass_rounds()
    network.cut = {"10.0.0.3"}
    assert not network.pass_rounds(SILENT_ROUNDS - 1), "a scheduler that was suspended misses a round"
    assert network.pass_rounds(1) == {"10.0.0.3"}
    assert network.health.silent["10.0.0.3"] == pytest.approx(2.5 * SILENT_ROUNDS)
    network.pass_rounds(2)
    assert network.health.silent["10.0.0.3"] == pytest.approx(12.5)
    assert network.health.cut_off == 0.0
    assert not is_cut_off()
    network.cut = set()
    assert not network.pass_rounds(1)
    network.cut = {"10.0.0.3"}
    assert network.pass_rounds() == {"10.0.0.3"}
    network.addresses.remove("10.0.0.3")  # declared dead
    assert not network.pass_rounds(1)


def test_where_no_other_machine_answers_this_one_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(3, monkeypatch)
    network.pass_rounds()
    network.cut = {HEAD}
    assert is_cut_off()
    assert not network.pass_rounds(4)
    assert network.health.cut_off == pytest.approx(10.0)
    network.addresses.remove("10.0.0.3")  # Ray declares one of two dead: still no answer
    assert not network.pass_rounds(1)
    assert network.health.cut_off == pytest.approx(12.5)
    network.addresses.append("10.0.0.4")
    network.cut = {"10.0.0.4"}
    assert not network.pass_rounds(5), "connections may take as long again"
    assert network.health.cut_off == 0.0
    assert network.pass_rounds() == {"10.0.0.4"}


def test_a_single_other_machine_that_is_silent_is_at_fault_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(2, monkeypatch)
    network.cut = {HEAD}
    assert not is_cut_off()
    assert network.pass_rounds() == {"10.0.0.2"}
    assert network.health.cut_off == 0.0


class Silent:
    """The handle of a worker that trains, and answers a moment later, with `error` if it has one. heartbeats: whether
    it answers them."""

    def __init__(self, seconds: float, heartbeats: bool = False, error: Exception | None = None) -> None:
        self._seconds, self._heartbeats, self._error = seconds, heartbeats, error

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda: SimpleNamespace(future=lambda: self._answer(method)))

    def _answer(self, method: str) -> Future[Any]:
        found: Future[Any] = Future()
        call = asyncio.get_running_loop().call_later
        if method == "run" and self._error is not None:
            call(self._seconds, lambda: found.set_exception(self._error))
        elif method == "run":
            call(self._seconds, lambda: found.set_result("done"))
        elif self._heartbeats:
            call(0.0, lambda: found.set_result(WorkerHeartbeat(1, True, "shared", 0.0)))
        return found


def trained(handles: Iterable[Silent], heartbeat: float) -> list[Any]:
    """Results of workers that train a chunk."""

    async def train() -> list[Any]:
        workers = [Worker("node", handle) for handle in handles]
        return await collect(workers, [worker.handle.run.remote() for worker in workers], heartbeat, 60.0)

    return asyncio.run(train())


def test_silent_workers_are_given_up_unless_this_machine_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "HEARTBEAT_INTERVAL_S", 0.02)
    monkeypatch.setattr(supervision, "is_cut_off", lambda: False)
    with pytest.raises(FaultError, match=r"does not answer: no answer within 0\.2 s") as fault:
        trained([Silent(1.0), Silent(1.0, heartbeats=True)], 0.2)
    assert len(fault.value.lost) == 1
    cut = iter([True])  # then connections carry data again, a while later
    monkeypatch.setattr(supervision, "is_cut_off", lambda: next(cut, False))
    assert trained([Silent(1.0), Silent(1.0)], 0.2) == ["done"] * 2


def test_a_worker_is_not_given_up_for_a_call_that_the_network_has_lost() -> None:
    reset = ActorUnavailableError("Connection reset by peer", None)
    with pytest.raises(FaultError, match="Connection reset by peer") as fault:
        trained([Silent(0.05, heartbeats=True, error=reset), Silent(0.05, heartbeats=True)], 5.0)
    assert (fault.value.lost, len(fault.value.missed)) == ({}, 1)
