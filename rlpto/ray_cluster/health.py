"""Which nodes answer Ray's health check, asked by this process as well as by the head.

Ray declares a silent node dead only after 30 to 65 s, by default. The raylet of a node that is cut off, frozen or
without power answers nobody, so the head's own question, asked here more often, shows this within seconds, without a
worker or another process on the node. It also shows when the node is back. A connection that was cut may take as long
again until it carries data, ours as well as Ray's: until then calls to workers are not answered either.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlpto.ray_cluster.controllers import alive_nodes

CHECK_INTERVAL_S, CHECK_TIMEOUT_S = 1.0, 2.5
"""Time between two rounds of checks, and longest wait for the answers of a round."""
SILENT_ROUNDS = 3
"""Consecutive rounds without an answer after which a node counts as silent. It takes at most 9 s, so nothing is placed
there by the time job controllers give up the workers of the node. A process that was suspended misses one round."""

Entry = Mapping[str, Any]
"""Ray's entry for a node."""


class NodeHealth:
    """Checks nodes in rounds, without waiting for their answers.

    silent: nodes that do not answer, by id, with the seconds since their last answer. cut_off: seconds since another
    machine has answered, if none does, else 0. No more nodes count as silent then, and for as long again afterwards.
    """

    def __init__(self) -> None:
        self.silent: Mapping[str, float] = {}
        self.cut_off = 0.0
        self._nodes: dict[str, Entry] = {}
        self._channels: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._answered: dict[str, float] = {}
        self._missed: dict[str, int] = {}
        self._due, self._reached, self._apart = 0.0, time.monotonic(), 0
        self._patient_until = 0.0

    def look(self, nodes: Iterable[Entry]) -> None:
        """Take in a finished round, and begin the next one when it is due. nodes: nodes that are alive."""
        now = time.monotonic()
        if self._asked and all(answer.done() for answer in self._asked.values()):
            self._take_in({node for node, answer in self._asked.items() if _is_well(answer)}, now)
            self._asked = {}
        if not self._asked and now >= self._due:
            self._due = now + CHECK_INTERVAL_S
            self._nodes = {str(node["NodeID"]): node for node in nodes}
            for gone in self._channels.keys() - self._nodes.keys():
                self._channels.pop(gone).close()
            self._asked = _ask(self._nodes, self._channels)

    def _take_in(self, answering: set[str], now: float) -> None:
        least = 1 if self._apart else 2  # also after Ray has declared one of two nodes dead
        others = {str(node["NodeID"]) for node in other_machines(list(self._nodes.values()), least)}
        apart = bool(others) and not others & answering
        self._apart = self._apart + 1 if apart else 0
        if apart:
            self._patient_until = now + (now - self._reached)  # connections take as long again
        else:
            self._reached = now
        self.cut_off = now - self._reached if self._apart >= SILENT_ROUNDS else 0.0
        missing = self._nodes.keys() - answering
        counts = now >= self._patient_until
        self._missed = {node: self._missed.get(node, 0) + counts for node in missing}
        self._answered = {node: self._answered.get(node, now) if node in missing else now for node in self._nodes}
        self.silent = {node: now - self._answered[node] for node, n in self._missed.items() if n >= SILENT_ROUNDS}


def other_machines(nodes: Sequence[Entry], least: int = 2) -> list[Entry]:
    """Nodes on other machines than this one; none if these are fewer than `least` machines: if a single one is silent,
    it may be cut off as well as this one."""
    import ray

    own = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    others = [node for node in nodes if node["NodeManagerAddress"] != own]
    return others if len({node["NodeManagerAddress"] for node in others}) >= least else []


def answering(nodes: Sequence[Entry]) -> Iterator[str]:
    """Yield the ids of nodes as they answer, for `CHECK_TIMEOUT_S` at most."""
    channels: dict[str, Any] = {}
    asked = _ask({str(node["NodeID"]): node for node in nodes}, channels)
    try:
        while asked:
            for node in [node for node, answer in asked.items() if answer.done()]:
                if _is_well(asked.pop(node)):
                    yield node
            time.sleep(0.01)
    finally:
        for channel in channels.values():
            channel.close()


def is_cut_off() -> bool:
    """True if no other machine answers: then the fault is likely on this one. Takes `CHECK_TIMEOUT_S` at most."""
    others = other_machines(alive_nodes())
    return bool(others) and not any(answering(others))


def _ask(nodes: Mapping[str, Entry], channels: dict[str, Any]) -> dict[str, Any]:
    """Ask nodes for their health; returns gRPC's futures by id. channels: connections by id, added to if missing."""
    from rlpto.ray_cluster.compat import ask_health, channel_to

    for node in nodes.keys() - channels.keys():
        channels[node] = channel_to(f"{nodes[node]['NodeManagerAddress']}:{nodes[node]['NodeManagerPort']}")
    return {node: ask_health(channels[node], CHECK_TIMEOUT_S) for node in nodes}


def _is_well(answer: Any) -> bool:
    """True if a finished check was successful."""
    return answer.exception() is None
