"""The ledger: no GPU is ever promised twice, and every plan that fits is carried out in the end."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlpto.errors import ClusterError
from rlpto.ray_cluster.scheduler.gpu_claims import Command, Ledger
from rlpto.ray_cluster.scheduler.placement import place
from rlpto.ray_cluster.scheduler.reconcile import reopen

JOBS = ("a", "b", "c")


def numbers() -> itertools.count[int]:
    return itertools.count(1)


class TestPlace:
    def test_who_shrinks_gives_up_where_it_came_last(self) -> None:
        gpus = {"m": 1, "n": 1, "o": 2}
        assert place(gpus, {"a": ("n", "m")}, {"a": 1}) == {"a": ["n"]}
        assert place(gpus, {"a": ("m", "n")}, {"a": 1}) == {"a": ["m"]}

    def test_who_shrinks_empties_the_node_with_fewest_of_its_gpus(self) -> None:
        assert place({"m": 1, "o": 2}, {"a": ("m", "o", "o")}, {"a": 2}) == {"a": ["o", "o"]}


class TestLedger:
    def test_growers_wait_until_shrinkers_have_let_go(self) -> None:
        ledger, generation = Ledger({"n": 2}), numbers()
        ledger.plan({"a": ("n", "n")}, lambda: next(generation))
        assert [command.job for command in ledger.due()] == ["a"]
        ledger.reported("a", 1, 1, ("n", "n"), time=1.0)
        ledger.plan({"a": ("n",), "b": ("n",)}, lambda: next(generation))
        assert [(command.job, command.nodes) for command in ledger.due()] == [("a", ("n",))]
        ledger.reported("a", 2, 1, ("n", "n"), time=2.0)  # it has heard, and still holds both
        assert not list(ledger.due())
        ledger.reported("a", 2, 2, ("n",), time=3.0)
        assert [(command.job, command.nodes) for command in ledger.due()] == [("b", ("n",))]

    def test_a_report_from_before_a_command_does_not_free_what_the_command_may_take(self) -> None:
        ledger, generation = Ledger({"n": 1}), numbers()
        ledger.plan({"a": ("n",)}, lambda: next(generation))
        list(ledger.due())
        ledger.reported("a", 0, 0, (), time=1.0)  # said before the command arrived
        ledger.plan({"a": (), "b": ("n",)}, lambda: next(generation))
        assert [(command.job, command.nodes) for command in ledger.due()] == [("a", ())]
        ledger.reported("a", 0, 0, (), time=2.0)
        assert not list(ledger.due())

    def test_two_jobs_that_swap_places_both_get_there(self) -> None:
        ledger, generation = Ledger({"m": 1, "n": 1}), numbers()
        ledger.plan({"a": ("m",), "b": ("n",)}, lambda: next(generation))
        list(ledger.due())
        ledger.reported("a", 1, 1, ("m",), 1.0)
        ledger.reported("b", 2, 2, ("n",), 1.0)
        steps = ledger.plan({"a": ("n",), "b": ("m",)}, lambda: next(generation))
        assert [(step.job, step.nodes) for step in steps] == [("a", ()), ("a", ("n",)), ("b", ()), ("b", ("m",))]
        assert {command.nodes for command in ledger.due()} == {()}
        ledger.reported("a", 3, 3, (), 2.0)
        ledger.reported("b", 5, 5, (), 2.0)
        assert {(command.job, command.nodes) for command in ledger.due()} == {("a", ("n",)), ("b", ("m",))}

    def test_a_move_to_free_gpus_needs_no_stop_in_between(self) -> None:
        ledger, generation = Ledger({"m": 1, "n": 1}), numbers()
        ledger.plan({"a": ("m",)}, lambda: next(generation))
        list(ledger.due())
        ledger.plan({"a": ("n",)}, lambda: next(generation))
        assert [command.nodes for command in ledger.due()] == [("n",)]

    def test_a_plan_that_does_not_fit_is_refused_whole(self) -> None:
        ledger, generation = Ledger({"n": 1}), numbers()
        ledger.plan({"a": ("n",)}, lambda: next(generation))
        with pytest.raises(ClusterError, match="asks for 2 GPUs of node n, which has 1"):
            ledger.plan({"b": ("n",)}, lambda: next(generation))
        assert ledger.entry("b").planned == ()

    def test_an_older_report_that_comes_late_is_ignored(self) -> None:
        ledger = Ledger({"n": 1})
        assert ledger.reported("a", 2, 2, (), time=5.0)
        assert not ledger.reported("a", 1, 1, ("n",), time=4.0)
        assert ledger.entry("a").holding == ()

    def test_a_runner_that_forgot_is_told_again(self) -> None:
        ledger, generation = Ledger({"n": 1}), numbers()
        ledger.plan({"a": ("n",)}, lambda: next(generation))
        (command,) = ledger.due()
        ledger.reported("a", 1, 1, ("n",), 1.0)
        assert ledger.unconfirmed("a") is None
        ledger.reported("a", 0, 0, (), 2.0)  # restarted
        assert ledger.unconfirmed("a") == command

    def test_ranks_of_those_who_stay_keep_their_order(self) -> None:
        ledger, generation = Ledger({"m": 2, "n": 2}), numbers()
        ledger.plan({"a": ("n", "m")}, lambda: next(generation))
        list(ledger.due())
        ledger.plan({"a": ("m", "m", "n")}, lambda: next(generation))
        assert [command.nodes for command in ledger.due()] == [("n", "m", "m")]


@dataclass
class Runner:
    """A runner as slow and as late as it may be: commands wait in its mailbox, workers start and end when they like."""

    inbox: deque[Command] = field(default_factory=deque)
    outbox: deque[tuple[float, int, int, tuple[str, ...]]] = field(default_factory=deque)
    generation: int = 0
    wanted: tuple[str, ...] = ()
    workers: Counter[str] = field(default_factory=Counter)


@dataclass
class Row:
    """A command in the books."""

    command: Command
    state: str = "planned"


class Machine(RuleBasedStateMachine):
    """A scheduler, runners that answer late and out of order, nodes that come and go, restarts of both."""

    @initialize(gpus=st.lists(st.integers(1, 2), min_size=1, max_size=2))
    def begin(self, gpus: list[int]) -> None:
        self.nodes = {f"n{i}": count for i, count in enumerate(gpus)}
        self.new_node = len(gpus)
        self.ledger = Ledger(self.nodes)
        self.generation = 0
        self.clock = 0.0
        self.runners: dict[str, Runner] = {}
        self.rows: dict[int, Row] = {}

    def next_generation(self) -> int:
        self.generation += 1
        return self.generation

    def plan(self, targets: dict[str, tuple[str, ...]]) -> None:
        steps = self.ledger.plan(targets, self.next_generation)
        for row in self.rows.values():
            if row.command.job in targets and row.state == "planned":
                row.state = "superseded"
        for step in steps:
            self.rows[step.generation] = Row(step)
        self.send()

    def send(self) -> None:
        for command in list(self.ledger.due()):
            self.rows[command.generation].state = "commanded"
            self.runners.setdefault(command.job, Runner()).inbox.append(command)

    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        left = sum(self.nodes.values())
        wanted = {}
        for job in data.draw(st.permutations(JOBS)):
            wanted[job] = data.draw(st.integers(0, left))
            left -= wanted[job]
        present = {job: self.ledger.entry(job).planned for job in JOBS}
        placed = place(self.ledger.capacity, present, wanted)
        for job, count in wanted.items():
            assert len(placed.get(job, present[job])) == count
        self.plan({job: tuple(nodes) for job, nodes in placed.items()})

    @rule(job=st.sampled_from(JOBS), hears=st.integers(0, 2), does=st.sampled_from(["nothing", "starts", "ends"]))
    def lives(self, job: str, hears: int, does: str) -> None:
        """A runner hears some of its commands, and starts or ends workers as the newest one it has heard says."""
        if (runner := self.runners.get(job)) is None:
            return
        for _ in range(min(hears, len(runner.inbox))):
            command = runner.inbox.popleft()
            if command.generation > runner.generation:
                runner.generation, runner.wanted = command.generation, command.nodes
        if does == "starts":
            runner.workers += (Counter(runner.wanted) - runner.workers) & Counter(self.nodes)
        elif does == "ends":
            runner.workers -= runner.workers - Counter(runner.wanted)

    @rule(job=st.sampled_from(JOBS))
    def say(self, job: str) -> None:
        runner = self.runners.get(job)
        if runner is not None:
            self.clock += 1.0
            holding = tuple((+runner.workers).elements())
            runner.outbox.append((self.clock, runner.generation, runner.generation, holding))

    @rule(job=st.sampled_from(JOBS), late=st.booleans())
    def hear_report(self, job: str, late: bool) -> None:
        runner = self.runners.get(job)
        if runner is not None and runner.outbox:
            time, generation, applied, holding = runner.outbox.pop() if late else runner.outbox.popleft()
            self.ledger.reported(job, generation, applied, holding, time)
            self.send()

    @rule(job=st.sampled_from(JOBS))
    def tell_again(self, job: str) -> None:
        command = self.ledger.unconfirmed(job)
        if command is not None:
            self.runners.setdefault(job, Runner()).inbox.append(command)

    @rule(job=st.sampled_from(JOBS))
    def runner_dies(self, job: str) -> None:
        if self.runners.pop(job, None) is not None:
            planned = self.ledger.entry(job).planned
            self.ledger.released(job)
            for row in self.rows.values():
                if row.command.job == job:
                    row.state = "superseded"
            self.plan({job: planned})

    @precondition(lambda self: len(self.nodes) > 1)
    @rule(data=st.data())
    def node_dies(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.nodes)))
        del self.nodes[node]
        for runner in self.runners.values():
            del runner.workers[node]
        self.plan(self.ledger.remove_nodes([node]))

    @rule(gpus=st.integers(1, 2))
    def node_comes(self, gpus: int) -> None:
        name, self.new_node = f"n{self.new_node}", self.new_node + 1
        self.nodes[name] = gpus
        self.ledger.add_node(name, gpus)
        self.send()

    @rule()
    def scheduler_restarts(self) -> None:
        commands: dict[str, list[Command]] = {}
        for _, row in sorted(self.rows.items()):
            if row.state != "superseded":
                commands.setdefault(row.command.job, []).append(row.command)
        unsent = {generation for generation, row in self.rows.items() if row.state == "planned"}
        there = [job for job in JOBS if job in self.runners]
        found = reopen(self.nodes, JOBS, JOBS, commands, unsent, there)
        self.ledger = found.ledger
        for job in JOBS:
            if job not in there:
                for row in self.rows.values():
                    if row.command.job == job:
                        row.state = "superseded"
        gone = {node for entry in self.ledger.entries.values() for node in entry.planned} - self.nodes.keys()
        self.plan(self.ledger.remove_nodes(gone))

    @invariant()
    def no_gpu_is_used_twice(self) -> None:
        used: Counter[str] = Counter()
        for runner in self.runners.values():
            used += runner.workers
        for node, gpus in used.items():
            assert gpus <= self.nodes.get(node, 0)

    def teardown(self) -> None:
        """Once everybody answers in time, the plan comes to be."""
        for _ in range(8):
            for job in JOBS:
                self.tell_again(job)
            for job, runner in list(self.runners.items()):
                self.lives(job, hears=len(runner.inbox), does="nothing")
                runner.workers = Counter({node: n for node, n in Counter(runner.wanted).items() if node in self.nodes})
                self.say(job)
                while runner.outbox:
                    self.hear_report(job, late=False)
            self.no_gpu_is_used_twice()
        for job in JOBS:
            workers = self.runners[job].workers if job in self.runners else Counter()
            assert +workers == Counter(self.ledger.entry(job).planned)


TestNoGpuIsUsedTwice = Machine.TestCase
TestNoGpuIsUsedTwice.settings = settings(max_examples=150, stateful_step_count=40)
