"""What the planner knows, what it cannot know, and that its rollouts are what then happens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, Cluster, ClusterState, Node
from rlpto.core.jobs import EstimateNoise, Job
from rlpto.core.loop import run
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.renting import RentedSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import FloatArray
from rlpto.knowledge.known import Knowledge
from rlpto.knowledge.remaining import RemainingKnowledge
from rlpto.performance.tables import SpeedTables
from rlpto.planning.planner import Planner, PlannerOptions, Start
from rlpto.planning.predictor import predict
from rlpto.planning.snapshot import take_snapshot
from rlpto.policies.index import Index
from rlpto.policies.registry import make_policy
from rlpto.policies.switching import SwitchingPolicy
from rlpto.simulator.batch_loop import Loop
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import Scripted, advance_to, linear_tables, random_jobs, random_tables

NODES = (Node(4), Node(4))
QUEUE = QueueSettings(aging_normal=500.0, aging_low=700.0)
TIME_ONLY = RewardWeights(accuracy=0, time=1, resources=0, rescale=0)


class Noted(Planner):
    """Notes what candidates cost at every plan."""

    def __init__(
        self,
        simulator: SimulatorSettings,
        reward: RewardWeights = TIME_ONLY,
        queue: QueueSettings = QUEUE,
        **options: object,
    ) -> None:
        super().__init__(PlannerOptions.model_validate({"interval": None} | options), queue, simulator, reward)
        self.costs: list[FloatArray] = []

    def _costs(self, loop: Loop, start: Start, candidates: FloatArray) -> FloatArray:
        self.costs.append(super()._costs(loop, start, candidates))
        return self.costs[-1]


def at_once(seed: int, count: int = 12) -> list[Job]:
    return [replace(one, submit_time=0.0) for one in random_jobs(seed, count, 8, 8)]


def schedule(
    policy: Planner | Index,
    jobs: list[Job],
    tables: SpeedTables,
    times: SimulatorSettings,
    queue: QueueSettings = QUEUE,
) -> RunRecord:
    return run(SimulatedCluster(NODES, jobs, tables, times), policy, queue, TIME_ONLY, seed=5)


def jct(record: RunRecord) -> float:
    return float(np.mean(record.jobs.finish_time - record.jobs.submit_time))


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000))
def test_a_rollout_costs_the_accuracy_that_is_then_late_and_the_gpus(seed: int) -> None:
    times = SimulatorSettings(growth="overlap")
    late = RewardWeights(accuracy=0, time=0, resources=0, rescale=0, shortfall=2, money=3, classes=(3.0, 2.0, 1.0))
    planner = Noted(times, late, perturbations=0)
    nodes = (Node(4, price=2.0), Node(4, price=5.0))
    cluster = SimulatedCluster(nodes, at_once(seed), random_tables(seed, 8, 13.0), times)
    record = run(cluster, planner, QUEUE, late, seed=5)
    before = sum(late.classes[one.priority] for one in cluster.jobs) * record.decisions.time[0] * 2.0 / 3600.0
    assert planner.costs[0][0] + before == pytest.approx(-record.decisions.reward.sum(), rel=1e-9)


@pytest.mark.parametrize("way", [{}, {"growth": "overlap"}, {"placement": "most_free"}, {"decide_on": "interval"}])
@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), classes=st.sampled_from(["strict", "weighted"]))
def test_rollouts_cost_what_then_happens(way: dict[str, str], seed: int, classes: str) -> None:
    """No arrivals, no failures, nothing but the base to choose: what was paid and a plan's cost are the sum of JCTs."""
    times, queue = SimulatorSettings(**way), QUEUE.model_copy(update={"classes": classes})
    planner = Noted(times, queue=queue, perturbations=0, every=100.0)
    # Of two jobs with the same score rounding decides, which differs between a rollout and what then happens.
    jobs = [replace(one, epochs=one.epochs * (1 + 1e-6 * number)) for number, one in enumerate(at_once(seed))]
    record = schedule(planner, jobs, random_tables(seed, 8, 13.0), times, queue)
    spent = [12 * jct(record) - cost[0] * 3600.0 for cost in planner.costs]
    assert len(spent) > 2
    assert np.all(np.diff(spent) > -1e-3), "what has been paid grows, and what is ahead is never mistaken"
    assert spent[0] == pytest.approx(12 * record.decisions.time[0], abs=1e-3)


