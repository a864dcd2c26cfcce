"""Rented nodes of a real cluster: the provisioner's view of them, and renting and returning nodes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.gpu_types import rented_groups_of
from rlpto.core.renting import LOOK, TICK_S, RentedSettings
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.performance.solo import seconds_to_finish
from rlpto.ray_cluster.scheduler.backend import NodeInfo, RayBackend
from rlpto.ray_cluster.scheduler.cluster import RayCluster

HOUR = 3600.0
DRAIN_S = 120.0
"""Seconds that jobs have to leave a returned node before it ends."""


class RealNodes:
    """The rented nodes of a real cluster, behind the interface `rlpto.provisioning.control.RentingCluster`.

    shape: all possible nodes. rental: starts and ends nodes. If None, Ray's autoscaler does; it receives the number of
    wanted GPUs from the cluster, and requested GPUs that are not up count as booting. tick: time between decisions [s].
    """

    def __init__(
        self, cluster: RayCluster, shape: ClusterShape, rental: LocalRental | None, tick: float = TICK_S
    ) -> None:
        self.shape, self._cluster, self._rental, self._tick = shape, cluster, rental, tick
        self.next_rent, self._charged = -math.inf, cluster.time
        self._first = [shape[int(group[0])] for group in shape.rented_groups]
        self._gpu_types = [node.gpu for node in self._first]
        self._worked: dict[str, float] = {}
        if rental is not None:
            rental.claimed = cluster.tracker.claimed

    @property
    def time(self) -> float:
        """Seconds of the session."""
        return self._cluster.time

    def _group(self, gpu_type: str) -> int | None:
        """Number of the first group with a GPU type."""
        return self._gpu_types.index(gpu_type) if gpu_type in self._gpu_types else None

    def rent(self, nodes: IntArray) -> None:
        """Rent nodes, or return some, which jobs leave at once."""
        self._cluster.wake_at = self.next_rent = (math.floor(self.time / self._tick + 1e-9) + 1) * self._tick
        if self._rental is not None:
            self._rental.rent(nodes, self._cluster)
            self._cluster.look_at_nodes()

    def look_at_nodes(self) -> AnyArray:
        """Return [G] LOOK like `rlpto.simulator.renting.look_at_nodes`. With Ray's autoscaler, a job with fewer GPUs
        than it asks for counts as waiting for the others."""
        cluster, seen, rental = self._cluster, np.zeros(len(self._gpu_types), dtype=LOOK), self._rental
        held, store = cluster.tracker.planned_by_node(), cluster.store
        for name, node in zip(cluster.node_ids, cluster.shape, strict=False):
            group = None if rental is None else rental.group_of(name)
            place = self._group(node.gpu) if group is None else group
            if place is None:
                continue
            row = seen[place]
            row["ready"] += node.gpus
            row["used"] += held[name]
            row["own"] += node.gpus if group is None and rental is not None else 0
        groups = rented_groups_of(self.shape, cluster.tables)[store.type_index]
        missing = np.maximum(store.requested_gpus - store.gpus, 0) * cluster.columns.active * (groups >= 0)
        for job in np.flatnonzero(missing if rental is None else missing * (store.gpus == 0)).tolist():
            row = seen[groups[job]]
            row["waiting"] += missing[job]
            row["waiting_jobs"] += 1
            row["largest"] = max(row["largest"], missing[job])
        if rental is not None:
            rental.see_booting(seen)
        else:  # boot progress is unknown
            seen["booting"][0] = max(cluster.gpus_asked - float(seen["ready"].sum()), 0.0)
        return seen

    def work_done(self) -> tuple[float, float]:
        """Return the increase of work done since the last call, measured by the rules of
        `rlpto.simulator.renting.work_done`."""
        cluster, store = self._cluster, self._cluster.store
        there, size = np.flatnonzero(cluster.columns.submitted), self.shape.gpus_per_node
        types, asked = store.type_index[there], store.requested_gpus[there]
        done = seconds_to_finish(cluster.tables, types, store.scale[there], store.progress[there], asked, size)
        done += np.where(np.isnan(store.start_time[there]), 0.0, cluster.rescale_delay[there])
        ids = [cluster.ids[job] for job in there.tolist()]
        more: FloatArray = done - [self._worked.get(job, 0.0) for job in ids]
        self._worked = dict(zip(ids, done.tolist(), strict=True))
        groups = [self._group(gpu_type) or 0 for gpu_type in cluster.tables.gpu_types]
        price = np.array([self._first[group].price / HOUR for group in groups])
        return float(more.sum()), float((more * asked * price[cluster.tables.gpu_type[types]]).sum())

    def charge(self, passed: AnyArray) -> None:
        """Add the price of the rented nodes to `passed` ([1] INTERVAL)."""
        if self._rental is not None:
            passed["cost"] += self._rental.take_cost()
        else:
            seen, seconds = self.look_at_nodes(), self.time - self._charged
            prices = np.array([node.price for node in self._first])
            passed["cost"] += float((seen["ready"] + seen["booting"]) @ prices) / HOUR * seconds
        self._charged = self.time


@dataclass(eq=False)
class Rental:
    """A node that is paid since it was `asked` for [s] and usable from `ready_at` [s] on; `node` is then its id.

    seen: whether it has been alive. leaves_by: latest end of a node that jobs are leaving [s].
    """

    group: int
    asked: float
    ready_at: float
    started: Future[Any]
    node: str = ""
    seen: bool = False
    empty_since: float = math.inf
    leaves_by: float = math.inf


class LocalRental:
    """Nodes that RLPTO starts and ends itself, by the rules of `rlpto.simulator.renting`.

    A node is hidden until its boot time is over. A returned node is paid until jobs have left it. shape: all possible
    nodes; nodes that are not rented are up. start: starts a node, such as a `RayNode`, in the single thread of
    `thread`. This thread must persist, because Linux ends a process with the thread that started it. seed: seed of boot
    times. clock: returns seconds. Raises ClusterError, when nodes are next looked at, if a node did not start.
    """

    def __init__(
        self,
        shape: ClusterShape,
        start: Callable[[Node], Any],
        thread: Executor,
        backend: RayBackend,
        seed: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start, self._thread, self._backend, self._clock = start, thread, backend, clock
        self._groups = [(shape[int(group[0])], shape[int(group[0])].rented) for group in shape.rented_groups]
        self._rng = np.random.default_rng([seed, 3])
        self._rentals: list[Rental] = []
        self._leaving: list[Rental] = []
        self._own = {node.id for node in backend.nodes()} if any(node.rented is None for node in shape) else set()
        self._cost, self._paid_until = 0.0, clock()
        self.claimed: Callable[[], set[str]] = set
        backend.shown = self._shown
        for number, group in enumerate(shape.rented_groups):
            for _ in range(sum(shape[node].up for node in group.tolist())):
                self._ask(number, boots=False)
        for rental in self._rentals:
            rental.started.result()

    def close(self) -> None:
        """End all rented nodes."""
        self._backend.shown = None
        for rental in (*self._rentals, *self._leaving):
            self._end(rental)

    def group_of(self, node: str) -> int | None:
        """Group number of a node that is up, by its id; None if it is not rented."""
        return next((rental.group for rental in self._rentals if rental.node == node), None)

    def see_booting(self, seen: AnyArray) -> None:
        """Add booting nodes to [G] LOOK."""
        for rental in self._rentals:
            if not rental.node:
                node, settings = self._of(rental)
                seen["booting"][rental.group] += node.gpus
                seen["soon"][rental.group] += node.gpus * (self._clock() - rental.asked >= settings.boot * 2 / 3)

    def take_cost(self) -> float:
        """Price of the rented nodes since the last call."""
        self._pay()
        cost, self._cost = self._cost, 0.0
        return cost

    def rent(self, nodes: IntArray, cluster: RayCluster) -> None:
        """Rent or return nodes until each group g has nodes[g], as far as possible."""
        self._pay()
        now, held = self._clock(), cluster.tracker.planned_by_node()
        for group, count in enumerate(nodes.tolist()):
            there = [rental for rental in self._rentals if rental.group == group]
            for rental in there:
                rental.empty_since = min(rental.empty_since, now) if rental.node and not held[rental.node] else math.inf
            for _ in range(count - len(there)):
                self._ask(group)
            while len(there) > count and (found := self._to_go(there, cluster, now)) is not None:
                there.remove(found)
                self._give_back(found, now, cluster.database.say)

    def _of(self, rental: Rental) -> tuple[Node, RentedSettings]:
        node, settings = self._groups[rental.group]
        assert settings is not None
        return node, settings

    def _ask(self, group: int, boots: bool = True) -> None:
        now = self._clock()
        started = self._thread.submit(self._start, self._groups[group][0])
        self._rentals.append(rental := Rental(group, now, now, started))
        settings = self._of(rental)[1]
        boot = settings.boot * math.exp(settings.boot_spread * self._rng.standard_normal())
        rental.ready_at += boot if boots else 0.0

    def _to_go(self, there: Sequence[Rental], cluster: RayCluster, now: float) -> Rental | None:
        """Choose a node of a group to return: the latest empty or booting one, else one worth emptying; None if there
        is none."""
        (node, settings), held = self._of(there[0]), cluster.tracker.planned_by_node()
        old = [one for one in there if now - one.asked >= settings.minimum]
        empty = [one for one in old if not one.node or now - one.empty_since >= settings.idle]
        if empty:
            return max(reversed(empty), key=lambda one: one.asked)
        if any(one.node and not held[one.node] for one in there):
            return None  # it is returned once it has been idle long enough
        up, leaving = zip(cluster.node_ids, cluster.shape, strict=False), {one.node for one in self._leaving}
        free = sum(one.gpus - held[name] for name, one in up if one.gpu == node.gpu and name not in leaving)
        free -= sum(held[name] for name in leaving)  # jobs that have to move already need these
        found = min((one for one in old if one.node), key=lambda one: held[one.node], default=None)
        return found if found and free >= node.gpus else None

    def _give_back(self, rental: Rental, now: float, say: Callable[[str], object]) -> None:
        """End a node. If jobs hold GPUs of it, announce its end first, and end it once they have left. A node that
        cannot be announced stays, and the next decision tries again."""
        if rental.node in self.claimed():
            if reason := self._backend.drain(rental.node, DRAIN_S):
                say(f"node {rental.node[:8]} stays rented, since its end cannot be announced: {reason}")
                return
            rental.leaves_by = now + DRAIN_S
        self._leave(rental)
        self._end_left()

    def _leave(self, rental: Rental) -> None:
        self._rentals.remove(rental)
        self._leaving.append(rental)

    def _shown(self, alive: list[NodeInfo]) -> list[NodeInfo]:
        """Update the rentals from the nodes that are alive, and return the usable nodes."""
        self._pay()
        now, there = self._clock(), {node.id for node in alive}
        for rental in [rental for rental in self._rentals if rental.started.done()]:
            node = rental.started.result().node_id
            if node in there:
                rental.seen = True
                rental.node = node if now >= rental.ready_at else rental.node
            elif node not in self._backend.silent and (rental.seen or now > rental.ready_at + DRAIN_S):
                # It is lost, or others drain it.
                rental.leaves_by = now + DRAIN_S * (node in self._backend.announced)
                self._leave(rental)
        self._end_left()
        usable = self._own | {rental.node for rental in self._rentals}
        return [node for node in alive if node.id in usable]

    def _end_left(self) -> None:
        """End nodes that jobs have left, and pay the rest of their minimum rental time."""
        now, claimed = self._clock(), self.claimed()
        for rental in list(self._leaving):
            if rental.node not in claimed or now >= rental.leaves_by:
                self._leaving.remove(rental)
                self._end(rental)
                node, settings = self._of(rental)
                self._cost += node.price * node.gpus / HOUR * max(settings.minimum - (now - rental.asked), 0.0)

    def _end(self, rental: Rental) -> None:
        def end() -> None:
            if rental.started.exception() is None:
                rental.started.result().kill_all_processes(check_alive=False, allow_graceful=True, wait=True)

        if not rental.started.cancel():
            self._thread.submit(end)

    def _pay(self) -> None:
        now, paid = self._clock(), [self._of(rental)[0] for rental in (*self._rentals, *self._leaving)]
        self._cost += sum(node.gpus * node.price for node in paid) / HOUR * (now - self._paid_until)
        self._paid_until = now
