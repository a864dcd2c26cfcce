"""What a real job was missing of its accuracy: by the accuracy that policies expect, and at its end by the true one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.jobs import Job
from rlpto.core.rewards import RewardWeights
from rlpto.core.stopping import StopRule
from rlpto.ray_cluster.messages import JobReport
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.job_columns import settle
from rlpto.ray_cluster.scheduler.job_knowledge import PolicyKnowledge
from rlpto.ray_cluster.scheduler.online_estimates import OnlineEstimates
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase, decision_records
from rlpto.ray_cluster.settings import ProgramSettings
from rlpto.store.program_keys import GuessSettings
from tests.builders import job as make_job
from tests.builders import linear_tables
from tests.ray_cluster.fakes import FakeBackend, FakeController, FakeTime
from tests.ray_cluster.sessions import Interrupted, elastic, make_cluster, play, run_until, specs
from tests.slow import few

FIRST, TRUE = 0.1, 0.7
share = st.floats(0.0, 1.0)
rows = st.lists(st.tuples(st.floats(-10.0, 1000.0), share), max_size=20)


class TestSettle:
    def test_a_job_misses_what_lies_between_its_best_accuracy_and_the_final_one(self) -> None:
        points = [(20.0, 0.3), (30.0, 0.2), (40.0, 0.5)]
        shortfall, reached = settle(points, 10.0, 60.0, first=0.1, final=0.5)
        assert shortfall == pytest.approx(10.0 * 1.0 + 20.0 * 0.5)
        assert reached.tolist() == [40.0] * 3
        shortfall, reached = settle(points, 10.0, 60.0, first=0.1, final=0.9)
        assert shortfall == pytest.approx(10.0 * 1.0 + 20.0 * 0.75 + 20.0 * 0.5)
        assert np.isnan(reached).all()
        assert settle(points, 10.0, 60.0, first=0.1, final=0.3)[0] == pytest.approx(10.0)

    def test_a_job_that_was_no_better_than_before_training_missed_all(self) -> None:
        for points in ([], [(20.0, 0.05)]):
            assert settle(points, 10.0, 60.0, first=0.1, final=0.5)[0] == pytest.approx(50.0)

    def test_a_job_that_was_cancelled_before_it_was_submitted_missed_nothing(self) -> None:
        assert settle([], 10.0, 5.0, first=0.1, final=0.5)[0] == 0.0

    @given(rows, share, share, share, st.floats(0.0, 900.0))
    def test_it_lies_within_the_life_of_the_job_and_grows_with_the_final_accuracy(
        self, points: list[tuple[float, float]], first: float, low: float, high: float, life: float
    ) -> None:
        points, low, high = sorted(points, key=lambda point: point[0]), min(low, high), max(low, high)
        less, earlier = settle(points, 5.0, 5.0 + life, first, low)
        more, later = settle(points, 5.0, 5.0 + life, first, high)
        assert -1e-9 <= less <= more + 1e-9 <= life + 2e-9
        for reached in (earlier, later):
            known = reached[~np.isnan(reached)]
            assert ((known >= 5.0) & (known <= 5.0 + life)).all()
            assert (np.diff(known) >= 0).all()
        assert not (later < earlier).any(), "what is more takes no less time"


@dataclass
class Learning(FakeBackend):
    """Controllers that evaluate after every epoch. final: of each job's curve. While `away` they note what they would
    report every second, and report it later."""

    final: dict[str, float] = field(default_factory=dict)
    notes: list[JobReport] = field(default_factory=list)

    def away(self, seconds: int) -> None:
        for _ in range(seconds):
            self.pass_time(1.0)
            self.notes += [replace(self.report(one), earlier=()) for one in self.controllers.values()]

    def accuracy(self, job: str, epochs: float) -> float:
        return FIRST + (self.final.get(job, TRUE) - FIRST) * (1 - float(np.exp(-epochs)))

    def report(self, controller: FakeController) -> JobReport:
        job, done = controller.spec.id, int(controller.progress)
        curve = tuple((float(epoch), self.accuracy(job, epoch)) for epoch in range(1, done + 1))
        known = curve[-1][1] if curve else np.nan
        earlier = tuple(note for note in self.notes if note.job == job)
        return replace(super().report(controller), accuracy=known, accuracy_curve=curve, earlier=earlier)


def learning(database: SessionDatabase, backend: Learning, jobs: list[Job], guess: float) -> RayCluster:
    """A cluster that estimates by its jobs' reports, and of their final accuracy a guess before."""
    program = ProgramSettings(
        training="some.module:Program", samples=100, epochs=20, batch_size=8, guess=GuessSettings(final=guess)
    )
    made = [replace(spec, stop=job.stop) for spec, job in zip(specs(jobs), jobs, strict=True)]
    tables = linear_tables(0.1, 8)
    curve = np.full((1, tables.accuracy.shape[1]), guess)
    curve[0, 0] = FIRST
    tables = replace(tables, accuracy=curve)
    knowledge = PolicyKnowledge(estimates=OnlineEstimates(jobs, made, {"m0": program}, tables, {"gpu": 8}))
    return make_cluster(backend, jobs, database, tables=tables, given=made, knowledge=knowledge)


