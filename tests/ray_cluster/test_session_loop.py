"""Another policy while jobs run, and predictions next to the scheduler; with controllers in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.loop import DecisionLoop
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.runner import Cell
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import prepare
from rlpto.experiments.on_ray import compile_ahead, restored_policies, session_folder
from rlpto.experiments.session_loop import SCHEDULER, SessionLoop, SwitchablePolicy
from rlpto.io.arrays import FloatArray
from rlpto.planning.predictor import Predictions, Predictor, predict
from rlpto.planning.snapshot import take_snapshot
from rlpto.policies.registry import BUILT_IN, make_policy
from rlpto.policies.rigid import Fifo
from rlpto.policies.spec import policy_label
from rlpto.policies.switching import switching
from rlpto.ray_cluster.messages import raised_in
from rlpto.ray_cluster.scheduler.placement import known_placement
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase, decision_records, policy_switches
from rlpto.ray_cluster.scheduler.session_folder import DATABASE
from rlpto.simulator.settings import SimulatorSettings
from rlpto.store.requests import add_switch, ask, get_request
from tests.builders import Scripted
from tests.ray_cluster.fakes import FakeBackend, FakeTime, events_of
from tests.ray_cluster.sessions import Interrupted, elastic, make_cluster, play

ROOT = Path(__file__).resolve().parents[2]
TIMES = SimulatorSettings(interval=10.0, growth="overlap")


class AtOnce(Executor):
    """Computes where it is asked."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def run_with_predictions(name: str, folder: Path) -> tuple[FloatArray, list[Predictions], list[str]]:
    """A session under a policy: when its jobs finished [s], and the predictions that were made meanwhile."""
    made: list[Predictions] = []
    wrong: list[str] = []
    predictor = Predictor(QueueSettings(), TIMES, made.append, wrong.append, 0.0, AtOnce(), share=1.0)
    jobs = [elastic(0, epochs=8.0), elastic(1, epochs=5.0), elastic(2)]
    with SessionDatabase(folder / "state.sqlite") as database:
        cluster = make_cluster(FakeBackend(FakeTime(), {"m": 2, "n": 2}), jobs, database)
        policy = SwitchablePolicy(database, make_policy, switching(make_policy(name)), cluster.deciding)
        loop = SessionLoop(cluster, policy, DecisionLoop(cluster, QueueSettings()), predictor)
        while not cluster.done:
            loop.step()
        return cluster.store.finish_time.copy(), made, wrong


def test_what_is_predicted_while_jobs_run_comes_true(tmp_path: Path) -> None:
    """Within the moments that workers take to start, and the interval between two looks."""
    finished, made, wrong = run_with_predictions("equal_share", tmp_path)
    assert len(made) >= 2
    assert wrong == []
    for found in made:
        index = [int(job.removeprefix("job")) for job in found.ids]
        assert found.finish == pytest.approx(finished[index], abs=3.0)
        rows = found.rows(lambda second: 1000.0 + second)
        assert [row.finish for row in rows] == pytest.approx((1000.0 + found.finish).tolist())


@pytest.mark.slow
def test_how_long_jobs_take_to_start_is_learned_from_those_that_have_started(database: SessionDatabase) -> None:
    """The profile says that they start at once; here they take half a minute."""
    jobs = [elastic(number, submit=200.0 * number, epochs=4.0, most=1) for number in range(4)]
    cluster = make_cluster(FakeBackend(FakeTime(), {"m": 2}, delay=30.0), jobs, database)
    fifo, predicted = make_policy("fifo"), list[float]()

    def decide(state: ClusterState) -> Allocation:
        found = predict(take_snapshot(cluster, state), fifo, QueueSettings(), TIMES)
        if not state.jobs.gpus.any():
            predicted.append(float(found.finish[0]))
        return fifo(state)

    late = play(cluster, Scripted(decide)).jobs.finish_time - predicted
    assert late == pytest.approx([30.0, 15.0, 0.0, 0.0], abs=2.0)
    again = make_cluster(FakeBackend(FakeTime(), {"m": 2}), jobs, database)  # a scheduler that comes back still knows
    assert again.tracker.knowledge.estimated.rescale_delay == pytest.approx([30.0], abs=1.0)


class CannotBeCopied(Fifo):
    """Holds what cannot be copied."""

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self.lock = threading.Lock()


