"""Policies that give exactly the requested GPUs: who runs, and who waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlpto.core.cluster import ClusterState
from rlpto.policies.registry import make_policy

from .builders import J, make_state, power


def gpus(spec: str, jobs: list[J], capacity: int) -> list[int]:
    return list(make_policy(spec)(make_state(jobs, capacity)).gpus)


class TestFifo:
    def test_starts_jobs_in_queue_order_with_what_they_asked_for(self) -> None:
        assert gpus("fifo", [J(requested=2), J(requested=4), J(requested=1)], 8) == [2, 4, 1]

    def test_head_of_the_queue_blocks(self) -> None:
        assert gpus("fifo", [J(requested=6), J(requested=4), J(requested=1)], 8) == [6, 0, 0]

    def test_backfill_lets_later_jobs_pass(self) -> None:
        assert gpus("fifo:backfill=true", [J(requested=6), J(requested=4), J(requested=1)], 8) == [6, 0, 1]

    def test_running_jobs_are_not_preempted_by_jobs_ahead_of_them(self) -> None:
        assert gpus("fifo", [J(requested=6), J(requested=4, held=4)], 8) == [0, 4]

    def test_a_running_job_keeps_what_it_holds_rather_than_what_it_asked_for(self) -> None:
        assert gpus("fifo", [J(requested=2, highest=8, held=5)], 8) == [5]

    def test_lost_nodes_cost_the_last_running_jobs_their_gpus(self) -> None:
        assert gpus("fifo", [J(requested=4, held=4), J(requested=4, held=4)], 6) == [4, 0]


class TestSjf:
    def test_shortest_waiting_job_starts_first(self) -> None:
        assert gpus("sjf", [J(work=100, requested=4), J(work=10, requested=4)], 4) == [0, 4]

    def test_length_is_the_time_on_the_requested_gpus(self) -> None:
        jobs = [J(work=100, requested=1), J(work=200, requested=4)]
        assert gpus("sjf", jobs, 4) == [0, 4]

    def test_does_not_preempt_a_longer_running_job(self) -> None:
        assert gpus("sjf", [J(work=1, requested=4), J(work=1000, requested=4, held=4)], 4) == [0, 4]

    def test_shortest_blocks_unless_backfilling(self) -> None:
        jobs = [J(work=1, requested=4), J(work=10, requested=2), J(work=1000, requested=4, held=4)]
        assert gpus("sjf", jobs, 6) == [0, 0, 4]
        assert gpus("sjf:backfill=true", jobs, 6) == [0, 2, 4]


class TestSrtf:
    def test_short_job_preempts_a_long_one(self) -> None:
        assert gpus("srtf", [J(work=1000, requested=4, held=4), J(work=10, requested=4)], 4) == [0, 4]

    def test_longer_jobs_that_still_fit_run(self) -> None:
        assert gpus("srtf", [J(work=10, requested=3), J(work=100, requested=4), J(work=1000, requested=1)], 4) == [
            3,
            0,
            1,
        ]

    def test_higher_class_comes_before_shorter_time(self) -> None:
        jobs = [J(work=1000, requested=4, priority=0), J(work=10, requested=4, priority=2)]
        assert gpus("srtf", jobs, 4) == [4, 0]

    def test_max_gives_as_many_as_a_job_can_use(self) -> None:
        jobs = [J(work=1000, requested=1, highest=6), J(work=10, requested=1, highest=6)]
        assert gpus("srtf:gpus=max", jobs, 8) == [2, 6]

    def test_max_leaves_a_job_waiting_below_its_least(self) -> None:
        jobs = [J(work=1000, lowest=3, requested=3, highest=6), J(work=10, requested=1, highest=6)]
        assert gpus("srtf:gpus=max", jobs, 8) == [0, 6]


class TestLas:
    def test_least_served_first(self) -> None:
        assert gpus("las", [J(requested=4, held=4, attained=5000), J(requested=4)], 4) == [0, 4]

    def test_jobs_of_one_level_do_not_take_turns(self) -> None:
        assert gpus("las", [J(requested=4, held=4, attained=800), J(requested=4)], 4) == [4, 0]

    def test_stands_until_the_first_served_job_reaches_its_next_level(self) -> None:
        state = make_state([J(requested=4, attained=500), J(requested=2, attained=3000), J(requested=4)], 6, time=1000)
        policy = make_policy("las")
        assert list(policy(state).gpus) == [4, 2, 0]
        assert policy.stands_until(state) == pytest.approx(1000 + (900 - 500) / 4)


class TestTiresias:
    def test_first_queue_in_order_then_second(self) -> None:
        jobs = [J(requested=4, held=4, attained=57600), J(requested=4), J(requested=3)]
        allocation = make_policy("tiresias")(make_state(jobs, 8))
        assert list(allocation.gpus) == [0, 4, 3]
        assert list(allocation.order) == [1, 2, 0]

    def test_just_below_the_threshold_stays_in_the_first_queue(self) -> None:
        assert gpus("tiresias", [J(requested=4, held=4, attained=57599), J(requested=4)], 4) == [4, 0]

    def test_second_queue_is_ordered_by_time_of_demotion(self) -> None:
        policy = make_policy("tiresias")
        first = [J(requested=1), J(requested=1, attained=60000), J(requested=1)]
        assert list(policy(make_state(first, 3)).order) == [0, 2, 1]
        then = [J(requested=1, attained=60000), J(requested=1, attained=70000), J(requested=1, attained=57600)]
        assert list(policy(make_state(then, 3)).order) == [1, 0, 2]

    def test_demoted_together_go_in_order_of_arrival_whatever_the_rows(self) -> None:
        state = make_state([J(requested=1, attained=60000)] * 3, 3)
        mixed = reordered(state, [2, 0, 1])
        assert list(make_policy("tiresias")(mixed).order) == [1, 2, 0]

    def test_reset_forgets_demotions(self) -> None:
        policy = make_policy("tiresias")
        policy(make_state([J(attained=60000), J()], 2))
        policy.reset(0)
        assert list(policy(make_state([J(), J()], 2)).order) == [0, 1]

    def test_demotion_is_for_good(self) -> None:
        policy = make_policy("tiresias")
        policy(make_state([J(attained=60000), J()], 2))
        assert list(policy(make_state([J(attained=0), J()], 2)).order) == [1, 0]

    def test_threshold_is_an_option(self) -> None:
        jobs = [J(requested=4, held=4, attained=100), J(requested=4)]
        assert gpus("tiresias:threshold=100", jobs, 4) == [0, 4]

    def test_stands_until_the_first_job_to_be_demoted(self) -> None:
        jobs = [J(requested=4, attained=57000), J(requested=2, attained=57500), J(requested=8), J(attained=60000)]
        state = make_state(jobs, 6, time=50.0)
        policy = make_policy("tiresias")
        assert list(policy(state).gpus) == [4, 2, 0, 0]
        assert policy.stands_until(state) == pytest.approx(50 + (57600 - 57500) / 2)

    def test_remembers_many_jobs(self) -> None:
        policy = make_policy("tiresias")
        state = make_state([J(requested=1, attained=6e4 if i % 2 else 0.0) for i in range(200)], 200)
        expected = [*range(0, 200, 2), *range(1, 200, 2)]
        assert list(policy(state).order) == expected


class TestRandom:
    def test_same_seed_same_decisions_other_seed_others(self) -> None:
        state = make_state([J(requested=2, highest=20, speed=power(0.5, 20)) for _ in range(8)], 60)
        policy = make_policy("random")
        drawn = []
        for seed in (1, 1, 2):
            policy.reset(seed)
            drawn.append([tuple(policy(state).gpus) for _ in range(3)])
        assert drawn[0] == drawn[1] != drawn[2]

    def test_running_jobs_keep_their_gpus_when_told_to(self) -> None:
        assert gpus("random:keep=1", [J(requested=2, highest=8, held=3), J(requested=2, highest=8)], 3) == [3, 0]


def reordered(state: ClusterState, rows: list[int]) -> ClusterState:
    order = np.array(rows)
    return replace(state, jobs=state.jobs.reordered(order, state.jobs.effective_priority[order]))
