"""Another policy while jobs run, and what a session leaves behind; with controllers in memory."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.experiments.switchable_policy import SwitchablePolicy
from rlpto.policies.registry import make_policy
from rlpto.policies.switching import switching
from rlpto.ray_cluster.scheduler.run_tables import decision_records, last_line, policy_switches, write_tables
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_folder import policy_answer, request_policy
from tests.ray_cluster.fakes import FakeBackend, FakeTime
from tests.ray_cluster.test_cluster import Interrupted, elastic, make_cluster


def ignore(policy: str, latency: float) -> None:
    """Not needed here."""


def in_session(database: SessionDatabase, spec: str = "fifo", deciding: Callable[[str, float], None] = ignore) -> Any:
    return SwitchablePolicy(database, make_policy, switching(make_policy(spec)), deciding)


def play(
    tmp_path: Path, at: float = 0.0, request: str = "", spec: str = "fifo"
) -> tuple[RunRecord, SessionDatabase, Any]:
    backend = FakeBackend(FakeTime(), {"m": 2, "n": 2})
    database = SessionDatabase(tmp_path / "state.sqlite")
    cluster = make_cluster(backend, [elastic(0, epochs=8.0), elastic(1, 2.0), elastic(2, 3.0)], database)
    policy = in_session(database, spec, cluster.deciding)

    def ask() -> None:
        if request:
            request_policy(database.path, request)

    asked: Any = Interrupted(cluster, at, ask)
    return run(asked, policy, QueueSettings(), RewardWeights()), database, policy


class TestSwitching:
    def test_decisions_before_are_of_the_one_policy_and_those_after_of_the_other(self, tmp_path: Path) -> None:
        _, database, policy = play(tmp_path, 10.0, "equal_share")
        with database:
            switches = [event for event in database.events() if event[1] == "policy"]
            assert [event[5] for event in switches] == ["fifo -> equal_share"]
            taken = database.deciders()
            assert all(policy == ("fifo" if time < switches[0][0] else "equal_share") for time, policy in taken)
            assert policy_answer(database.path, 1) == ""
        assert policy.name == "fifo"

    def test_a_policy_that_does_not_exist_changes_nothing_and_is_answered(self, tmp_path: Path) -> None:
        record, database, _ = play(tmp_path, 10.0, "no_such")
        with database:
            assert str(policy_answer(database.path, 1)).startswith("no policy 'no_such'")
            assert not [event for event in database.events() if event[1] == "policy"]
        assert np.isfinite(record.jobs.finish_time).all()

    def test_a_restarted_scheduler_takes_up_the_policy_it_was_switched_to(self, tmp_path: Path) -> None:
        _, database, _ = play(tmp_path, 10.0, "equal_share")
        with database:
            again = switching(make_policy("fifo"))
            SwitchablePolicy(database, make_policy, again).reset(0)
            (switched,) = [event[0] for event in database.events() if event[1] == "policy"]
            assert again.present(switched).name == "equal_share"
            assert again.present(switched - 1e-6).name == "fifo"

    def test_set_times_are_noted_like_requests_and_a_request_holds_until_the_next_one(self, tmp_path: Path) -> None:
        record, database, policy = play(tmp_path, 4.0, "srtf", "fifo>20:equal_share")
        with database:
            switches = [(event[0], event[5]) for event in database.events() if event[1] == "policy"]
            assert [detail for _, detail in switches] == ["fifo -> srtf", "srtf -> equal_share"]
            assert switches[1][0] >= 20.0
            kept = policy_switches(database)
        assert kept.policy == ("fifo", "srtf", "equal_share")
        assert kept.time[1:].tolist() == [time for time, _ in switches]
        assert policy.name == record.policy == "fifo>20:equal_share"
        assert np.isfinite(record.jobs.finish_time).all()


class TestTables:
    def test_allocation_by_node_never_exceeds_a_node_and_ends_empty(self, tmp_path: Path) -> None:
        _, database, _ = play(tmp_path)
        with database:
            write_tables(database, tmp_path)
        held: dict[str, dict[str, int]] = {}
        with (tmp_path / "allocation_by_node.csv").open() as file:
            for row in csv.DictReader(file):
                held.setdefault(row["node_id"], {})[row["job"]] = int(row["gpus"])
                assert sum(held[row["node_id"]].values()) <= 2
        assert held.keys() == {"m", "n"}
        assert sum(sum(jobs.values()) for jobs in held.values()) == 0

    def test_decisions_in_the_database_are_those_of_the_loop(self, tmp_path: Path) -> None:
        record, database, _ = play(tmp_path)
        with database:
            kept = decision_records(database, RewardWeights())
        assert kept.time.tolist() == record.decisions.time.tolist()
        assert kept.held.tolist() == record.decisions.held.tolist()
        assert kept.waiting.tolist() == record.decisions.waiting.tolist()
        assert kept.reward.sum() == pytest.approx(record.decisions.reward.sum())

    def test_pauses_are_listed_with_their_seconds(self, tmp_path: Path) -> None:
        _, database, _ = play(tmp_path, 1.0, "equal_share")
        with database:
            write_tables(database, tmp_path)
        with (tmp_path / "rescale_pauses.csv").open() as file:
            pauses = [float(row["pause_s"]) for row in csv.DictReader(file)]
        assert pauses
        assert set(pauses) == {0.05}


def test_the_last_line_of_a_traceback_is_what_was_raised() -> None:
    assert last_line("Traceback\n  File ...\nValueError: no good\n") == "ValueError: no good"
    assert last_line("") == "no reason given"
