"""Policies that solve a programme or share time in rounds: what each aims at, and what they do on a small cluster."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterShape, ClusterState, Node
from rlpto.core.gpu_kinds import room_of
from rlpto.core.job_store import JobStore
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import Job
from rlpto.core.loop import starved
from rlpto.core.queues import Queue, QueueSettings
from rlpto.io.arrays import FloatArray
from rlpto.performance.compile import compile_tables
from rlpto.performance.scheduled import ScheduledModel, ScheduledProfiles
from rlpto.performance.tables import JobType, elapsed_from_rates
from rlpto.policies.registry import make_policy
from rlpto.policies.shockwave import BASES, LOGS, Outlook, ShockwaveOptions, outlook, plan_rounds
from rlpto.policies.sia import Choices, configurations, solve
from rlpto.policies.time_shares import centre, first_on_workers
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import job, linear_tables, make_cluster, make_tables, shape_of, with_kinds
from .builders import J, make_state

ALL = ("gavel", "themis", "allox", "max_sum_throughput", "min_duration", "gandiva_fair")


def shares(spec: str, jobs: list[J], capacity: int, time: float = 0.0) -> FloatArray:
    """[n] shares of a policy's first decision, on one kind of GPU."""
    state = make_state(jobs, capacity, time=time)
    speed = state.jobs.speed[np.arange(len(jobs)), state.jobs.requested_gpus][:, None]
    return make_policy(spec).shares(state, speed, np.array([capacity]))[:, 0]


def test_every_job_is_to_end_when_the_last_can() -> None:
    share = shares("min_duration", [J(work=100.0), J(work=200.0), J(work=300.0)], 1)
    assert share == pytest.approx([1 / 6, 2 / 6, 3 / 6], rel=1e-4)


def test_gandiva_gives_equal_time_and_gavel_equal_gpu_time() -> None:
    jobs = [J(requested=1), J(requested=3)]
    assert shares("gandiva_fair", jobs, 1 + 3 - 2) == pytest.approx([1.0, 1.0])
    assert shares("gandiva_fair", [*jobs, *jobs], 3) == pytest.approx([0.75] * 4)
    assert shares("gavel", [*jobs, *jobs], 3) == pytest.approx([0.75, 0.25] * 2, abs=1e-3)


def test_themis_helps_the_job_that_has_waited_longest() -> None:
    share = shares("themis", [J(work=100.0, submitted=0.0), J(work=100.0, submitted=900.0)], 1, time=1000.0)
    assert share[0] > 0.6
    fairness = (np.array([1000.0, 100.0]) + 100.0 / share) / 200.0
    assert fairness.max() == pytest.approx(fairness[0]), "none can do better than the one that has waited"
    even = shares("themis", [J(work=50.0), J(work=100.0)], 1)
    assert even == pytest.approx([0.5, 0.5], rel=1e-2), "alike where all have just come"


@pytest.mark.parametrize("unit", ["samples", "steps"])
def test_most_throughput_goes_to_the_fastest(unit: str) -> None:
    jobs = [J(speed=(0.01,)), J(speed=(0.05,)), J(speed=(0.03,))]
    share = shares(f"max_sum_throughput:unit={unit}", jobs, 1)
    assert share[1] == pytest.approx(1.0)
    assert 0 < share[0] < share[2] < 0.01, "those left over are ranked by what they lack"