def test_what_cannot_be_copied_or_goes_wrong_is_said_and_ends_nothing(
    database: SessionDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, said = list[Predictions](), list[str]()
    predictor = Predictor(QueueSettings(), TIMES, made.append, said.append, 0.0, AtOnce(), share=1.0)
    cluster = make_cluster(FakeBackend(FakeTime(), {"m": 2}), [elastic(0)], database)
    state, wrong = Queue(QueueSettings()).order(cluster.state()), Fifo()
    wrong.options = None  # type: ignore[assignment]
    for policy in (CannotBeCopied(), wrong):
        policy.reset(0)
        predictor.begin(cluster, cluster.ids, policy, state, "fifo")
        predictor.publish()
    assert made == []
    assert said[0].startswith("policy fifo cannot be copied")
    assert "one_node" in said[1]
    monkeypatch.setitem(BUILT_IN, "uncopied", CannotBeCopied)  # no hindrance to a run
    compile_ahead(prepare(load_config(ROOT / "configs" / "ray_smoke.yaml")), ["uncopied"])


def test_a_snapshot_of_a_real_cluster_has_its_jobs_where_the_plan_puts_them(database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), {"m": 2, "n": 2}, delay=3.0)
    cluster = make_cluster(backend, [elastic(0), elastic(1)], database)
    state = Queue(QueueSettings()).order(cluster.state())
    cluster.apply(state, make_policy("equal_share")(state))
    scratch = take_snapshot(cluster, Queue(QueueSettings()).order(cluster.state())).restore(TIMES)
    assert scratch.store.gpus.tolist() == [2, 2]
    assert sorted(np.concatenate([scratch.nodes_of(0), scratch.nodes_of(1)]).tolist()) == [0, 0, 1, 1]


def test_workers_that_join_others_are_distinguished_from_a_first_start() -> None:
    found = known_placement(
        ["m", "n"], [("m", "n", "n"), ("m",), ("n",), ()], [("m", "m"), (), ("n",), ()], np.array([4.0, 5.0, 0.0, 0.0])
    )
    assert [held.tolist() for held in found.nodes] == [[0, 1, 1], [0], [1], []]
    assert found.training.tolist() == [1, 1, 1, 0]
    assert found.spanned.tolist() == [1, 1, 1, 0]
    assert found.pausing.tolist() == [0.0, 5.0, 0.0, 0.0]
    assert found.starting.tolist() == [4.0, 0.0, 0.0, 0.0]


COMPILED_AHEAD = """
import sys
from pathlib import Path

from rlpto.core.cluster import ClusterShape
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import prepare
from rlpto.experiments.on_ray import compile_ahead
from rlpto.core.jobs import Job
from rlpto.knowledge.estimated_profiles import SharedEvidence
from rlpto.knowledge.evidence import Evidence, Step
from rlpto.ray_cluster.scheduler.online_estimates import guess_of
from tests.ray_cluster.test_session_loop import run_with_predictions

def compiled():
    named = {
        f"{name}.{key}": value for name, module in list(sys.modules.items()) if name.startswith("rlpto.")
        for key, value in vars(module).items() if not isinstance(value, type)
    }
    return {(name, str(one)) for name, value in named.items() for one in getattr(value, "signatures", ())}

policies = sys.argv[2:]
config = load_config(Path("configs/ray_smoke.yaml"))
compile_ahead(prepare(config), policies)
before = compiled()
assert before
for number, policy in enumerate(policies):
    folder = Path(sys.argv[1], str(number))
    folder.mkdir()
    run_with_predictions(policy, folder)
job = Job("real", 0.0, "digits_cnn", 1.0, 100.0, max_gpus=4)
shared = SharedEvidence(guess_of(job, config.ray.programs["digits_cnn"], 100.0, 1), 4, "bayes")
shared.add(Evidence(tuple(Step(nodes, gpus, 16.0, 0.16) for gpus, nodes in ((1, 1), (2, 1), (4, 2)))))
assert shared.learn()
print(sorted(compiled() - before))
"""


