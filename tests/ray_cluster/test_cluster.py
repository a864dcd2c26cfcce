"""The scheduler's loop over a real-time cluster, with controllers in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.rewards import RewardWeights
from rlpto.io.errors import ClusterError, JobError
from rlpto.performance.size_table import largest_sizes
from rlpto.policies.registry import make_policy
from rlpto.ray_cluster.messages import JobReport, KeptTraining
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.job_columns import JobColumns
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_rules import Clock, SessionRules
from rlpto.ray_cluster.settings import RaySettings
from rlpto.store.curves import spans_between
from rlpto.store.status import NodeRow, nodes
from tests.builders import Scripted, linear_tables, with_batch_sizes
from tests.ray_cluster.fakes import FakeBackend, FakeTime, events_of
from tests.ray_cluster.sessions import Interrupted, elastic, make_cluster, play, run_until, specs

CHOOSING = "max_throughput:choose_batch_size=true"


class TestClocks:
    @pytest.mark.parametrize("jump", [-3600.0, 3600.0])
    def test_a_clock_that_jumps_on_the_controllers_machine_changes_nothing(
        self, jump: float, database: SessionDatabase
    ) -> None:
        world = FakeTime()
        backend = FakeBackend(world, {"n": 2}, clock_jumps=(world.wall + 20.0, jump))
        jobs = [elastic(0, epochs=20.0), elastic(1, epochs=20.0)]
        cluster = make_cluster(backend, jobs, database, SessionRules(limit=1e4))
        record = play(cluster)
        assert np.isfinite(record.jobs.finish_time).all(), "reports from before the jump hide all that come after it"
        assert record.jobs.finish_time.max() == pytest.approx(cluster.time, abs=0.2)
        times = [event[0] for event in events_of(database)]
        assert times == sorted(times)
        assert times[-1] <= cluster.time

    def test_a_session_is_gone_on_with_from_where_it_was_after_the_clock_went_back(self) -> None:
        began = time.time() + 3600.0  # by the clock as it was
        clock = Clock(began, 50.0)
        assert 50.0 <= clock.now() < 60.0
        assert clock.began < began
        assert Clock(time.time() - 80.0, 50.0).now() >= 80.0


class TestRun:
    def test_jobs_run_to_their_end_and_the_record_adds_up(self, database: SessionDatabase) -> None:
        backend = FakeBackend(FakeTime(), {"m": 2, "n": 2})
        jobs = [elastic(0), elastic(1, 5.0), elastic(2, 5.5), elastic(3, 30.0)]
        record = play(make_cluster(backend, jobs, database))
        done = record.jobs
        assert np.isfinite(done.finish_time).all()
        assert (done.start_time >= done.submit_time).all()
        assert (done.finish_time > done.start_time).all()
        # 0.1 epochs/s a GPU: 40 GPU-seconds of training each, and some in which GPUs are held without training.
        assert (done.gpu_seconds >= 40.0 - 1.0).all()
        assert (done.gpu_seconds <= 48.0).all()
        assert done.peak_gpus.max() == 4
        changes = record.changes
        for i in range(len(jobs)):
            mine = changes.job == i
            assert changes.gpus[mine][-1] == 0
            held = changes.gpus[mine][:-1] @ np.diff(changes.time[mine])
            assert held == pytest.approx(done.gpu_seconds[i], abs=0.5)
        weights, parts = RewardWeights(), record.decisions.reward.sum(axis=0)
        assert parts[0] == pytest.approx(len(jobs) * weights.classes[1] * weights.accuracy)
        completion = (done.finish_time - done.submit_time).sum()
        assert -parts[1] == pytest.approx(weights.time * completion / 3600, rel=0.05)
        assert not backend.controllers

    def test_levels_of_accuracy_are_noted_as_they_are_measured(self, database: SessionDatabase) -> None:
        backend = FakeBackend(FakeTime(), {"n": 4})
        record = play(make_cluster(backend, [elastic(0), elastic(1, 3.0)], database))
        jobs = record.jobs
        times = np.stack([jobs.start_time, jobs.reached_90, jobs.reached_95, jobs.reached_99, jobs.finish_time])
        assert (np.diff(times, axis=0) >= 0).all()
        most = (jobs.reached_90 - jobs.submit_time).sum() + 0.1 * (jobs.finish_time - jobs.reached_90).sum()
        assert 0.1 * (jobs.reached_90 - jobs.submit_time).sum() < record.decisions.shortfall.sum() < 1.05 * most
        cluster = make_cluster(backend, [elastic(0), elastic(1, 3.0)], database)  # a scheduler that comes back knows
        assert cluster.store.reached.T.tolist() == times[1:4].tolist()

    def test_decisions_on_intervals_come_at_their_ends_only(self, database: SessionDatabase) -> None:
        backend = FakeBackend(FakeTime(), {"n": 4})
        record = play(make_cluster(backend, [elastic(0), elastic(1, 3.0)], database, SessionRules(10.0, "interval")))
        assert record.decisions.time % 10.0 == pytest.approx(0.0, abs=0.11)
        assert record.jobs.start_time[0] >= 10.0

    def test_a_limit_ends_the_run_with_jobs_left(self, database: SessionDatabase) -> None:
        backend = FakeBackend(FakeTime(), {"n": 1})
        rules = SessionRules(10.0, limit=25.0)
        record = play(make_cluster(backend, [elastic(0, epochs=100.0, most=1)], database, rules))
        assert np.isnan(record.jobs.finish_time).all()
        assert record.decisions.time.max() <= 25.0

    def test_a_controller_starts_while_others_make_room_for_its_workers(self, database: SessionDatabase) -> None:
        backend = FakeBackend(FakeTime(), {"n": 2})
        cluster = make_cluster(backend, [elastic(0, epochs=10.0), elastic(1, 5.0)], database)
        seen = []

        def look() -> None:
            seen.append((backend.controllers["job0"].holding, backend.controllers["job1"].generation))
            backend.deaf.clear()

        deaf = Interrupted(cluster, 4.0, lambda: backend.deaf.add("job0"))
        play(Interrupted(deaf, 6.0, look))
        assert seen == [(("n", "n"), 0)], "the second job has a controller, and no command to take what is not free"
        # What was not heard is sent again.
        assert cluster.columns.finished.all()

    def test_policies_see_measured_accuracies(self, database: SessionDatabase) -> None:
        backend = FakeBackend(FakeTime(), {"n": 1})
        cluster = make_cluster(backend, [elastic(0, most=1)], database)
        policy, seen = make_policy("fifo"), list[ClusterState]()

        def look(state: ClusterState) -> Allocation:
            seen.append(state)
            return policy(state)

        play(cluster, Scripted(look))
        last = seen[-1].jobs
        assert last.accuracy[0] == pytest.approx(0.1 + 0.2 * last.progress[0], abs=0.01)
        again = last.reordered(np.array([0]), last.effective_priority)  # as things stand now, at the end
        assert again.accuracy[0] == pytest.approx(0.1 + 0.2 * again.progress[0], abs=0.01)


class TestBatchSizes:
    """Of jobs whose program trains twice as fast with 16 samples a step, as far as policies know."""

    TABLES = with_batch_sizes(linear_tables(0.1, 8), {16: 2.0})

    def test_controllers_get_what_the_policy_chose_and_a_scheduler_that_comes_back_knows_it(
        self, database: SessionDatabase
    ) -> None:
        backend = FakeBackend(FakeTime(), {"m": 2, "n": 2})
        jobs = [elastic(0, epochs=50.0, most=2), elastic(1, 5.0, epochs=50.0, most=2)]
        run_until(make_cluster(backend, jobs, database, tables=self.TABLES), 15.0, CHOOSING)
        assert {job: one.plan.batch_size for job, one in backend.controllers.items()} == {"job0": 16, "job1": 16}
        ((action, sizes),) = database.rows("SELECT action, batch_sizes FROM decisions ORDER BY seq LIMIT 1")
        assert (json.loads(action), json.loads(sizes)) == ({"job0": 2}, {"job0": 16})
        generation = max(controller.generation for controller in backend.controllers.values())
        again = make_cluster(backend, jobs, database, tables=self.TABLES)
        seen = again.state().jobs
        assert seen.type_index.tolist() == [1, 1]
        assert seen.speed[:, 1].tolist() == pytest.approx([0.2, 0.2])
        run_until(again, again.time + 15.0, CHOOSING)
        assert max(controller.generation for controller in backend.controllers.values()) == generation

    def test_a_new_batch_size_alone_is_no_rescale_and_stops_no_worker(self, database: SessionDatabase) -> None:
        backend = FakeBackend(FakeTime(), {"n": 2})
        cluster = make_cluster(backend, [elastic(0, epochs=9.0)], database, tables=self.TABLES)
        sizes = iter([0, 16, 0, 16])

        def decide(_: ClusterState) -> Allocation:
            return Allocation(np.array([2]), batch_size=np.array([next(sizes, 0)]))

        record = play(cluster, Scripted(decide))
        assert [command.batch_size for command in backend.commanded["job0"]] == [None, 16, None, 16, None]
        assert (record.jobs.rescales.tolist(), record.changes.gpus.tolist()) == ([0], [2, 0])


class TestFaults:
    def test_a_job_whose_node_dies_goes_on_with_what_is_left_and_capacity_shrinks(
        self, database: SessionDatabase
    ) -> None:
        backend = FakeBackend(FakeTime(), {"l": 1, "m": 2, "n": 2})
        cluster = make_cluster(backend, [elastic(0, epochs=10.0, most=5)], database)
        play(Interrupted(cluster, 12.0, lambda: [backend.kill_node(node) for node in ("m", "n")]))
        kinds = [event[1] for event in events_of(database)]
        assert kinds.count("node_down") == 2
        assert "finished" in kinds
        assert (cluster.up_gpus, cluster.shape.capacity) == (1, 5)

    def test_a_node_that_does_not_answer_gets_nothing_until_it_does(self, tmp_path: Path) -> None:
        backend, said = FakeBackend(FakeTime(), {"m": 2, "n": 2}), list[str]()

        with SessionDatabase(tmp_path / "state.sqlite", said.append) as database:

            def row() -> NodeRow:
                return next(row for row in nodes(database) if row.id == "n")

            def fall_silent(cluster: RayCluster) -> None:
                assert cluster.tracker.nodes_of("job0").count("n") == 2
                backend.silent = {"n": 8.0}

            def come_back(cluster: RayCluster) -> None:
                (noticed,) = (event[0] for event in events_of(database) if event[1] == "node_down")
                assert row().silent == pytest.approx(database.wall(noticed - 8.0))
                assert (cluster.up_gpus, cluster.shape.capacity, row().alive) == (2, 4, False)
                assert cluster.tracker.nodes_of("job0") == ("m", "m")
                assert backend.controllers["job0"].holding == ("m", "m")
                backend.silent = {}

            def be_declared_dead(_: RayCluster) -> None:
                backend.kill_node("n")
                backend.silent = {}

            acts = acting((12.0, fall_silent), (42.0, come_back), (52.0, fall_silent), (62.0, be_declared_dead))
            play(make_cluster(backend, [elastic(0, epochs=20.0)], database, observers=[acts]))
            assert (row().alive, row().silent) == (False, None)
            found = [event for event in events_of(database) if event[3] == "n"]
        again = f"answers again after {found[2][0] - found[1][0] + 8.0:.0f} s"
        assert [event[1:2] + event[4:] for event in found] == [
            ("node_up", 2, ""),
            ("node_down", 2, "does not answer"),
            ("node_up", 2, again),
            ("node_down", 2, "does not answer"),
            ("node_gone", None, ""),
        ]
        silent, gone = "its 2 GPUs count as down until it does", "if its machine runs, start Ray there again"
        assert said == [
            f"node n does not answer: {silent}",
            f"node n {again}",
            f"node n does not answer: {silent}",
            f"node n is gone: {gone}: `ray start --address head:6379`",
        ]

    def test_jobs_keep_their_gpus_while_no_other_machine_answers(self, tmp_path: Path) -> None:
        backend, said = FakeBackend(FakeTime(), {"m": 2, "n": 2}), list[str]()
        acts = acting(
            (4.0, lambda _: setattr(backend, "cut_off", 9.0)), (8.0, lambda _: setattr(backend, "cut_off", 0.0))
        )
        with SessionDatabase(tmp_path / "state.sqlite", said.append) as database:
            record = play(make_cluster(backend, [elastic(0, epochs=8.0)], database, observers=[acts]))
            kinds = [event[1] for event in events_of(database)]
        assert [kind for kind in kinds if kind.startswith("node")] == ["node_up"] * 2 + ["nodes_silent", "nodes_answer"]
        assert record.changes.gpus.tolist() == [4, 0]
        assert said == [
            "no other machine of the Ray cluster answers: the network of this one is likely down. Jobs keep their GPUs "
            "until Ray declares nodes dead",
            "other machines of the Ray cluster answer again after 9 s",
        ]

    def test_without_any_node_for_long_there_is_one_clear_error(self, database: SessionDatabase) -> None:
        backend = FakeBackend(FakeTime(), {"m": 1})
        cluster = make_cluster(
            backend, [elastic(0, epochs=10.0)], database, SessionRules(10.0, ray=RaySettings(without_gpus=30.0))
        )
        stopped = Interrupted(cluster, 12.0, lambda: backend.kill_node("m"))
        with pytest.raises(ClusterError, match="no node with GPUs has been alive for 30 s while 1 jobs wait"):
            play(stopped, "fifo")

    @pytest.mark.parametrize("count", [1, 2])
    def test_a_job_that_fails_is_counted_and_once_all_have_there_is_one_clear_error(
        self, count: int, database: SessionDatabase
    ) -> None:
        backend = FakeBackend(FakeTime(), {"n": 2})

        def fail() -> None:
            controller = backend.controllers["job0"]
            controller.state, controller.holding, controller.failure = "failed", (), "Traceback\nValueError: no good"

        cluster = Interrupted(make_cluster(backend, list(map(elastic, range(count))), database), 3.0, fail)
        if count == 1:
            with pytest.raises(JobError, match="all 1 jobs have failed, the last one of: ValueError: no good"):
                play(cluster, "fifo")
        else:
            assert np.isnan(play(cluster, "fifo").jobs.finish_time).tolist() == [True, False]
        first = database.jobs()[0]
        assert (first.state, first.failure) == ("failed", "Traceback\nValueError: no good")

    def test_a_cluster_without_gpus_is_refused(self, database: SessionDatabase) -> None:
        with pytest.raises(ClusterError, match="no node of the Ray cluster has GPUs"):
            make_cluster(FakeBackend(FakeTime(), {}), [elastic(0)], database)


class TestRestart:
    def test_a_scheduler_that_comes_back_takes_its_controllers_over(self, tmp_path: Path) -> None:
        backend = FakeBackend(FakeTime(), {"m": 2, "n": 2})
        jobs = [elastic(0, epochs=8.0), elastic(1, 2.0, epochs=8.0), elastic(2, 25.0)]
        with SessionDatabase(tmp_path / "state.sqlite") as database:
            cluster = make_cluster(backend, jobs, database)
            run_until(cluster, 15.0)
        generation = max(controller.generation for controller in backend.controllers.values())
        progress = {job: controller.progress for job, controller in backend.controllers.items()}
        backend.pass_time(3.0)  # all train without a scheduler
        with SessionDatabase(tmp_path / "state.sqlite") as database:
            again = make_cluster(backend, jobs, database)
            assert again.time == pytest.approx(cluster.time + 3.0, abs=0.2)
            assert again.held_gpus == 4
            assert all(again.tracker.reports[job].progress > known for job, known in progress.items())
            assert database.next_generation() > generation
            record = play(again)
            assert len(backend.started) == len(jobs)
            assert np.isfinite(record.jobs.finish_time).all()
            mine = record.changes.job == 0
            held = record.changes.gpus[mine][:-1] @ np.diff(record.changes.time[mine])
            assert held == pytest.approx(record.jobs.gpu_seconds[0], abs=1.0)

    def test_without_controllers_it_goes_on_from_checkpoints_and_no_time_has_passed(
        self, database: SessionDatabase
    ) -> None:
        backend = FakeBackend(FakeTime(), {"n": 2})
        jobs = [elastic(0, epochs=8.0), elastic(1, 100.0)]
        cluster = make_cluster(backend, jobs, database)
        run_until(cluster, 15.0)
        cluster.close()
        assert not backend.controllers
        backend.world.wall += 10_000.0
        again = make_cluster(backend, jobs, database)
        assert again.time == pytest.approx(cluster.time, abs=0.2)
        record = play(again)
        assert ("job0", True) in backend.started
        assert record.jobs.finish_time[0] < 100.0

    def test_controllers_without_a_job_are_ended(self, database: SessionDatabase) -> None:
        backend = FakeBackend(FakeTime(), {"n": 2})
        make_cluster(backend, [elastic(0, 50.0)], database)
        backend.start(specs([elastic(7)])[0], resume=False)
        make_cluster(backend, [elastic(0, 50.0)], database)
        assert not backend.controllers

    def test_jobs_that_train_without_a_database_are_left_alone_and_the_way_out_is_named(self, tmp_path: Path) -> None:
        backend = FakeBackend(FakeTime(), {"n": 2})
        jobs = [elastic(0), elastic(1)]
        with SessionDatabase(tmp_path / "state.sqlite") as database:
            run_until(make_cluster(backend, jobs, database), 5.0)
        (tmp_path / "state.sqlite").unlink()
        message = r"no session database, but 2 jobs .* put the file back .* or .*--fresh"
        for _ in range(2):  # the first try leaves nothing that the second would take for a session
            with SessionDatabase(tmp_path / "state.sqlite") as database, pytest.raises(ClusterError, match=message):
                make_cluster(backend, jobs, database)
        assert set(backend.controllers) == {"job0", "job1"}

    def test_files_of_jobs_without_a_database_are_not_overwritten(
        self, database: SessionDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "jobs" / "job0").mkdir(parents=True)
        with pytest.raises(ClusterError, match="no session database, but files of 1 jobs of the session are there"):
            make_cluster(FakeBackend(FakeTime(), {"n": 2}), [elastic(0), elastic(1)], database)


def test_what_a_job_had_trained_further_than_it_is_counts_as_lost() -> None:
    columns = JobColumns([elastic(0)], linear_tables(0.1, 8))

    def hear(progress: float, seconds: float, gpu_seconds: float) -> tuple[float, float]:
        report = JobReport("job0", progress=progress, kept=KeptTraining(seconds, gpu_seconds))
        columns.take_report(0, report, 0.0, settled=True)
        return float(columns.store.kept[0]), float(columns.store.lost[0])

    assert np.isnan(hear(0.0, 0.0, 0.0)[1]), "it has not trained"
    assert hear(1.0, 10.0, 20.0) == (10.0, 0.0)
    assert hear(1.5, 14.0, 36.0) == (14.0, 0.0)
    assert hear(0.9, 9.0, 18.0) == (9.0, 18.0), "back to a checkpoint: 4 GPUs' work and some of 2"
    assert hear(1.1, 8.9, 17.8) == (8.9, 18.0), "another worker, which counts a little less, took over"


@pytest.mark.parametrize("retries", [0, 3])
def test_what_a_job_has_reported_stays_if_its_controller_is_lost(retries: int, database: SessionDatabase) -> None:
    reported, kept = list[JobReport](), list[tuple[float, int]]()
    query = "SELECT progress, step FROM jobs WHERE id = 'job0'"

    class Losing(FakeBackend):
        """Loses a controller right after a report that is not in the database yet."""

        def gone(self) -> dict[str, str]:
            one = self.controllers.get("job0")
            if one is not None and not reported and one.progress > max(database.rows(query)[0][0] + 0.03, 1.0):
                reported.append(self.report(self.controllers.pop("job0")))
                return {"job0": "its node is gone"}
            if reported and not kept:
                kept.extend(database.rows(query))
            return super().gone()

    jobs = [elastic(0, epochs=20.0), elastic(1, epochs=5.0)]
    play(make_cluster(Losing(FakeTime(), {"n": 2}), jobs, database, given=specs(jobs, retries=retries)))
    assert kept == [(reported[0].progress, reported[0].step)]
    assert [job.state for job in database.jobs()] == ["finished" if retries else "failed", "finished"]


def acting(*acts: tuple[float, Callable[[RayCluster], object]]) -> Callable[[RayCluster], None]:
    """An observer that makes calls, each once it is late enough [s]."""
    remaining = list(acts)

    def act(cluster: RayCluster) -> None:
        if remaining and cluster.time >= remaining[0][0]:
            remaining.pop(0)[1](cluster)

    return act


def test_a_job_has_allowed_sizes_whatever_a_policy_asks_for_and_after_a_node_died(database: SessionDatabase) -> None:
    backend, tables = FakeBackend(FakeTime(), {"l": 1, "m": 1, "n": 2}), linear_tables(0.1, 8)
    tables = replace(tables, floor_size=np.tile(largest_sizes((2, 4), tables.max_gpus), (len(tables.types), 1)))
    cluster = make_cluster(backend, [elastic(0, epochs=10.0, most=5)], database, tables=tables)
    assert cluster.store.records[["min_gpus", "requested_gpus", "max_gpus"]][0].tolist() == (2, 2, 4)
    asked = iter([3, 4])
    policy = Scripted(lambda state: np.full(len(state.jobs), next(asked, 2)))
    play(Interrupted(cluster, 12.0, lambda: backend.kill_node("m")), policy)
    assert [len(plan.nodes) for plan in backend.commanded[cluster.ids[0]]] == [2, 4, 2]


def test_a_job_that_leaves_a_node_with_all_its_gpus_is_shown_on_the_other(database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), {"m": 2, "n": 2})
    cluster = make_cluster(backend, [elastic(0, epochs=8.0, most=2)], database)
    play(Interrupted(cluster, 12.0, lambda: backend.drain("m", 30.0)))
    spans = sorted(spans_between(database, 0.0, 1e12), key=lambda span: span.started)
    assert [(span.node, span.gpus) for span in spans] == [("m", 2), ("n", 2)]
    assert spans[0].ended == spans[1].started