def test_allox_runs_short_jobs_of_the_oldest_first() -> None:
    jobs = [J(work=300.0, submitted=0.0), J(work=100.0, submitted=1.0), J(work=10.0, submitted=2.0)]
    assert shares("allox:alpha=0.7", jobs, 1, time=9.0).tolist() == [0.0, 1.0, 0.0], "the third is not among the oldest"
    assert shares("allox:alpha=1", jobs, 1, time=9.0).tolist() == [0.0, 0.0, 1.0]


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 3))
def test_the_first_on_workers_start_the_best_sequence(seed: int, count: int, workers: int) -> None:
    seconds = np.random.default_rng(seed).uniform(1.0, 9.0, count)

    def total(order: tuple[int, ...]) -> float:
        return sum(float(np.cumsum(seconds[list(order[first::workers])]).sum()) for first in range(workers))

    best = min(total(order) for order in permutations(range(count)))
    first = np.flatnonzero(first_on_workers(seconds[:, None], np.array([workers])) == 0)
    assert len(first) == min(count, workers)
    rest = sorted(set(range(count)) - set(first.tolist()))
    assert min(total((*lead, *order)) for lead in permutations(first.tolist()) for order in permutations(rest)) == (
        pytest.approx(best)
    )


@given(st.integers(0, 10_000), st.integers(1, 30), st.floats(0.01, 0.99))
def test_the_centre_fits_and_no_small_change_has_a_larger_product(seed: int, count: int, filled: float) -> None:
    rng = np.random.default_rng(seed)
    gpus, lowest = rng.integers(1, 5, count), rng.uniform(0.0, 0.9, count)
    room = max(int(np.ceil(gpus @ lowest / filled)), int(gpus.max()))
    one = np.ones((count, 1))
    share = centre(one, 0.5 / np.maximum(lowest, 1e-9)[:, None], 0.5, gpus, np.array([room]))[:, 0]
    assert (share >= lowest).all()
    assert (share <= 1).all()
    assert gpus @ share <= room

    def product(at: FloatArray) -> float:
        slack = np.concatenate([at, at - lowest, 1 - at, [room - gpus @ at]])
        return float(np.log(slack).sum()) if (slack > 0).all() else -np.inf

    for _ in range(5):
        assert product(share + rng.normal(0, 1e-3, count)) <= product(share) + 1e-4


@pytest.mark.parametrize("policy", ALL)
def test_shares_stand_and_newcomers_wait_until_they_are_renewed(policy: str) -> None:
    jobs = [job(0, gpus=1, epochs=1e4), job(1, submit=70.0, gpus=1, epochs=1e4)]
    for renew, starts in ((600.0, 660.0), (0.0, 120.0)):
        cluster = make_cluster(jobs, linear_tables(), (4,), decide_on="interval", interval=60.0)
        decides = make_policy(f"{policy}:round=60,renew={renew:g}")
        while np.isnan(cluster.store.start_time).any():
            decide(cluster, decides)
            cluster.advance()
        assert cluster.store.start_time.tolist() == [60.0, starts]


def test_steps_favour_the_small_batch_of_jobs_whose_batch_changes() -> None:
    by_size = {4: 10.0, 64: 5.0}
    given_ = {
        "small": ScheduledModel(6400, np.array([4, 4]), by_size),
        "grown": ScheduledModel(6400, np.array([64, 64]), by_size),
    }
    tables = compile_tables(ScheduledProfiles(given_), [JobType(name) for name in given_], 1, 1)
    jobs = [job(j, model=name, gpus=1, epochs=2.0, data_size=6400.0) for j, name in enumerate(given_)]
    for unit, first in (("steps", 0), ("samples", 1)):
        cluster = SimulatedCluster([Node(1)], jobs, tables, SimulatorSettings())
        allocation = make_policy(f"max_sum_throughput:unit={unit}")(cluster.state())
        assert allocation.gpus.tolist() == [1 - first, first]


def cluster_of(jobs: Sequence[Job], fast: float = 3.0, **settings: object) -> SimulatedCluster:
    """Two nodes of four slow GPUs and one of four fast ones."""
    tables = with_kinds(linear_tables(delay=30.0), {"slow": (1.0, 4), "fast": (fast, 4)})
    nodes = (Node(4, gpu="slow"), Node(4, gpu="slow"), Node(4, gpu="fast"))
    return SimulatedCluster(nodes, jobs, tables, SimulatorSettings(**({"interval": 60.0} | settings)))