@pytest.mark.slow
def test_nothing_is_compiled_while_jobs_train(tmp_path: Path) -> None:
    """It would stop the scheduler for tens of seconds on a machine that has compiled nothing yet."""
    policies = ("elastic_fifo", "max_throughput:choose_batch_size=true")
    done = subprocess.run(
        [sys.executable, "-c", COMPILED_AHEAD, str(tmp_path), *policies],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def asked(
    database: SessionDatabase, at: float, request: str, spec: str = "fifo"
) -> tuple[SwitchablePolicy, str | None]:
    """A session that is asked for another policy at a time [s], and what the scheduler said to that."""
    jobs = [elastic(0, epochs=8.0), elastic(1, 2.0), elastic(2, 3.0)]
    cluster = make_cluster(FakeBackend(FakeTime(), {"m": 2, "n": 2}), jobs, database)
    policy = SwitchablePolicy(database, make_policy, switching(make_policy(spec)), cluster.deciding)
    body = {"policy": request}
    asking: Any = Interrupted(cluster, at, lambda: ask(database, "policy", "a command", 0.0, body=body))
    loop = SessionLoop(asking, policy, DecisionLoop(asking, QueueSettings()))
    while not cluster.done:
        loop.step()
    found = get_request(database, 1)
    assert found is not None
    assert np.isfinite(cluster.store.finish_time).all()
    return policy, found.problem


class TestSwitching:
    def test_requests_and_set_times_are_noted_and_hold_until_the_next_one(self, database: SessionDatabase) -> None:
        policy, problem = asked(database, 4.0, "srtf", "fifo>20:equal_share")
        assert problem == ""
        switches = [(event[0], event[5]) for event in events_of(database) if event[1] == "policy"]
        assert [detail for _, detail in switches] == ["fifo -> srtf", "srtf -> equal_share"]
        (first, second), kept = (at for at, _ in switches), policy_switches(database)
        assert second >= 20.0
        assert kept.policy == ("fifo", "srtf", "equal_share")
        assert kept.time[1:].tolist() == [first, second]
        for time, taken in database.rows("SELECT time, policy FROM decisions ORDER BY seq"):
            assert taken == ("fifo" if time < first else "srtf" if time < second else "equal_share")
        assert policy.plan.name == "fifo>20:equal_share"

    def test_a_policy_that_does_not_exist_changes_nothing_and_is_answered(self, database: SessionDatabase) -> None:
        _, problem = asked(database, 10.0, "no_such")
        assert str(problem).startswith("no policy 'no_such'")
        assert not [event for event in events_of(database) if event[1] == "policy"]

    def test_a_restarted_scheduler_takes_up_the_policy_it_was_switched_to(self, database: SessionDatabase) -> None:
        asked(database, 10.0, "equal_share")
        again = switching(make_policy("fifo"))
        SwitchablePolicy(database, make_policy, again).reset(0)
        (switched,) = [event[0] for event in events_of(database) if event[1] == "policy"]
        assert again.present(switched).name == "equal_share"
        assert again.present(switched - 1e-6).name == "fifo"


def test_decisions_in_the_database_are_those_of_the_loop(database: SessionDatabase) -> None:
    backend = FakeBackend(FakeTime(), {"m": 2, "n": 2})
    jobs = [elastic(0, epochs=8.0), elastic(1, 2.0), elastic(2, 3.0)]
    record = play(make_cluster(backend, jobs, database), "fifo")
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


def test_sessions_are_called_by_policy_window_and_seed_and_none_like_another(tmp_path: Path) -> None:
    def name(*cell: Any) -> str:
        return session_folder(tmp_path, Cell(*cell)).name

    assert name("las", "jobs", 0) == "las-jobs-0"
    assert name("index:label=agent,weights=a/b.yaml", "jobs", 0).startswith("agent-jobs-0-")
    several = [("index:label=agent,weights=a/b.yaml", "w"), ("index:label=agent,weights=a/c.yaml", "w"), ("las", "w/x")]
    several += [("las", "w-x"), ("las" * 9, "w" * 40), ("las" * 9, "w" * 41), ("index:label=las-w", "x")]
    assert len({name(*cell, 0) for cell in several}) == len(several)


def test_what_was_raised_follows_the_frames_of_a_traceback() -> None:
    trace = "Traceback\n  File ...\n    f()\nValueError: no good\n"
    assert raised_in(trace) == raised_in(f"{trace}second line\nthird") == "ValueError: no good"
    assert raised_in("the cause\n  File ...\nwhat it was") == "what it was"
    assert raised_in("") == "no reason given"
