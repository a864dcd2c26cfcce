"""Warm processes in reserve: who starts a worker or a runner on their node gets one and is spared most of the boot.

Ray gives an actor an idle process of its node that nobody has used yet, if there is one. It starts such processes where
more tasks wait than there are idle processes, and keeps as many of them as the node has free CPU slots. So a spare is
what is left over when some tasks that do next to nothing are sent to a node at once; the tasks tell whether one is.
What makes it warm is
`rlpto.ray_cluster.preload`, which clusters that we start have their processes import; on others a spare saves only the
start of its process. Spares hold no GPU, and end with the driver's connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from rlpto.ray_cluster.messages import JobReport

QUIET_SECONDS = 1.0
"""All jobs have to train undisturbed for so long before a spare is made: nobody who starts is to share its cores."""
RECENT_SECONDS = 2.0
"""A report that is older says nothing about whether its job trains."""
APART_SECONDS = 6.0
"""s between spares of two nodes: so long one takes to warm up."""


STOCK_SECONDS = 60.0
"""Longest wait for spares before the first job: on a busy machine some are made later, or never."""
ROUNDS = 4
"""Rounds of tasks after which a node that still has too few spares is left as it is."""


class Spares:
    """Sees to it that every node has `count` spares, one node after the other, while all jobs train.

    control: Ray's id of the node where runners are. nodes: those of all nodes that may have spares.

    To be told often how jobs are, by `tend`; it never waits.
    """

    def __init__(self, count: int, control: Callable[[], str], nodes: Callable[[], Iterable[str]]) -> None:
        self._count, self._control, self._nodes = count, control, nodes
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._stocked: set[str] = set()
        self._missing: list[str] = []
        self._round: _Round | None = None
        self._looked = False
        self._used: set[tuple[str, int]] = set()
        self._quiet_since: float | None = None
        self._next_at = 0.0

    def tend(self, reports: Collection[JobReport]) -> None:
        """Make the next spare that is missing, if all jobs with a runner are at rest. reports: one of each."""
        if self._count == 0:
            return
        now = time.monotonic()
        if not all(at_rest(report, time.time()) for report in reports):
            self._quiet_since = None
            return
        self._quiet_since = now if self._quiet_since is None else self._quiet_since
        if now < max(self._quiet_since + QUIET_SECONDS, self._next_at):
            return
        if self._round is not None:
            self._go_on(self._round)
            return
        self._look_for_used(reports)
        if self._missing:
            node = self._missing.pop(0)
            self._stocked.add(node)
            self._round = _Round(node, 1, [self._touch(node)])

    @property
    def complete(self) -> bool:
        """True once no node is known to lack a spare, and the last one has had time to get warm."""
        idle = not self._missing and self._round is None
        return self._count == 0 or (self._looked and idle and time.monotonic() >= self._next_at)

    def stock(self, seconds: float = STOCK_SECONDS) -> None:
        """Wait, before there is any job, until every node has its spares, or so long."""
        by = time.monotonic() + seconds
        while not self.complete and time.monotonic() < by:
            self.tend([])
            time.sleep(0.1)

    def _look_for_used(self, reports: Iterable[JobReport]) -> None:
        """Nodes that may have none: first where somebody has started since the last look, then those that are new."""
        self._looked = True
        used: list[str] = []
        for report in reports:
            known = (report.pid, report.generation, report.recoveries)
            before = self._seen.get(report.name)
            if known != before:
                self._seen[report.name] = known
                used += report.holding
                if before is None or before[0] != report.pid:
                    used.append(self._control())
        nodes = list(self._nodes())
        new = [node for node in nodes if node not in self._stocked]
        wanted = dict.fromkeys([*used, *self._missing, *new])
        self._missing = [node for node in wanted if node in nodes]

    def _touch(self, node: str) -> Any:
        """A task on a node that looks which processes there are."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from rlpto.ray_cluster.preload import look_around

        task: Any = ray.remote(look_around)
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        return task.options(num_cpus=0, max_retries=0, scheduling_strategy=here).remote()

    def _seen_by(self, tasks: list[Any]) -> list[tuple[int, list[int]]] | None:
        """What tasks have seen: process id of each, and of others that are idle; None while some have not ended."""
        import ray
        from ray.exceptions import RayError

        if len(ray.wait(tasks, num_returns=len(tasks), timeout=0)[0]) < len(tasks):
            return None
        try:
            seen: list[tuple[int, list[int]]] = ray.get(tasks)
        except RayError:
            return []  # the node is gone
        return seen

    def _go_on(self, present: _Round) -> None:
        """End a round once its tasks have: with enough spares, or else with a round of more tasks at once."""
        seen = self._seen_by(present.tasks)
        if seen is None:
            return
        node = present.node
        self._used |= {(node, pid) for pid, _ in seen}
        idle = [pid for pid in (seen[-1][1] if seen else []) if (node, pid) not in self._used]
        if len(idle) < self._count and seen and present.number < ROUNDS:
            # One more than there are processes for tasks: what Ray starts for the last of them is left over.
            more = 1 + len({pid for _, others in seen for pid in others} | {pid for pid, _ in seen})
            self._round = _Round(node, present.number + 1, [self._touch(node) for _ in range(more)])
            return
        self._round = None
        self._next_at = time.monotonic() + APART_SECONDS


@dataclass(frozen=True)
class _Round:
    """Tasks that were sent to a node at once. number: of the rounds on this node, from 1."""

    node: str
    number: int
    tasks: list[Any]


def at_rest(report: JobReport, now: float) -> bool:
    """True if nobody of the job starts, leaves, or has to be replaced. now: `time.time()`."""
    if report.ended:
        return not report.holding
    settled = report.applied == report.generation and sorted(report.holding) == sorted(report.training_on)
    return settled and now - report.time < RECENT_SECONDS
