"""The claims: no GPU is ever promised twice, and every plan that fits is carried out in the end."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.messages import Command, JobReport, Plan
from rlpto.ray_cluster.scheduler.gpu_claims import GpuClaims
from rlpto.ray_cluster.scheduler.placement import place, place_as_chosen
from tests.ray_cluster.fakes import said

JOBS = ("a", "b", "c")


@pytest.mark.parametrize(
    ("present", "left"),
    [
        (("n", "m"), ["n"]),  # it gives up where it came last
        (("m", "n"), ["m"]),
        (("m", "o", "o"), ["o", "o"]),  # and empties the node with fewest of its GPUs
    ],
)
def test_who_shrinks_keeps_what_it_came_to_first_and_holds_most_of(present: tuple[str, ...], left: list[str]) -> None:
    assert place({"m": 1, "n": 1, "o": 2}, {"a": present}, {"a": len(left)}) == {"a": left}


def test_workers_that_a_policy_leaves_on_their_nodes_keep_their_order() -> None:
    present = {"a": ("n2", "n1", "n2"), "b": ("n1",)}
    chosen = {"a": np.array([1, 1, 1]), "b": np.array([1, 0, 0]), "c": np.array([0, 0, 2])}
    assert place_as_chosen(["n1", "n2", "n3"], present, chosen) == {"a": ["n2", "n1", "n3"], "c": ["n3", "n3"]}


class Planned:
    """Claims with plans whose commands are sent as far as there is room."""

    def __init__(self, **gpus: int) -> None:
        self.claims = GpuClaims(gpus)
        self._numbers = itertools.count(1)

    def plan(self, **targets: Plan) -> list[Command]:
        return self.claims.plan(targets, lambda: next(self._numbers))

    def send(self, **targets: Plan) -> list[Plan]:
        """What is sent once this is planned."""
        self.plan(**targets)
        return [command.plan for command in self.claims.due()]


class TestClaims:
    """What the machine below does not look at: that nothing is sent which is not needed."""

    def test_a_move_to_free_gpus_needs_no_stop_in_between(self) -> None:
        planned = Planned(m=1, n=1)
        planned.send(a=Plan(("m",)))
        assert planned.send(a=Plan(("n",))) == [Plan(("n",))]

    def test_a_plan_that_does_not_fit_is_refused_whole(self) -> None:
        planned = Planned(n=1)
        planned.send(a=Plan(("n",)))
        with pytest.raises(ClusterError, match="asks for 2 GPUs of node n, which has 1"):
            planned.plan(b=Plan(("n",)))
        assert planned.claims.entry("b").planned == Plan()

    def test_a_controller_that_forgot_gets_its_command_again(self) -> None:
        planned = Planned(n=1)
        planned.send(a=Plan(("n",)))
        claims = planned.claims
        claims.reported(said("a", 1, 1, ("n",)))
        assert claims.unconfirmed("a") is None
        claims.reported(said("a", 0, 0, ()))  # restarted
        assert claims.unconfirmed("a") == Command("a", 1, Plan(("n",)))

    def test_a_step_that_was_left_out_is_not_sent_after_a_restart(self) -> None:
        planned = Planned(m=1, n=1)
        planned.send(a=Plan(("m",)))
        steps = planned.plan(a=Plan(("n",)))
        (sent,) = planned.claims.due()  # there was room: no stop in between
        assert sent == steps[-1] != steps[0]
        restarted = GpuClaims({"m": 1, "n": 1})
        restarted.adopt("a", steps, unsent=[steps[0].generation])
        assert not list(restarted.due())
        assert restarted.entry("a").commanded == Plan(("n",))

    def test_a_plan_that_waits_counts_more_than_that_a_growth_was_given_up(self) -> None:
        planned = Planned(m=1, n=1, o=1)
        planned.send(a=Plan(("m", "o")))
        planned.claims.reported(said("a", 1, 1, ("m", "o")))
        planned.send(a=Plan(("m", "o", "n")))
        planned.claims.reported(replace(said("a", 2, 1, ("m", "o")), rolled_back=2))
        assert planned.claims.rolled_back("a")
        planned.plan(a=Plan(("m", "n")))  # o is gone; not sent yet
        assert not planned.claims.rolled_back("a")

    def test_ranks_of_workers_that_stay_keep_their_order(self) -> None:
        planned = Planned(m=2, n=2)
        planned.send(a=Plan(("n", "m")))
        assert planned.send(a=Plan(("m", "m", "n"))) == [Plan(("n", "m", "m"))]


@dataclass
class Controller:
    """As slow and as late as it may be: commands wait in its mailbox, workers start and end when they like."""

    inbox: deque[Command] = field(default_factory=deque)
    outbox: deque[JobReport] = field(default_factory=deque)
    generation: int = 0
    wanted: Plan = field(default_factory=Plan)
    workers: Counter[str] = field(default_factory=Counter)


class Machine(RuleBasedStateMachine):
    """A scheduler, controllers that answer late and out of order, nodes that come and go, restarts of both."""

    @initialize(gpus=st.lists(st.integers(1, 2), min_size=1, max_size=2))
    def begin(self, gpus: list[int]) -> None:
        self.nodes = {f"n{i}": count for i, count in enumerate(gpus)}
        self.new_node = len(gpus)
        self.claims = GpuClaims(self.nodes)
        self.generation = 0
        self.controllers: dict[str, Controller] = {}
        self.rows: dict[int, Command] = {}  # of the database, those that are not superseded
        self.sent: set[int] = set()

    def next_generation(self) -> int:
        self.generation += 1
        return self.generation

    def plan(self, targets: dict[str, Plan]) -> None:
        steps = self.claims.plan(targets, self.next_generation)
        self.supersede(lambda one: one.job in targets and one.generation not in self.sent)
        self.rows |= {step.generation: step for step in steps}
        self.send()

    def supersede(self, over: Callable[[Command], bool]) -> None:
        self.rows = {generation: one for generation, one in self.rows.items() if not over(one)}

    def send(self) -> None:
        for command in list(self.claims.due()):
            self.sent.add(command.generation)
            self.controllers.setdefault(command.job, Controller()).inbox.append(command)

    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        left = sum(self.nodes.values())
        wanted = {}
        for job in data.draw(st.permutations(JOBS)):
            wanted[job] = data.draw(st.integers(0, left))
            left -= wanted[job]
        present = {job: self.claims.entry(job).planned.nodes for job in JOBS}
        placed = place(self.claims.capacity, present, wanted)
        for job, count in wanted.items():
            assert len(placed.get(job, present[job])) == count
        sizes = st.sampled_from([None, 64, 128])
        self.plan({job: Plan(tuple(placed.get(job, present[job])), data.draw(sizes)) for job in JOBS})

    @rule(job=st.sampled_from(JOBS), hears=st.integers(0, 2), does=st.sampled_from(["nothing", "starts", "ends"]))
    def lives(self, job: str, hears: int, does: str) -> None:
        """A controller hears some of its commands, and starts or ends workers as the newest one it has heard says."""
        if (controller := self.controllers.get(job)) is None:
            return
        for _ in range(min(hears, len(controller.inbox))):
            command = controller.inbox.popleft()
            if command.generation > controller.generation:
                controller.generation, controller.wanted = command.generation, command.plan
        if does == "starts":
            controller.workers += (Counter(controller.wanted.nodes) - controller.workers) & Counter(self.nodes)
        elif does == "ends":
            controller.workers -= controller.workers - Counter(controller.wanted.nodes)

    @rule(job=st.sampled_from(JOBS))
    def say(self, job: str) -> None:
        controller = self.controllers.get(job)
        if controller is not None:
            holding, known = tuple((+controller.workers).elements()), controller.generation
            controller.outbox.append(said(job, known, known, holding))

    @rule(job=st.sampled_from(JOBS), late=st.booleans())
    def hear_report(self, job: str, late: bool) -> None:
        controller = self.controllers.get(job)
        if controller is not None and controller.outbox:
            self.claims.reported(controller.outbox.pop() if late else controller.outbox.popleft())
            if late:  # the backend drops the answers to earlier questions
                controller.outbox.clear()
            self.send()

    @rule(job=st.sampled_from(JOBS))
    def send_again(self, job: str) -> None:
        command = self.claims.unconfirmed(job)
        if command is not None:
            self.controllers.setdefault(job, Controller()).inbox.append(command)

    @rule(job=st.sampled_from(JOBS))
    def controller_dies(self, job: str) -> None:
        if self.controllers.pop(job, None) is not None:
            planned = self.claims.entry(job).planned
            self.claims.released(job)
            self.supersede(lambda one: one.job == job)
            self.plan({job: planned})

    @precondition(lambda self: len(self.nodes) > 1)
    @rule(data=st.data())
    def node_dies(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.nodes)))
        del self.nodes[node]
        for controller in self.controllers.values():
            del controller.workers[node]
        self.plan(self.claims.remove_nodes([node]))

    @rule(gpus=st.integers(1, 2))
    def node_comes(self, gpus: int) -> None:
        name, self.new_node = f"n{self.new_node}", self.new_node + 1
        self.nodes[name] = gpus
        self.claims.add_node(name, gpus)
        self.send()

    @rule()
    def scheduler_restarts(self) -> None:
        self.supersede(lambda one: one.job not in self.controllers)
        self.claims = GpuClaims(self.nodes)
        for job in self.controllers:
            commands = [one for _, one in sorted(self.rows.items()) if one.job == job]
            self.claims.adopt(job, commands, self.rows.keys() - self.sent)
        gone = {node for entry in self.claims.entries.values() for node in entry.planned.nodes} - self.nodes.keys()
        self.plan(self.claims.remove_nodes(gone))

    @invariant()
    def no_gpu_is_used_twice(self) -> None:
        used: Counter[str] = Counter()
        for controller in self.controllers.values():
            used += controller.workers
        for node, gpus in used.items():
            assert gpus <= self.nodes.get(node, 0)

    def teardown(self) -> None:
        """Once all answer in time, the plan is carried out."""
        for _ in range(8):
            for job in JOBS:
                self.send_again(job)
            for job, controller in list(self.controllers.items()):
                self.lives(job, hears=len(controller.inbox), does="nothing")
                controller.workers = Counter(
                    {node: n for node, n in Counter(controller.wanted.nodes).items() if node in self.nodes}
                )
                self.say(job)
                while controller.outbox:
                    self.hear_report(job, late=False)
            self.no_gpu_is_used_twice()
        for job in JOBS:
            controller = self.controllers.get(job, Controller())
            planned = self.claims.entry(job).planned
            assert +controller.workers == Counter(planned.nodes)
            # Nodes that stay keep their order, not that of the plan.
            assert not planned.nodes or controller.wanted.batch_size == planned.batch_size


TestNoGpuIsUsedTwice = Machine.TestCase
TestNoGpuIsUsedTwice.settings = settings(stateful_step_count=40)
