"""Another policy while jobs run, and what a session leaves behind; with controllers in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.runner import Cell
from rlpto.experiments.on_ray import restored_policies, session_folder
from rlpto.experiments.session_loop import SessionLoop
from rlpto.experiments.switchable_policy import SCHEDULER, SwitchablePolicy
from rlpto.policies.registry import make_policy
from rlpto.policies.spec import policy_label
from rlpto.policies.switching import switching
from rlpto.ray_cluster.messages import raised_in
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_folder import DATABASE
from rlpto.ray_cluster.scheduler.session_records import decision_records, policy_switches
from rlpto.store.requests import add_switch, ask, get_request
from tests.ray_cluster.fakes import FakeBackend, FakeTime, events_of
from tests.ray_cluster.test_cluster import Interrupted, elastic, make_cluster


def play(tmp_path: Path, at: float = 0.0, request: str = "", spec: str = "fifo") -> tuple[RayCluster, SwitchablePolicy]:
    """A session that is asked for another policy at a time [s]."""
    database = SessionDatabase(tmp_path / "state.sqlite")
    jobs = [elastic(0, epochs=8.0), elastic(1, 2.0), elastic(2, 3.0)]
    cluster = make_cluster(FakeBackend(FakeTime(), {"m": 2, "n": 2}), jobs, database)
    policy = SwitchablePolicy(database, make_policy, switching(make_policy(spec)), cluster.deciding)
    body = {"policy": request}
    asked: Any = Interrupted(cluster, at, lambda: request and ask(database, "policy", "a command", 0.0, body=body))
    loop = SessionLoop(asked, policy, QueueSettings())
    while not cluster.done:
        loop.step()
    return cluster, policy


def problem_of(database: SessionDatabase) -> str | None:
    """What the scheduler said to the only request."""
    asked = get_request(database, 1)
    assert asked is not None
    return asked.problem


class TestSwitching:
    def test_decisions_before_are_of_the_one_policy_and_those_after_of_the_other(self, tmp_path: Path) -> None:
        cluster, policy = play(tmp_path, 10.0, "equal_share")
        with cluster.database as database:
            switches = [event for event in events_of(database) if event[1] == "policy"]
            assert [event[5] for event in switches] == ["fifo -> equal_share"]
            taken = database.rows("SELECT time, policy FROM decisions ORDER BY seq")
            assert all(policy == ("fifo" if time < switches[0][0] else "equal_share") for time, policy in taken)
            assert problem_of(database) == ""
        assert policy.name == "fifo"

    def test_a_policy_that_does_not_exist_changes_nothing_and_is_answered(self, tmp_path: Path) -> None:
        cluster, _ = play(tmp_path, 10.0, "no_such")
        with cluster.database as database:
            assert str(problem_of(database)).startswith("no policy 'no_such'")
            assert not [event for event in events_of(database) if event[1] == "policy"]
        assert np.isfinite(cluster.store.finish_time).all()

    def test_a_restarted_scheduler_takes_up_the_policy_it_was_switched_to(self, tmp_path: Path) -> None:
        cluster, _ = play(tmp_path, 10.0, "equal_share")
        with cluster.database as database:
            again = switching(make_policy("fifo"))
            SwitchablePolicy(database, make_policy, again).reset(0)
            (switched,) = [event[0] for event in events_of(database) if event[1] == "policy"]
            assert again.present(switched).name == "equal_share"
            assert again.present(switched - 1e-6).name == "fifo"

    def test_set_times_are_noted_like_requests_and_a_request_holds_until_the_next_one(self, tmp_path: Path) -> None:
        cluster, policy = play(tmp_path, 4.0, "srtf", "fifo>20:equal_share")
        with cluster.database as database:
            switches = [(event[0], event[5]) for event in events_of(database) if event[1] == "policy"]
            assert [detail for _, detail in switches] == ["fifo -> srtf", "srtf -> equal_share"]
            assert switches[1][0] >= 20.0
            kept = policy_switches(database)
        assert kept.policy == ("fifo", "srtf", "equal_share")
        assert kept.time[1:].tolist() == [time for time, _ in switches]
        assert policy.name == "fifo>20:equal_share"
        assert np.isfinite(cluster.store.finish_time).all()


def test_decisions_in_the_database_are_those_of_the_loop(tmp_path: Path) -> None:
    backend = FakeBackend(FakeTime(), {"m": 2, "n": 2})
    with SessionDatabase(tmp_path / "state.sqlite") as database:
        jobs = [elastic(0, epochs=8.0), elastic(1, 2.0), elastic(2, 3.0)]
        record = run(make_cluster(backend, jobs, database), make_policy("fifo"), QueueSettings(), RewardWeights())
        kept = decision_records(database, RewardWeights())
    assert kept.time.tolist() == record.decisions.time.tolist()
    assert kept.held.tolist() == record.decisions.held.tolist()
    assert kept.waiting.tolist() == record.decisions.waiting.tolist()
    assert kept.reward.sum() == pytest.approx(record.decisions.reward.sum())


def test_what_an_earlier_session_was_switched_to_is_compiled_before_jobs_are_scheduled(tmp_path: Path) -> None:
    cells = [Cell("index:label=agent", "jobs", 0), Cell("las", "jobs", 0)]
    for cell in cells:
        with SessionDatabase(session_folder(tmp_path, cell) / DATABASE) as database:
            add_switch(database, policy_label(cell.policy), SCHEDULER, "the first start", 0.0, 0.0)
            if cell.policy == "las":
                for policy in ("equal_share", "srtf"):
                    add_switch(database, policy, "ann", "", 0.0, 0.0)
    assert restored_policies(tmp_path, cells) == ["srtf"]


def test_what_was_raised_follows_the_frames_of_a_traceback() -> None:
    trace = "Traceback\n  File ...\n    f()\nValueError: no good\n"
    assert raised_in(trace) == raised_in(f"{trace}second line\nthird") == "ValueError: no good"
    assert raised_in("the cause\n  File ...\nwhat it was") == "what it was"
    assert raised_in("") == "no reason given"