def decide(cluster: SimulatedCluster, policy: object) -> list[list[int]]:
    """Let a policy decide once; returns the nodes of every job's GPUs."""
    state = Queue(QueueSettings()).order(cluster.state())
    cluster.apply(state, Queue(QueueSettings()).admit(state, policy(state), "test"))
    return [cluster.nodes_of(j).tolist() for j in range(len(cluster.jobs))]


class TestSia:
    def test_configurations_of_the_published_cluster(self) -> None:
        shape = shape_of(*[("t4", 4)] * 6, *[("a100", 8)] * 2, *[("rtx", 8)] * 3)
        assert configurations(shape) == [[1, 2, 4, 8, 12, 16, 20, 24], [1, 2, 4, 8, 16], [1, 2, 4, 8, 16, 24]]

    @given(st.integers(0, 10_000))
    def test_as_good_as_trying_everything(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows, options = np.repeat(np.arange(4), 3), rng.integers(1, 5, 12)
        choices = Choices(rows, rng.integers(0, 2, 12), options, np.round(rng.uniform(0.1, 1.6, 12), 2))
        room = rng.integers(0, 7, 2)

        def cost(chosen: Sequence[int]) -> float:
            used = np.zeros(2, dtype=np.int64)
            np.add.at(used, choices.kind[list(chosen)], choices.gpus[list(chosen)])
            return np.inf if (used > room).any() else choices.cost[list(chosen)].sum() + 1.1 * (4 - len(chosen))

        everything = product(*([None, 3 * row, 3 * row + 1, 3 * row + 2] for row in range(4)))
        best = min(cost([one for one in chosen if one is not None]) for chosen in everything)
        assert cost(solve(choices, room, 1.1).tolist()) == pytest.approx(best, rel=2e-3)

    def test_starts_small_and_doubles_on_the_kind_that_is_fastest(self) -> None:
        cluster = cluster_of([job(0, epochs=1000.0, gpus=1, max_gpus=8)])
        sia = make_policy("sia")
        assert decide(cluster, sia) == [[2]]
        sizes = []
        for _ in range(20):
            cluster.advance()
            sizes.append(len(decide(cluster, sia)[0]))
        assert sizes == sorted(sizes)
        assert set(sizes) == {2, 4}, "eight slow GPUs are slower than four fast ones"

    def test_gives_fast_gpus_to_whom_they_help_most(self) -> None:
        tables = with_kinds(
            make_tables([[[[0.01 * k] for k in range(1, 5)]]] * 2), {"slow": (1.0, 4), "fast": (1.0, 4)}
        )
        rates = tables.rates.copy()
        rates[tables.row[2, :, 1:]] *= 10  # m0 gains on fast GPUs, m1 does not
        tables = replace(tables, rates=rates, elapsed=elapsed_from_rates(rates))
        jobs = [job(0, gpus=4, model="m1", epochs=100.0), job(1, gpus=4, model="m0", epochs=100.0)]
        cluster = SimulatedCluster((Node(4, gpu="slow"), Node(4, gpu="fast")), jobs, tables, SimulatorSettings())
        assert decide(cluster, make_policy("sia")) == [[0] * 4, [1] * 4]

    def test_leaves_jobs_that_are_starting_alone(self) -> None:
        cluster = cluster_of(
            [job(0, epochs=1000.0, gpus=1, max_gpus=8), job(1, submit=10.0, gpus=4, epochs=10.0)], interval=20.0
        )
        sia = make_policy("sia")
        first = decide(cluster, sia)[0]
        cluster.advance()
        assert cluster.store.rescale_left[0] > 0
        assert decide(cluster, sia)[0] == first


def test_gavel_takes_turns_in_proportion_to_the_programme() -> None:
    jobs = [job(j, gpus=4, epochs=1e4) for j in range(4)]  # on three nodes
    cluster, gavel = cluster_of(jobs, fast=2.0), make_policy("gavel:round=60")
    gavel.reset(0)
    had: FloatArray = np.zeros((4, 3))
    for _ in range(200):
        for number, nodes in enumerate(decide(cluster, gavel)):
            if nodes:
                had[number, nodes[0]] += 1
        cluster.advance()
    throughput = had @ [1.0, 1.0, 2.0]
    assert throughput.min() > 0.93 * throughput.max()
    cluster, gavel = cluster_of(jobs), make_policy("gavel:round=300")  # which keeps all jobs for a round
    gavel.reset(0)
    first = decide(cluster, gavel)
    for _ in range(4):
        cluster.advance()
        assert decide(cluster, gavel) == first
    cluster.advance()
    assert decide(cluster, gavel) != first


def test_a_job_starves_only_while_one_kind_has_the_gpus_it_asked_for() -> None:
    failures = FailureSettings(mtbf_hours=1.0, mttr_hours=1.0)
    cluster = cluster_of([job(0, gpus=8)], failures=failures, decide_on="interval")
    seen = {}
    while len(seen) < 6:
        cluster.advance()
        slow, fast = room_of(cluster.state().shape).tolist()
        seen[slow, fast] = starved(cluster)
    assert seen == {(slow, fast): slow == 8 for slow in (0, 4, 8) for fast in (0, 4)}


def test_speeds_not_seen_yet_are_as_likely_as_those_seen() -> None:
    tables = make_tables([[[[0.01, 0.01, 0.01, 0.02]]]])  # epochs of 100, 100, 100 and 50 s
    store = JobStore.from_jobs([job(0, epochs=4.0)], tables)
    shape = ClusterShape((Node(1),))

    def seen(progress: float) -> Outlook:
        store.progress[:] = progress
        return outlook(ClusterState(0.0, JobTable(store, tables, np.arange(1), store.priority, 1), shape, 60.0))

    assert seen(0.0).left[0] == pytest.approx(4 * 75.0), "both speeds alike"
    assert (seen(2.0).left[0], seen(2.0).had[0]) == (pytest.approx(2 * 66.667, rel=1e-3), 200.0)
    assert seen(2.0).pace[0] == pytest.approx(0.01 / 4)


@given(st.integers(0, 10_000))
def test_a_plan_is_as_good_as_trying_everything(seed: int) -> None:
    rng = np.random.default_rng(seed)
    left, done = rng.uniform(50.0, 900.0, 3), rng.uniform(0.0, 0.9, 3)
    now = Outlook(left, left, done, (1 - done) / left)
    weight, gpus, least = rng.uniform(1.0, 50.0, 3), rng.integers(1, 3, 3), np.array([0.0, 1.0, 0.0])
    rule = ShockwaveOptions(ahead=3, makespan=float(rng.choice([0.0, 1e-3])))

    def worth(rounds: tuple[int, ...]) -> float:
        if gpus @ rounds > 3 * 3 or (rounds < least).any():
            return -np.inf
        trained = np.minimum(rule.round * np.array(rounds), left)
        gained = float(weight @ np.interp(done + now.pace * trained, BASES, LOGS)) / 9
        return gained - rule.makespan * float((left - trained).max())

    found = plan_rounds(now, weight, least, gpus, 3, rule)
    best = max(map(worth, product(range(4), repeat=3)))
    assert worth(tuple(found.tolist())) >= best - 2e-3 * abs(best)


def test_jobs_take_turns_and_the_longest_never_waits() -> None:
    policy = make_policy("shockwave:round=60,ahead=4")
    jobs = [J(work=500.0, speed=(1.0,)), *(J(work=60.0, speed=(1.0,)) for _ in range(3))]
    ran = []
    for number in range(4):
        ran.append(policy(make_state(jobs, 2, time=60.0 * number)).gpus)
        jobs = [
            J(work=one.work - 60.0 * int(gpus), speed=one.speed, held=int(gpus)) if one.work > 60.0 else one
            for one, gpus in zip(jobs, ran[-1], strict=True)
        ]
    assert [gpus[0] for gpus in ran] == [1] * 4
    assert all(gpus.sum() == 2 for gpus in ran)
