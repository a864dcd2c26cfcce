"""Warm processes in reserve: who starts a worker or a runner on their node gets one and is spared most of the boot.

Ray gives an actor a process of its node that nobody has used yet, if there is one, and starts some ahead if it is asked
to (`rlpto.ray_cluster.lookout`). What makes them warm is `rlpto.ray_cluster.preload`, which clusters that we start have
their processes import; on others a spare saves only the start of its process. Spares hold no GPU, and end with the
driver's connection.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlpto.ray_cluster.lookout import start_lookout
from rlpto.ray_cluster.messages import JobReport

QUIET_SECONDS = 1.0
"""All jobs have to train undisturbed for so long before a spare is made: nobody who starts is to share its cores."""
RECENT_SECONDS = 2.0
"""A report that is older says nothing about whether its job trains."""
AT_ONCE = 2
"""Spares of one machine that are made at once: each keeps a core busy until it is warm."""
APART_SECONDS = 5.0
"""s until they are."""
STOCK_SECONDS = 90.0
"""Longest wait for spares before the first job: on a busy machine some are made later, or never."""
ROUNDS = 8
"""Attempts after which a node that still has too few spares is left as it is until somebody starts there again."""


@dataclass(frozen=True)
class Place:
    """A node that is to have spares. machine: its address; nodes of one share cores. raylet: HOST:PORT of the node."""

    node: str
    count: int
    machine: str = ""
    raylet: str = ""


class Spares:
    """Sees to it that every node has its spares, those that lack most first, while all jobs train.

    control: Ray's id of the node where runners are. places: all nodes that are to have spares now.

    To be told often how jobs are, by `tend`; it never waits. Where Ray refuses to start processes ahead it says so in a
    warning, and makes none.
    """

    def __init__(self, control: Callable[[], str], places: Callable[[], Iterable[Place]]) -> None:
        self._control, self._places = control, places
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._rounds: dict[str, int] = {}
        self._unsure: dict[str, None] = {}
        self._asked: dict[str, list[tuple[Place, Any]]] = {}
        self._begun: dict[str, list[Any]] = {}
        self._lookouts: dict[str, Any] = {}
        self._free_at: dict[str, float] = {}
        self._looked = self._refused = False
        self._quiet_since: float | None = None

    def tend(self, reports: Collection[JobReport]) -> None:
        """Have made what is missing, if all jobs with a runner are at rest. reports: one of each."""
        if self._refused:
            return
        now = time.monotonic()
        if not all(at_rest(report, time.time()) for report in reports):
            self._quiet_since = None
            return
        self._quiet_since = now if self._quiet_since is None else self._quiet_since
        if now < self._quiet_since + QUIET_SECONDS:
            return
        places = {place.node: place for place in self._places() if place.count}
        self._look_for_used(reports, places)
        for machine in dict.fromkeys(place.machine for place in places.values()):
            if now >= self._free_at.get(machine, now):
                self._see_to(machine, [place for place in places.values() if place.machine == machine], now)

    @property
    def complete(self) -> bool:
        """True once no node is known to lack a spare, and the last ones have had time to get warm."""
        warming = any(free > time.monotonic() for free in self._free_at.values())
        return self._refused or (self._looked and not (self._unsure or self._asked or warming))

    def stock(self, seconds: float = STOCK_SECONDS) -> None:
        """Wait, before there is any job, until every node has its spares, or so long."""
        by = time.monotonic() + seconds
        self._looked = False
        self._rounds.clear()
        while not self.complete and time.monotonic() < by:
            self.tend([])
            time.sleep(0.1)

    def _look_for_used(self, reports: Iterable[JobReport], places: Collection[str]) -> None:
        """Which nodes may lack some: where somebody has started since the last look, and those that are new."""
        self._looked = True
        used: list[str] = []
        for report in reports:
            known = (report.pid, report.generation, report.recoveries)
            before = self._seen.get(report.name)
            if known != before:
                self._seen[report.name] = known
                used += [self._control()] if before is None or before[0] != report.pid else []
                used += report.holding
        used += [node for node in places if node not in self._rounds]
        self._rounds |= dict.fromkeys(used, 0)
        self._unsure = {node: None for node in {**self._unsure, **dict.fromkeys(used)} if node in places}

    def _see_to(self, machine: str, places: Iterable[Place], now: float) -> None:
        """Ask how many spares nodes of a machine have; once all have answered, make some where most are missing."""
        if machine not in self._asked:
            doubtful = [place for place in places if place.node in self._unsure]
            if doubtful:
                self._asked[machine] = [(place, self._ask(place)) for place in doubtful]
            return
        asked = self._asked[machine]
        counts = self._counts(machine, asked)
        if counts is None:
            return
        del self._asked[machine]
        missing: dict[Place, int] = {}
        for place, _ in asked:
            lacks = place.count - counts.get(place.node, place.count)
            if lacks > 0 and self._rounds.get(place.node, 0) < ROUNDS:
                missing[place] = lacks
            else:
                self._unsure.pop(place.node, None)
        for place, count in most_wanted(missing, AT_ONCE).items():
            self._rounds[place.node] += 1
            self._begun.setdefault(machine, []).append(self._start(place, count))
            self._free_at[machine] = now + APART_SECONDS

    def _ask(self, place: Place) -> Any:
        """Ask the lookout of a node how many spares there are."""
        if place.node not in self._lookouts:
            self._lookouts[place.node] = start_lookout(place.node, place.raylet)
        return self._lookouts[place.node].spares.remote()

    def _start(self, place: Place, count: int) -> Any:
        return self._lookouts[place.node].start.remote(count)

    def _counts(self, machine: str, asked: Iterable[tuple[Place, Any]]) -> dict[str, int] | None:
        """Spares of every node whose lookout answers; None until all have answered, or never will."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        answers = [answer for _, answer in asked]
        if len(ray.wait(answers, num_returns=len(answers), timeout=0)[0]) < len(answers):
            return None
        counts: dict[str, int] = {}
        for place, answer in asked:
            try:
                counts[place.node] = ray.get(answer)
            except RayError:  # the node is gone, or its lookout
                self._lookouts.pop(place.node, None)
        try:
            ray.get(self._begun.pop(machine, []))
        except RayTaskError as error:
            self._refused = True
            first = str(error.cause).strip().splitlines()[0]
            warnings.warn(f"no processes are kept in reserve, Ray does not start them ahead: {first}", stacklevel=2)
            return {}
        except RayError:
            return counts  # the node is gone
        return counts


def most_wanted(missing: Mapping[Place, int], most: int) -> Counter[Place]:
    """Up to `most` of the spares that are missing, one after the other where the largest share of them is."""
    left, chosen = Counter(missing), Counter[Place]()
    for _ in range(min(most, left.total())):
        worst = max(left, key=lambda place: left[place] / place.count)
        chosen[worst] += 1
        left[worst] -= 1
    return chosen


def at_rest(report: JobReport, now: float) -> bool:
    """True if nobody of the job starts, leaves, or has to be replaced. now: `time.time()`."""
    if report.ended:
        return not report.holding
    settled = report.applied == report.generation and sorted(report.holding) == sorted(report.training_on)
    return settled and now - report.time < RECENT_SECONDS
