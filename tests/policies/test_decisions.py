"""Decisions of single policies on cases small enough to check by hand, and their kernels against plain searches."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import FloatArray
from rlpto.policies.elastic import fit_exponent
from rlpto.policies.filling import fill_evenly
from rlpto.policies.greedy import grow, hull_steps
from rlpto.policies.registry import make_policy
from rlpto.policies.reward_greedy import expected_reward

from .builders import J, make_state, power, states

OLD, ROOM_FOR_MORE = J(requested=2, highest=8, held=6), {"requested": 2, "highest": 8}
LONG = {"work": 1e4, "speed": power(0.8, 4), "held": 2}
HEAD = J(requested=4, lowest=1, highest=8)
EQUAL, SCALES = J(highest=8), power(0.5, 8)

CASES: dict[str, tuple[str, list[J], int, list[int]]] = {
    "fifo: the head blocks": ("fifo", [J(requested=6), J(requested=4), J()], 8, [6, 0, 0]),
    "fifo: backfill passes": ("fifo:backfill=true", [J(requested=6), J(requested=4), J()], 8, [6, 0, 1]),
    "fifo: no preemption": ("fifo", [J(requested=6), J(requested=4, held=4)], 8, [0, 4]),
    "fifo: keeps what it holds": ("fifo", [J(requested=2, highest=8, held=5)], 8, [5]),
    "fifo: lost nodes cost the last": ("fifo", [J(requested=4, held=4), J(requested=4, held=4)], 6, [4, 0]),
    "sjf: time on requested GPUs": ("sjf", [J(work=100), J(work=200, requested=4)], 4, [0, 4]),
    "sjf: no preemption": ("sjf", [J(work=1, requested=4), J(work=1000, requested=4, held=4)], 4, [0, 4]),
    "sjf: the shortest blocks": (
        "sjf", [J(work=1, requested=4), J(work=10, requested=2), J(work=1000, requested=4, held=4)], 6, [0, 0, 4],
    ),
    "sjf: backfill passes": (
        "sjf:backfill=true",
        [J(work=1, requested=4), J(work=10, requested=2), J(work=1000, requested=4, held=4)], 6, [0, 2, 4],
    ),
    "srtf: preempts": ("srtf", [J(work=1000, requested=4, held=4), J(work=10, requested=4)], 4, [0, 4]),
    "srtf: longer jobs that fit": (
        "srtf", [J(work=10, requested=3), J(work=100, requested=4), J(work=1000)], 4, [3, 0, 1],
    ),
    "srtf: class before time": (
        "srtf", [J(work=1000, requested=4, priority=0), J(work=10, requested=4, priority=2)], 4, [4, 0],
    ),
    "las: least served": ("las", [J(requested=4, held=4, attained=5000), J(requested=4)], 4, [0, 4]),
    "las: no turns in a level": ("las", [J(requested=4, held=4, attained=800), J(requested=4)], 4, [4, 0]),
    "tiresias: threshold": (
        "tiresias:threshold=100", [J(requested=4, held=4, attained=100), J(requested=4)], 4, [0, 4],
    ),
    "elastic_fifo: the oldest borrows": ("elastic_fifo", [J(**ROOM_FOR_MORE), J(**ROOM_FOR_MORE)], 8, [6, 2]),
    "elastic_fifo: loans are taken back": (
        "elastic_fifo", [OLD, replace(OLD, held=2), J(requested=3, highest=8)], 8, [3, 2, 3],
    ),
    "elastic_fifo: not for another loan": ("elastic_fifo", [replace(OLD, held=2), OLD], 8, [2, 6]),
    "elastic_fifo: the oldest grows": (
        "elastic_fifo", [J(requested=2, highest=6, held=2, work=1e4), J(requested=2, highest=6, held=2, work=1e4)], 8,
        [6, 2],
    ),
    "elastic_fifo: the head starts small": ("elastic_fifo", [J(requested=6, highest=6, held=6), HEAD], 8, [6, 2]),
    "elastic_fifo: and is owed the rest": (
        "elastic_fifo", [replace(HEAD, held=2), J(requested=6, highest=8)], 8, [4, 4],
    ),
    "elastic_fifo: the head blocks": (
        "elastic_fifo", [J(requested=6, held=6), J(requested=4, lowest=4), J()], 8, [6, 0, 0],
    ),
    "elastic_fifo: backfill passes": (
        "elastic_fifo:backfill=true", [J(requested=6, held=6), J(requested=4, lowest=4), J()], 8, [6, 0, 1],
    ),
    "elastic_fifo: faster sizes only": ("elastic_fifo", [J(speed=(1.0, 1.8, 1.7, 1.8))], 4, [2]),
    "elastic_fifo: grows where that pays": ("elastic_fifo", [J(delay=30, **LONG)], 4, [4]),
    "elastic_fifo: not for a long delay": ("elastic_fifo", [J(delay=5000, **LONG)], 4, [2]),
    "elastic_fifo: not near the end": ("elastic_fifo", [J(work=100, speed=power(0.8, 4), held=2, delay=20)], 4, [2]),
    "elastic_fifo: lost nodes cost loans": ("elastic_fifo", [OLD, replace(OLD, held=2)], 4, [2, 2]),
    "equal_share: by one at most": ("equal_share", [EQUAL] * 3, 8, [3, 3, 2]),
    "equal_share: caps pass on": ("equal_share", [J(highest=1), EQUAL, EQUAL], 9, [1, 4, 4]),
    "equal_share: lower limits": ("equal_share", [J(lowest=5, requested=5, highest=8), EQUAL, EQUAL], 9, [5, 2, 2]),
    "equal_share: the holder keeps the odd one": (
        "equal_share", [replace(EQUAL, held=2), replace(EQUAL, held=3), replace(EQUAL, held=3)], 8, [2, 3, 3],
    ),
    "equal_share: too many jobs": ("equal_share", [EQUAL] * 3, 2, [1, 1, 0]),
    "max_throughput: who scales": ("max_throughput", [J(speed=power(0.3, 8)), J(speed=power(0.9, 8))], 8, [1, 7]),
    "max_throughput: relative to one GPU": (
        "max_throughput", [J(speed=power(0.5, 8, 0.01)), J(speed=power(0.5, 8, 10.0))], 8, [4, 4],
    ),
    "max_throughput: over a dip": ("max_throughput", [J(speed=(1.0, 1.9, 1.5, 3.5))], 4, [4]),
    "max_throughput: not into it": ("max_throughput", [J(speed=(1.0, 1.9, 1.5, 3.5))], 3, [2]),
    "max_throughput: nothing slower": ("max_throughput", [J(speed=(1.0, 1.5, 1.4, 1.3))], 4, [2]),
    "optimus: the longest gains most": ("optimus", [J(work=10, speed=SCALES), J(work=1000, speed=SCALES)], 8, [1, 7]),
    "optimus: stops at a dip": ("optimus", [J(speed=(1.0, 1.5, 1.5, 2.0))], 4, [2]),
    "optimus: all start first": ("optimus", [J(work=1, speed=power(1, 4)), J(work=1e6, speed=power(1, 4))], 2, [1, 1]),
    "optimus: no room for the least": (
        "optimus", [J(speed=power(0.5, 2)), J(lowest=3, requested=3, speed=power(0.5, 6))], 3, [2, 0],
    ),
    "coach: where most speed is added": ("coach", [J(speed=power(0.3, 8)), J(speed=power(0.9, 8))], 8, [1, 7]),
    "coach: all start before one grows": (
        "coach", [J(speed=power(1.0, 8)), J(speed=power(0.1, 8)), J(speed=power(0.1, 8), lowest=3, requested=3)], 6,
        [2, 1, 3],
    ),
    "hesrpt: three jobs": ("hesrpt", [J(work=work, speed=power(0.5, 18)) for work in (50, 500, 5)], 18, [6, 2, 10]),
    "hesrpt: caps pass on": (
        "hesrpt", [J(work=5, highest=2, speed=power(0.5, 18)), J(work=50, speed=power(0.5, 18))], 18, [2, 16],
    ),
    "hesrpt: every job is served": (
        "hesrpt", [J(work=10.0**i, speed=power(0.9, 9)) for i in range(5)], 9, [5, 1, 1, 1, 1],
    ),
    "hesrpt: the smallest where not all can be": ("hesrpt", [J(work=work) for work in (4, 2, 8, 1)], 2, [0, 1, 0, 1]),
    "reward_greedy: what pays": ("reward_greedy", [J(work=1e9, speed=(1.0, 1.01, 1.02, 1.03), held=1)], 4, [1]),
    "reward_greedy: not for a long delay": ("reward_greedy", [J(**LONG | {"work": 1e5}, delay=900)], 4, [2]),
    "reward_greedy: for a short one": ("reward_greedy", [J(**LONG | {"work": 1e5}, delay=5)], 4, [4]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_decision_by_hand(case: str) -> None:
    spec, jobs, capacity, expected = CASES[case]
    assert make_policy(spec)(make_state(jobs, capacity)).gpus.tolist() == expected


@given(case=states())
def test_elastic_fifo_preempts_no_job_and_leaves_no_gpu_idle(case: tuple[list[J], int]) -> None:
    jobs, capacity = case
    given_ = make_policy("elastic_fifo")(make_state(jobs, capacity)).gpus
    for job, now in zip(jobs, given_, strict=True):
        assert now >= min(job.held, job.requested)
    waiting = [job for job, now in zip(jobs, given_, strict=True) if now == 0]
    if waiting:
        spare = capacity - sum(min(now, job.requested) for job, now in zip(jobs, given_, strict=True))
        assert spare < waiting[0].lowest, "the head starts from free and lent GPUs as soon as they are enough"


class TestTiresias:
    def served(self, *attained: list[float], reset: bool = False) -> list[int]:
        """The order of service where jobs have had these GPU-seconds, decision after decision."""
        policy, order = make_policy("tiresias"), None
        for seconds in attained:
            order = policy(make_state([J(attained=had) for had in seconds], 3)).order
            if reset:
                policy.reset(0)
                reset = False
        return order.tolist()

    def test_the_second_queue_is_ordered_by_time_of_demotion(self) -> None:
        assert self.served([0, 60000, 0]) == [0, 2, 1]
        assert self.served([0, 60000, 0], [60000, 70000, 57600]) == [1, 0, 2]
        # Demotion is for good until a reset.
        assert self.served([60000, 0], [0, 0]) == [1, 0]
        assert self.served([60000, 0], [0, 0], reset=True) == [0, 1]

    def test_those_demoted_together_go_in_order_of_arrival(self) -> None:
        state, rows = make_state([J(attained=60000)] * 3, 3), np.array([2, 0, 1])
        mixed = replace(state, jobs=state.jobs.reordered(rows, state.jobs.effective_priority[rows]))
        assert list(make_policy("tiresias")(mixed).order) == [1, 2, 0]
        assert self.served([6e4 if i % 2 else 0.0 for i in range(200)]) == [*range(0, 200, 2), *range(1, 200, 2)]


class TestOptimus:
    def test_gains_follow_the_formula(self) -> None:
        jobs = [J(work=90, speed=(1.0, 2.0, 3.0)), J(work=30, speed=(1.0, 3.0, 3.1))]
        # First job 1 -> 2 saves 45 s, 2 -> 3 saves 15 s; second job 1 -> 2 saves 20 s, 2 -> 3 saves 0.3 s.
        found = [list(make_policy("optimus")(make_state(jobs, capacity)).gpus) for capacity in (3, 4, 5, 6)]
        assert found == [[2, 1], [2, 2], [3, 2], [3, 3]]

    def test_small_jobs_are_placed_first_and_equal_ones_in_queue_order(self) -> None:
        jobs = [J(work=work, speed=power(0.5, 8)) for work in (1000, 1, 1)]
        allocation = make_policy("optimus")(make_state(jobs, 6))
        assert list(allocation.gpus) == [4, 1, 1]
        assert list(allocation.order) == [1, 2, 0]


@pytest.mark.parametrize("p", [0.2, 0.55, 0.9])
def test_hesrpt_recovers_the_exponent_from_speed_tables(p: float) -> None:
    jobs = [J(speed=power(p, 16)), J(speed=power(p, 6, unit=7.0)), J()]
    assert fit_exponent(make_state(jobs, 8).jobs) == pytest.approx(p)
    assert fit_exponent(make_state([J(), J()], 8).jobs) == 0.5, "jobs that cannot grow"


HOLDS = {"held": 1, "delay": 0.0, "speed": (1.0, 2.0)}


@pytest.mark.parametrize(
    ("job", "weights", "expected"),
    [
        (J(work=1e9, **HOLDS), {"resources": 0.5}, [0, -0.5 / 6, -2 * 0.5 / 6]),
        (J(work=60, **HOLDS), {"resources": 60.0}, [0, -1.0, -1.0]),  # a finished job costs no GPUs any more
        (J(**HOLDS | {"delay": 360}), {"rescale": 1.0}, [0, 0, -0.1]),
        (J(speed=(1.0, 2.0), delay=360), {"rescale": 1.0}, [0, 0, 0]),  # it has not run before
        (J(work=1e9, speed=(2.0, 3.0), held=1, delay=60), {"time": 3600.0}, [0, 660, 600 * 1.5]),
        (J(work=200, **HOLDS), {"time": 3600.0}, [0, 400 + 200, 500 + 200]),
        # Four epochs gain all there is to gain; a quarter is gained in one, weighted by class.
        (J(work=4.0, speed=(1 / 600,), held=1, delay=0.0, priority=0), {"accuracy": 1.0}, [0, 3 / 4]),
        (J(work=4.0, speed=(1 / 600,), held=1, delay=0.0, priority=2), {"accuracy": 1.0}, [0, 1 / 4]),
        # Nothing is gained yet, so an hour of class high is worth three times the shortfall.
        (J(work=1e9, speed=(2.0, 3.0), held=1, delay=60, priority=0), {"shortfall": 1200.0}, [0, 660, 600 * 1.5]),
    ],
)
def test_reward_greedy_values_gpus_as_the_reward_does(job: J, weights: dict[str, Any], expected: list[float]) -> None:
    nothing = {"accuracy": 0.0, "time": 0.0, "resources": 0.0, "rescale": 0.0}
    value: FloatArray = expected_reward(make_state([job], 8).jobs, 600.0, RewardWeights(**(nothing | weights)))[0]
    assert value == pytest.approx(expected)


@given(st.lists(st.lists(st.integers(1, 20), min_size=4, max_size=4), min_size=1, max_size=4), st.integers(0, 12))
def test_growing_concave_values_is_optimal(gains: list[list[int]], capacity: int) -> None:
    concave = np.array([sorted(row, reverse=True) for row in gains], dtype=np.float64)
    value = np.concatenate([np.zeros((len(gains), 1)), concave.cumsum(axis=1)], axis=1)
    ones, fours = np.ones(len(gains), dtype=np.int64), np.full(len(gains), 4)
    steps = hull_steps(value, ones, fours)
    gpus = grow(np.zeros_like(ones), steps.target, steps.gain, ones, capacity, 0.0)
    best = max(
        sum(value[row, k] for row, k in enumerate(choice))
        for choice in itertools.product(range(5), repeat=len(gains))
        if sum(choice) <= capacity
    )
    assert value[np.arange(len(gains)), gpus].sum() == pytest.approx(best)


@given(st.data())
def test_even_filling_is_max_min_fair(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    lowest = np.array(data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count)))
    highest = lowest + np.array(data.draw(st.lists(st.integers(0, 6), min_size=count, max_size=count)))
    capacity = int(lowest.sum()) + data.draw(st.integers(0, 20))
    gpus = fill_evenly(lowest, highest, np.zeros(count, dtype=np.int64), capacity)
    assert gpus.sum() == min(capacity, highest.sum())
    for poor, rich in itertools.permutations(range(count), 2):
        movable = gpus[poor] < highest[poor] and gpus[rich] > lowest[rich]
        assert not (movable and gpus[rich] > gpus[poor] + 1), "a GPU could go from a richer job to a poorer one"