def check(database: SessionDatabase) -> list[tuple[float, float, float]]:
    """Final accuracy, share gained and shortfall [s] of all jobs; their sums are those of the decisions."""
    rows = database.rows("SELECT final_accuracy, gained, shortfall FROM jobs ORDER BY number")
    decisions = decision_records(database, RewardWeights(accuracy=1.0, classes=(1.0, 1.0, 1.0)))
    assert decisions.shortfall.sum() == pytest.approx(sum(row[2] for row in rows), abs=1e-6)
    assert decisions.reward[:, 0].sum() == pytest.approx(sum(row[1] for row in rows), abs=1e-9)
    return rows


def missed(backend: Learning, job: str, epochs: int) -> float:
    """Seconds that a job alone was missing: of every epoch, which takes 10 s, what it was missing when that began."""
    last = backend.accuracy(job, epochs)
    return 10.0 * sum((last - backend.accuracy(job, epoch)) / (last - FIRST) for epoch in range(epochs))


@pytest.mark.parametrize("guess", few([0.95, 0.3], 0.3))
def test_the_reward_follows_what_policies_expect_and_ends_with_the_truth(
    guess: float, database: SessionDatabase
) -> None:
    backend = Learning(FakeTime(), {"n": 1})
    jobs = [elastic(0, epochs=20.0, most=1)]
    cluster = learning(database, backend, jobs, guess)
    missing = dict[str, float]()

    def look(when: str) -> Callable[[], None]:
        def note() -> None:
            missing[when] = 1.0 - float(cluster.columns.gained[0])
            seen = cluster.state().jobs
            assert cluster.store.final_accuracy[0] == pytest.approx(seen.final_accuracy[0], abs=0.02)

        return note

    late = Interrupted(cluster, 150.0, look("late"))
    record = play(Interrupted(late, 25.0, look("early")))
    if guess > TRUE:
        assert missing["early"] > 0.38, "by the guess 38 % will be missing even at the end"
    else:
        assert missing["early"] == 0.0, "by the guess all is gained"
    assert missing["late"] == pytest.approx(0.0, abs=0.02), "by the fitted curve it has converged"
    ((final, gained, shortfall),) = check(database)
    assert final == pytest.approx(backend.accuracy("job0", 20))
    assert gained == 1.0
    assert shortfall == pytest.approx(missed(backend, "job0", 20), abs=1.5)
    assert record.decisions.shortfall.sum() == pytest.approx(shortfall)
    assert record.jobs.reached_90[0] == pytest.approx(30.0, abs=1.5), "1 - exp(-3) is more than 90 %"
    assert record.jobs.reached_99[0] == pytest.approx(50.0, abs=1.5)


