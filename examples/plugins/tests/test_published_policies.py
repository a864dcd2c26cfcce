"""What each policy of the plug-in aims at, and what holds for RLPTO's own policies too."""

from collections.abc import Callable
from functools import partial
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterShape, ClusterState, Node
from rlpto.core.job_store import JobStore
from rlpto.core.job_table import JobTable
from rlpto.io.arrays import FloatArray
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings
from rlpto_shockwave.scheduled import ScheduledModel, compile_scheduled
from rlpto_shockwave.shockwave import BASES, LOGS, Outlook, Shockwave, ShockwaveOptions, outlook, plan_rounds
from rlpto_shockwave.time_shares import centre, first_on_workers
from tests import test_frozen
from tests.builders import job, make_tables
from tests.core import test_sealed
from tests.plugins import SHOCKWAVE, policies_of
from tests.policies import test_all, test_allowed_sizes, test_noise, test_programmes
from tests.policies.builders import J, make_state
from tests.slow import few

POLICIES = list(policies_of(SHOCKWAVE))
FIGURES = {name: ["17.51575610312134", "431.22486703028875", "0"] for name in POLICIES}
FIGURES |= {"gandiva_fair": ["16.095027919075086", "837.5309891094254", "17"]}
"""As in `tests/frozen.json`: reward, mean JCT [s] and number of rescales, in all cases with several GPU types."""
CASES = [case for case in test_frozen.CASES if case.startswith(("kinds exact", "kinds noisy "))]
CHECKS = (
    test_all.test_allocations_are_possible_and_reproducible,
    test_all.test_no_job_that_fits_beside_the_others_is_forgotten_on_an_empty_cluster,
    test_all.test_where_there_is_nothing_to_give_or_to_do_there_is_no_fault,
    partial(test_sealed.test_policies_decide_as_without_the_seal, case=test_sealed.REALISTIC),
    pytest.param(test_noise.test_all_jobs_finish_and_little_is_lost, marks=pytest.mark.slow),
    pytest.param(test_allowed_sizes.test_no_policy_breaks_an_allowed_size, marks=pytest.mark.slow),
)
"""Tests of RLPTO's own policies."""


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("policy", few(POLICIES, "themis", "allox"))
def test_what_holds_for_own_policies_holds(policy: str, check: Callable[[str], None]) -> None:
    check(policy)


@pytest.mark.parametrize("case", few(CASES, "kinds noisy weighted"))
def test_no_figure_has_moved(case: str) -> None:
    given_ = test_frozen.experiment(case)
    assert {name: test_frozen.figures(given_, name) for name in POLICIES} == FIGURES


@pytest.mark.parametrize("policy", sorted({*POLICIES} - {"shockwave"}))
def test_shares_stand_until_they_are_renewed(policy: str) -> None:
    test_programmes.test_shares_stand_and_newcomers_wait_until_they_are_renewed(policy)


def shares(spec: str, jobs: list[J], capacity: int, time: float = 0.0) -> FloatArray:
    """[n] shares of a policy's first decision, on one GPU type."""
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


def test_steps_favour_the_small_batch_of_jobs_whose_batch_changes() -> None:
    by_size = {4: 10.0, 64: 5.0}
    models = {f"of {size}": ScheduledModel(6400, np.array([size, size]), by_size) for size in by_size}
    jobs = [job(j, model=name, gpus=1, epochs=2.0, data_size=6400.0) for j, name in enumerate(models)]
    for unit, first in (("steps", 0), ("samples", 1)):
        cluster = SimulatedCluster([Node(1)], jobs, compile_scheduled(models, 1), SimulatorSettings())
        allocation = make_policy(f"max_sum_throughput:unit={unit}")(cluster.state())
        assert allocation.gpus.tolist() == [1 - first, first]


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


def test_a_job_that_has_started_between_two_rounds_is_in_the_next_plan() -> None:
    policy = Shockwave(ShockwaveOptions(round=60.0, ahead=4))
    policy.reset(0)
    assert policy(make_state([J(work=240.0, speed=(1.0,))], 2, time=0.0)).gpus.tolist() == [1]
    both = [J(work=180.0, speed=(1.0,), held=1), J(work=60.0, speed=(1.0,), held=1)]
    assert policy(make_state(both, 2, time=30.0)).gpus.tolist() == [1, 1]
    policy(make_state(both, 1, time=60.0))
    assert policy._plan[1] > 0, "a round is planned for it"