def test_rollouts_begin_now_where_nodes_are_rented() -> None:
    """They stay as they are, so that a plan costs the same as on nodes that are always there."""
    costs = []
    for rented in (None, RentedSettings(most=2, least=2)):
        nodes = tuple(replace(node, rented=rented) for node in NODES)
        cluster = SimulatedCluster(nodes, at_once(3), random_tables(3, 8, 13.0), SimulatorSettings())
        advance_to(cluster, 600.0)
        planner = Noted(SimulatorSettings(), perturbations=0)
        planner(Queue(QUEUE).order(cluster.state()))
        costs.append(planner.costs[0])
    np.testing.assert_array_equal(*costs)


def test_where_all_jobs_are_there_plans_are_at_least_as_good_as_their_base() -> None:
    times, better = SimulatorSettings(), []
    for seed in range(12):
        jobs, tables = at_once(seed), random_tables(seed, 8, 13.0)
        planned = jct(schedule(Planner(PlannerOptions(interval=None), QUEUE, times, TIME_ONLY), jobs, tables, times))
        better.append(jct(schedule(Index(), jobs, tables, times)) / planned)
    assert min(better) > 1 - 1e-9
    assert np.mean(better) > 1.005


class TestWhatIsNotKnown:
    def test_jobs_that_will_come_cannot_leak(self) -> None:
        tables, times = random_tables(3, 8, 13.0), SimulatorSettings()
        first = at_once(3, 8)
        found = []
        for factor in (0.2, 5.0):
            later = [
                replace(one, name=f"later-{i}", submit_time=2_000.0, epochs=one.epochs * factor)
                for i, one in enumerate(at_once(4, 6))
            ]
            planner = Noted(times)
            record = schedule(planner, [*first, *later], tables, times)
            found.append((planner.costs[0], record.changes))
        np.testing.assert_array_equal(found[0][0], found[1][0])
        before = [changes.time < 2_000.0 for _, changes in found]
        for name in ("time", "job", "gpus"):
            one, other = (getattr(changes, name)[rows] for (_, changes), rows in zip(found, before, strict=True))
            np.testing.assert_array_equal(one, other)

    def test_a_planner_that_is_used_again_knows_nothing_of_the_errors_of_another_run(self) -> None:
        jobs, times = at_once(8, 6), SimulatorSettings()
        tables, used = random_tables(8, 8, 13.0), Noted(times)
        for seed in (1, 2):
            rng = np.random.default_rng(seed)
            errors = EstimateNoise(rng.uniform(0.5, 2, 6), rng.uniform(0.5, 2, 6), np.zeros(6))
            cluster = SimulatedCluster(NODES, jobs, tables, times, 0, Knowledge(errors))
            state, new = Queue(QUEUE).order(cluster.state()), Noted(times)
            used.reset(seed)
            new.reset(seed)
            used(state)
            new(state)
            np.testing.assert_array_equal(used.costs[-1], new.costs[-1])


