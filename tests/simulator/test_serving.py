"""A simulated cluster that serves: withdrawn, reclassed and forgotten jobs, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import DecideNow, Order, Reclass, Withdraw
from rlpto.core.jobs import Job
from rlpto.core.loop import DecisionLoop
from rlpto.core.queues import QueueSettings
from rlpto.policies.registry import make_policy
from rlpto.simulator.serving import ServingCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import job, linear_tables, make_cluster

Act = tuple[float, Job | Order]


class Script:
    """Users who do one thing after the other: [(second, job or order)]."""

    def __init__(self, acts: Sequence[Act]) -> None:
        self._left = list(acts)
        self.known_until = self._now = 0.0
        self._jobs: list[Job] = []
        self._orders: list[tuple[float, Order]] = []

    @property
    def closed(self) -> bool:
        return not self._left and not self._jobs

    def poll(self) -> list[Job]:
        given, self._jobs = self._jobs, []
        self.known_until = self._now if self._left else 1e12
        return given

    def wait(self) -> None:
        at, what = self._left.pop(0)
        self._now = at
        if isinstance(what, Job):
            self._jobs.append(what)
        else:
            self._orders.append((at, what))

    def orders(self, now: float) -> list[Order]:
        due = [order for at, order in self._orders if at <= now]
        self._orders = [(at, order) for at, order in self._orders if at > now]
        return due


def serve(acts: Sequence[Act], policy: str = "fifo", *, forget: bool = False) -> dict[str, tuple[float, float]]:
    """Start and finish of every job by name, and what has become of it."""
    shape = make_cluster([], linear_tables()).shape
    cluster = ServingCluster(
        shape, (), linear_tables(), SimulatorSettings(interval=60.0, decide_on="events"), source=Script(acts)
    )
    loop, decides, became = DecisionLoop(cluster, QueueSettings()), make_policy(policy), {}
    while not cluster.done:
        if cluster.active_jobs:
            state = loop.state()
            loop.carry_out(state, decides(state), policy)
            held = np.zeros(len(shape), dtype=np.int64)
            for number in state.jobs.index.tolist():
                np.add.at(held, cluster.nodes_of(number), 1)
            assert (held <= shape.node_gpus).all()
        loop.advance()
        for number, known in enumerate(cluster.jobs):
            became[known.name] = (float(cluster.store.start_time[number]), float(cluster.store.finish_time[number]))
        if forget:
            cluster.forget_ended()
    return became


def test_a_withdrawn_job_frees_its_gpus_at_the_next_decision() -> None:
    first, second = job(0, 0.0, epochs=20, gpus=8, max_gpus=8), job(1, 1.0, gpus=8, max_gpus=8)
    alone = serve([(0.0, first), (1.0, second)])
    cut = serve([(0.0, first), (1.0, second), (10.0, Withdraw("job0")), (20.0, DecideNow())])
    assert alone["job1"][0] == alone["job0"][1] == pytest.approx(250.0)
    assert np.isnan(cut["job0"][1])
    assert cut["job1"][0] == pytest.approx(60.0), "the interval's end is the first decision after the request"


def test_a_job_that_is_moved_to_a_higher_class_overtakes() -> None:
    jobs = [job(i, float(i), gpus=8, max_gpus=8) for i in range(3)]
    acts: list[Act] = [(own.submit_time, own) for own in jobs]
    assert serve(acts)["job1"][0] < serve(acts)["job2"][0]
    moved = serve([*acts, (3.0, Reclass("job2", 0)), (4.0, DecideNow())])
    assert moved["job2"][0] < moved["job1"][0]


@st.composite
def scripts(draw: st.DrawFn) -> list[Act]:
    at, acts, count = 0.0, [], 0
    for _ in range(draw(st.integers(1, 25))):
        at += draw(st.sampled_from([0.0, 1.0, 30.0, 500.0]))
        kind = draw(st.integers(0, 3)) if count else 0
        if kind <= 1:
            gpus = draw(st.integers(1, 4))
            acts.append((at, job(count, at, epochs=draw(st.floats(0.1, 5.0)), gpus=gpus, max_gpus=gpus)))
            count += 1
        else:
            name = f"job{draw(st.integers(0, count - 1))}"
            acts.append((at, Withdraw(name) if kind == 2 else Reclass(name, draw(st.integers(0, 2)))))
    return acts


@settings(max_examples=40, deadline=None)
@given(scripts(), st.sampled_from(["fifo", "equal_share", "round_robin"]))
def test_forgetting_changes_nothing(acts: list[Act], policy: str) -> None:
    np.testing.assert_equal(serve(acts, policy, forget=True), serve(acts, policy))
