"""Warm processes in reserve: who starts a worker or a runner on their node gets one and is spared most of the boot.

Ray gives an actor a process of its node that nobody has used yet, if there is one, and starts some ahead if it is asked
to (`rlpto.ray_cluster.reserve`). What makes them warm is `rlpto.ray_cluster.warming`, on clusters that we start; on
others a spare saves only the start of its process. Spares hold no GPU, and end with the driver's connection.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlpto.ray_cluster.messages import JobReport

if TYPE_CHECKING:
    from rlpto.ray_cluster.reserve import Stock

QUIET_SECONDS = 1.0
"""All jobs have to train undisturbed for so long before a spare is made: nobody who starts is to share its cores."""
RECENT_SECONDS = 2.0
"""A report that is older says nothing about whether its job trains."""
AT_ONCE = 2
"""Spares of one machine that are made at once before there is any job: each keeps a core busy until it is warm. One at
a time beside jobs."""
LOOK_SECONDS = 1.0
"""s between two looks at the spares of a machine."""
WARM_SECONDS = 60.0
"""s after which those that are not warm are no reason any more to wait with others."""
STOCK_SECONDS = 90.0
"""Longest wait for spares before the first job: on a busy machine some are made later, or never."""
IN_VAIN = 3
"""Attempts in a row after which a node that has not got more spares is left as it is, until somebody starts again."""


@dataclass(frozen=True)
class Place:
    """A node that is to have spares. machine: its address; nodes of one share cores. raylet: HOST:PORT of the node."""

    node: str
    count: int
    machine: str = ""
    raylet: str = ""


class Spares:
    """Sees to it that every node has its spares, those that lack most first, while all jobs train.

    places: tells all nodes that are to have spares now; None: none ever.

    To be told often how jobs are, by `tend`; it never waits. Where Ray refuses to start processes ahead it says so in a
    warning, and makes none.
    """

    def __init__(self, places: Callable[[], Iterable[Place]] | None) -> None:
        self._places = places
        self._known: object = None
        self._unsure: set[str] = set()
        self._asked: dict[str, list[tuple[Place, Any]]] = {}
        self._reserves: dict[str, Any] = {}
        self._begun: list[Any] = []
        self._had: dict[str, int] = {}
        self._vain: Counter[str] = Counter()
        self._warming: dict[str, float] = {}
        self._look_at: dict[str, float] = {}
        self._quiet_since: float | None = None

    def tend(self, reports: Collection[JobReport]) -> None:
        """Have made what is missing, if all jobs with a runner are at rest. reports: one of each."""
        self._see_to_refusals()
        if self._places is None:
            return
        now = time.monotonic()
        if not all(at_rest(report, time.time()) for report in reports):
            self._quiet_since = None
            return
        self._quiet_since = now if self._quiet_since is None else self._quiet_since
        if now < self._quiet_since + QUIET_SECONDS:
            return
        places = [place for place in self._places() if place.count]
        self._look_for_changes(reports, places)
        at_once = 1 if reports else AT_ONCE
        for machine in dict.fromkeys(place.machine for place in places):
            if now >= self._look_at.get(machine, now):
                self._see_to(machine, [place for place in places if place.machine == machine], at_once, now)

    @property
    def complete(self) -> bool:
        """True once no node is known to lack a spare, and all that were made are warm."""
        return self._places is None or not (self._known is None or self._unsure or self._warming)

    def stock(self, seconds: float = STOCK_SECONDS) -> None:
        """Wait, before there is any job, until every node has its spares, or so long."""
        by = time.monotonic() + seconds
        self._known = None
        while not self.complete and time.monotonic() < by:
            self.tend([])
            time.sleep(0.1)

    def _look_for_changes(self, reports: Iterable[JobReport], places: Iterable[Place]) -> None:
        """After any start of anybody, and with any new node, nobody knows who has how many spares."""
        jobs = {report.name: (report.pid, report.generation, report.recoveries) for report in reports}
        known = jobs, {place.node for place in places}
        if known != self._known:
            self._known, self._unsure = known, {place.node for place in places}
            self._asked.clear()
            self._had.clear()
            self._vain.clear()
            self._warming = {node: until for node, until in self._warming.items() if node in self._unsure}

    def _see_to(self, machine: str, places: Sequence[Place], at_once: int, now: float) -> None:
        """Ask how many spares nodes of a machine have. Once all have answered, and none gets warm any more, make some
        where most are missing."""
        if machine not in self._asked:
            doubtful = [place for place in places if place.node in self._unsure or place.node in self._warming]
            if doubtful:
                self._asked[machine] = [(place, self._ask(place)) for place in doubtful]
            return
        stocks = self._answers(self._asked[machine])
        if stocks is None:
            return
        del self._asked[machine]
        self._look_at[machine] = now + LOOK_SECONDS
        if self._still_warming(stocks, now):
            return
        missing = self._missing(stocks)
        for place, more in most_wanted(missing, at_once).items():
            self._had[place.node] = place.count - missing[place]
            self._begun.append(self._start(place, more))
            self._warming[place.node] = now + WARM_SECONDS

    def _still_warming(self, stocks: Mapping[Place, Stock | None], now: float) -> bool:
        """True if any of these nodes has spares that were made lately and are not warm."""
        for place, stock in stocks.items():
            if stock is None or not stock.warming or now >= self._warming.get(place.node, now):
                self._warming.pop(place.node, None)
        return any(place.node in self._warming for place in stocks)

    def _missing(self, stocks: Mapping[Place, Stock | None]) -> dict[Place, int]:
        """How many spares nodes lack; those that have all of them, or get no more, are left alone from now on."""
        missing: dict[Place, int] = {}
        for place, stock in stocks.items():
            before = self._had.pop(place.node, -1)
            self._vain[place.node] = self._vain[place.node] + 1 if stock is None or stock.spares <= before else 0
            if self._vain[place.node] >= IN_VAIN or (stock is not None and stock.spares >= place.count):
                self._unsure.discard(place.node)
            elif stock is not None:
                missing[place] = place.count - stock.spares
        return missing

    def _ask(self, place: Place) -> Any:
        """Ask how many spares a node has."""
        from rlpto.ray_cluster.reserve import start_reserve

        if place.node not in self._reserves:
            self._reserves[place.node] = start_reserve(place.node)
        return self._reserves[place.node].stock.remote()

    def _start(self, place: Place, count: int) -> Any:
        return self._reserves[place.node].start.remote(place.raylet, count)

    def _answers(self, asked: Iterable[tuple[Place, Any]]) -> dict[Place, Stock | None] | None:
        """Stock of every node, None of one that cannot be asked any more; None until all have answered."""
        import ray
        from ray.exceptions import RayError

        answers = [answer for _, answer in asked]
        if len(ray.wait(answers, num_returns=len(answers), timeout=0)[0]) < len(answers):
            return None
        stocks: dict[Place, Stock | None] = {}
        for place, answer in asked:
            try:
                stocks[place] = ray.get(answer)
            except RayError:  # the node is gone, or the actor
                self._reserves.pop(place.node, None)
                stocks[place] = None
        return stocks

    def _see_to_refusals(self) -> None:
        """Give up if a raylet does not start processes ahead, and never will."""
        if not self._begun:
            return
        import ray
        from ray.exceptions import RayError

        ready, self._begun = ray.wait(self._begun, num_returns=len(self._begun), timeout=0)
        for answer in ready:
            try:
                refusal = ray.get(answer)
            except RayError:
                continue  # the node is gone
            if refusal and self._places is not None:
                self._places = None
                warnings.warn(f"no processes are kept in reserve, Ray does not start them: {refusal}", stacklevel=2)


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