@pytest.mark.slow
def test_a_job_that_did_not_train_to_its_end_keeps_the_accuracy_that_was_expected(database: SessionDatabase) -> None:
    backend = Learning(FakeTime(), {"n": 3})
    jobs = [elastic(0, epochs=20.0, most=1), make_job(1, 0.0, 20.0, stop=StopRule()), elastic(2, epochs=20.0, most=1)]
    cluster = learning(database, backend, jobs, 0.95)

    def fail() -> None:
        controller = backend.controllers["job0"]
        controller.state, controller.holding, controller.failure = "failed", (), "ValueError: no good"

    play(Interrupted(cluster, 25.0, fail))
    failed, stopped, whole = check(database)
    assert failed[0] == pytest.approx(0.95, abs=0.002), "two epochs show no curve: the guess counts"
    assert failed[1] == pytest.approx((backend.accuracy("", 2) - FIRST) / (failed[0] - FIRST), abs=1e-6)
    assert stopped[0] == pytest.approx(TRUE, abs=0.01), "the fitted curve counts"
    assert 0.98 < stopped[1] <= 1.0
    assert whole[1] == 1.0


@pytest.mark.parametrize("leave", [False, True])
@pytest.mark.parametrize("guess", few([0.95, 0.3], 0.3))
def test_no_restart_loses_what_jobs_missed_or_counts_it_twice(leave: bool, guess: float, tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    backend = Learning(FakeTime(), {"n": 2}, final={"job1": 0.5})
    jobs = [elastic(0, epochs=6.0, most=1), elastic(1, 3.0, epochs=6.0), elastic(2, 4.0, epochs=3.0)]
    for time in (2.0, 13.7, 31.0):
        with SessionDatabase(path) as database:
            cluster = learning(database, backend, jobs, guess)
            if not cluster.done:
                run_until(cluster, time)
            if leave:
                cluster.close()
        backend.pass_time(2.0)
    with SessionDatabase(path) as database:
        cluster = learning(database, backend, jobs, guess)
        if not cluster.done:
            play(cluster)
        found = check(database)
    assert [row[1] for row in found] == [1.0] * 3
    for number, (_, _, shortfall) in enumerate(found):
        life = cluster.store.finish_time[number] - jobs[number].submit_time
        assert 0.0 < shortfall < life


def test_what_a_job_learnt_while_no_scheduler_was_there_counts_from_when_it_did(tmp_path: Path) -> None:
    backend, jobs = Learning(FakeTime(), {"n": 1}), [elastic(0, epochs=6.0, most=1)]
    with SessionDatabase(tmp_path / "state.sqlite") as database:
        run_until(learning(database, backend, jobs, 0.95), 5.0)
    backend.away(100)
    with SessionDatabase(tmp_path / "state.sqlite") as database:
        cluster = learning(database, backend, jobs, 0.95)
        assert cluster.done
        ((final, gained, shortfall),) = check(database)
    assert (final, gained) == (pytest.approx(backend.accuracy("job0", 6)), 1.0)
    assert shortfall == pytest.approx(missed(backend, "job0", 6), abs=3.0)


def test_a_cancelled_job_and_one_of_another_class_are_counted_once(database: SessionDatabase) -> None:
    backend = Learning(FakeTime(), {"n": 1})
    cluster = learning(database, backend, [elastic(i, epochs=6.0, most=1) for i in range(3)], 0.95)

    def change() -> None:
        with database.transaction():
            cluster.tracker.set_priority("job0", 0)
            cluster.tracker.cancel("job1")

    play(Interrupted(cluster, 25.0, change), "fifo")
    first, cancelled, last = check(database)
    assert first[1] == last[1] == 1.0
    assert cancelled[1] == 0.0
    assert cancelled[2] == pytest.approx(30.0, abs=0.2), "it was missing all while it waited"