class TestPlans:
    def test_the_same_seed_makes_the_same_plans_in_any_number_of_threads(self) -> None:
        jobs, tables, times = random_jobs(5, 20, 8, 8), random_tables(5, 8, 13.0), SimulatorSettings()
        found = []
        for threads in (1, 1, 3, 0):
            planner = Noted(times, threads=threads)
            found.append((jct(schedule(planner, jobs, tables, times)), planner.costs))
        assert len({result for result, _ in found}) == 1
        for _, others in found[1:]:
            for one, other in zip(found[0][1], others, strict=True):
                np.testing.assert_array_equal(one, other)

    def test_a_queue_too_long_to_plan_is_left_to_the_base(self) -> None:
        jobs, tables, times = at_once(5), random_tables(5, 8, 13.0), SimulatorSettings()
        record = schedule(Planner(PlannerOptions(jobs=1), QUEUE, times, TIME_ONLY), jobs, tables, times)
        base = schedule(Index(), jobs, tables, times)
        np.testing.assert_array_equal(record.jobs.finish_time, base.jobs.finish_time)

    @pytest.mark.parametrize("remaining", ["unknown", "curve"])
    def test_where_all_work_is_guessed_it_decides_as_its_base(self, remaining: RemainingKnowledge) -> None:
        tables, times, found = random_tables(5, 8, 13.0), SimulatorSettings(), []
        for policy in (Index(), Planner(None, QUEUE, times, TIME_ONLY), Noted(times, known=0.0, jobs_per_gpu=10.0)):
            cluster = SimulatedCluster(NODES, at_once(5), tables, times, knowledge=Knowledge(remaining=remaining))
            record = run(cluster, policy, QUEUE, TIME_ONLY, seed=5)
            found.append((record.changes.time.tolist(), record.changes.gpus.tolist()))
        assert found[0] == found[1]
        assert found[0] != found[2], "plans of guesses decide otherwise"

    def test_it_plans_while_the_work_of_half_of_the_jobs_is_known(self) -> None:
        tables, times = random_tables(5, 8, 13.0), SimulatorSettings()
        cluster = SimulatedCluster(NODES, at_once(5), tables, times, knowledge=Knowledge(remaining="learnt"))
        planner, seen = Noted(times, every=1e-3), set()

        def look(state: ClusterState) -> Allocation:
            before, known = len(planner.costs), float(state.jobs.remaining_known.mean())
            given = planner(state)
            if len(state.jobs) > 1:
                assert (len(planner.costs) > before) == (known >= 0.5)
                seen.add(known)
            return given

        planner.reset(5)
        run(cluster, Scripted(look), QUEUE, TIME_ONLY)
        assert min(seen) == 0.0
        assert any(0.5 <= known < 1.0 for known in seen)

    @pytest.mark.parametrize("remaining", ["learnt", "declared"])
    def test_of_a_crowd_it_makes_a_plan_only_if_lengths_are_declared(self, remaining: RemainingKnowledge) -> None:
        tables, times = random_tables(5, 8, 13.0), SimulatorSettings()
        planner, seen = Noted(times, every=1e-3, known=0.0, jobs_per_gpu=0.5), set()

        def look(state: ClusterState) -> Allocation:
            before, jobs = len(planner.costs), len(state.jobs)
            given = planner(state)
            if jobs > 1:
                assert (len(planner.costs) > before) == (remaining == "declared" or jobs <= state.capacity / 2)
                seen.add(jobs)
            return given

        planner.reset(5)
        cluster = SimulatedCluster(NODES, at_once(5), tables, times, knowledge=Knowledge(remaining=remaining))
        run(cluster, Scripted(look), QUEUE, TIME_ONLY)
        assert min(seen) < 4 < max(seen)

    def test_jobs_that_wait_for_a_node_that_is_down_do_not_keep_a_plan(self) -> None:
        """It is not known when it comes back; a rollout until they finish would never end."""
        times, jobs = SimulatorSettings(), [Job(f"j{i}", 0.0, "m0", 1.0, 1000.0, 4, 4, 4) for i in range(2)]
        jobs += [Job("small", 0.0, "m0", 1.0, 1000.0)]
        cluster = SimulatedCluster((Node(1), Node(4)), jobs, linear_tables(0.001), times)
        state = Queue(QUEUE).order(cluster.state())
        planner = Noted(times, work=10**9)
        planner(replace(state, shape=state.shape.with_up([True, False])))
        assert np.isfinite(planner.costs[0]).all()

    def test_a_rollout_that_is_cut_short_estimates_the_rest(self) -> None:
        times, tables = SimulatorSettings(), linear_tables(0.001)
        jobs = [Job(f"j{i}", 0.0, "m0", 1.0 + i, 1000.0) for i in range(10)]
        whole, cut = (Noted(times, perturbations=0, work=work) for work in (10**6, 1))
        for planner in (whole, cut):
            schedule(planner, jobs, tables, times)
        assert cut.costs[0][0] == pytest.approx(whole.costs[0][0], rel=0.1)

    def test_predictions_do_not_look_ahead_within_a_look_ahead(self) -> None:
        jobs, tables, times = at_once(5), random_tables(5, 8, 13.0), SimulatorSettings()
        cluster: Cluster = SimulatedCluster(NODES, jobs, tables, times)
        planner = Noted(times)
        state = Queue(QUEUE).order(cluster.state())
        planner(state)
        for policy in (planner, SwitchingPolicy("both", planner, [(1e6, make_policy("fifo"))])):
            made = predict(take_snapshot(cluster, state), policy, QUEUE, times)
            assert len(planner.costs) == 1
            assert made.finish.sum() == pytest.approx(planner.costs[0].min() * 3600.0)
