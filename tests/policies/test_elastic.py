"""Elastic baselines on cases small enough to check by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from rlpto.core.rewards import RewardWeights
from rlpto.policies.hesrpt import fit_exponent, optimal_shares
from rlpto.policies.registry import make_policy
from rlpto.policies.reward_greedy import expected_reward

from .builders import J, make_state, power, states


def gpus(spec: str, jobs: list[J], capacity: int) -> list[int]:
    return list(make_policy(spec)(make_state(jobs, capacity)).gpus)


class TestElasticFifo:
    def test_requests_come_first_and_what_is_left_goes_to_the_oldest(self) -> None:
        assert gpus("elastic_fifo", [J(requested=2, highest=8), J(requested=2, highest=8)], 8) == [6, 2]

    def test_a_newcomer_takes_back_what_was_lent(self) -> None:
        jobs = [J(requested=2, highest=8, held=6), J(requested=2, highest=8, held=2), J(requested=3, highest=8)]
        assert gpus("elastic_fifo", jobs, 8) == [3, 2, 3]

    def test_no_loan_is_taken_back_for_another(self) -> None:
        jobs = [J(requested=2, highest=8, held=2), J(requested=2, highest=8, held=6)]
        assert gpus("elastic_fifo", jobs, 8) == [2, 6]

    def test_a_finish_lets_the_oldest_grow(self) -> None:
        jobs = [J(requested=2, highest=6, held=2, work=1e4), J(requested=2, highest=6, held=2, work=1e4)]
        assert gpus("elastic_fifo", jobs, 8) == [6, 2]

    def test_head_starts_with_what_there_is_and_is_owed_the_rest(self) -> None:
        first, head = J(requested=6, highest=6, held=6), J(requested=4, lowest=1, highest=8)
        assert gpus("elastic_fifo", [first, head], 8) == [6, 2]
        assert gpus("elastic_fifo", [replace(head, held=2), J(requested=6, highest=8)], 8) == [4, 4]

    def test_head_that_cannot_start_blocks_unless_backfilling(self) -> None:
        jobs = [J(requested=6, held=6), J(requested=4, lowest=4), J(requested=1)]
        assert gpus("elastic_fifo", jobs, 8) == [6, 0, 0]
        assert gpus("elastic_fifo:backfill=true", jobs, 8) == [6, 0, 1]

    def test_grows_only_to_sizes_that_are_faster(self) -> None:
        assert gpus("elastic_fifo", [J(speed=(1.0, 1.8, 1.7, 1.8))], 4) == [2]

    def test_a_running_job_grows_only_if_that_pays(self) -> None:
        grows = J(work=1e4, speed=power(0.8, 4), held=2)
        assert gpus("elastic_fifo", [replace(grows, delay=30)], 4) == [4]
        assert gpus("elastic_fifo", [replace(grows, delay=5000)], 4) == [2]
        about_to_end = J(work=100, speed=power(0.8, 4), held=2, delay=20)
        assert gpus("elastic_fifo", [about_to_end], 4) == [2]

    def test_lost_nodes_cost_loans_before_jobs(self) -> None:
        jobs = [J(requested=2, highest=8, held=6), J(requested=2, highest=8, held=2)]
        assert gpus("elastic_fifo", jobs, 4) == [2, 2]
        assert gpus("elastic_fifo", jobs, 3) == [2, 1]

    @given(case=states())
    def test_nobody_is_preempted_and_no_gpu_idles_that_could_be_used_at_once(self, case: tuple[list[J], int]) -> None:
        jobs, capacity = case
        given = np.array(gpus("elastic_fifo", jobs, capacity))
        for job, now in zip(jobs, given, strict=True):
            assert now >= min(job.held, job.requested)
        waiting = [job for job, now in zip(jobs, given, strict=True) if now == 0]
        if waiting:
            spare = capacity - sum(min(now, job.requested) for job, now in zip(jobs, given, strict=True))
            assert spare < waiting[0].lowest, "the head starts from free and lent GPUs as soon as they are enough"


class TestEqualShare:
    def test_splits_evenly(self) -> None:
        assert gpus("equal_share", [J(highest=8)] * 4, 8) == [2, 2, 2, 2]

    def test_differs_by_one_at_most_where_caps_allow(self) -> None:
        assert gpus("equal_share", [J(highest=8)] * 3, 8) == [3, 3, 2]

    def test_what_capped_jobs_leave_goes_to_the_others(self) -> None:
        assert gpus("equal_share", [J(highest=1), J(highest=8), J(highest=8)], 9) == [1, 4, 4]

    def test_lower_limits_are_kept(self) -> None:
        assert gpus("equal_share", [J(lowest=5, requested=5, highest=8), J(highest=8), J(highest=8)], 9) == [5, 2, 2]

    def test_the_holder_of_the_odd_gpu_keeps_it(self) -> None:
        assert gpus("equal_share", [J(highest=8, held=2), J(highest=8, held=3), J(highest=8, held=3)], 8) == [2, 3, 3]

    def test_too_many_jobs_are_served_in_queue_order(self) -> None:
        assert gpus("equal_share", [J(highest=8)] * 3, 2) == [1, 1, 0]

    def test_all_gpus_left_over_when_everyone_is_full(self) -> None:
        assert gpus("equal_share", [J(highest=2), J(highest=3)], 50) == [2, 3]


class TestMaxThroughput:
    def test_prefers_the_job_that_scales(self) -> None:
        assert gpus("max_throughput", [J(speed=power(0.3, 8)), J(speed=power(0.9, 8))], 8) == [1, 7]

    def test_speed_is_relative_to_one_gpu(self) -> None:
        slow, fast = J(speed=power(0.5, 8, unit=0.01)), J(speed=power(0.5, 8, unit=10.0))
        assert gpus("max_throughput", [slow, fast], 8) == [4, 4]

    def test_steps_over_a_dip(self) -> None:
        dip = (1.0, 1.9, 1.5, 3.5)
        assert gpus("max_throughput", [J(speed=dip)], 4) == [4]
        assert gpus("max_throughput", [J(speed=dip)], 3) == [2], "three GPUs are slower than two"

    def test_takes_no_gpu_that_slows_a_job_down(self) -> None:
        assert gpus("max_throughput", [J(speed=(1.0, 1.5, 1.4, 1.3))], 4) == [2]


class TestOptimus:
    def test_longest_remaining_time_gains_most(self) -> None:
        assert gpus("optimus", [J(work=10, speed=power(0.5, 8)), J(work=1000, speed=power(0.5, 8))], 8) == [1, 7]

    def test_stops_when_nothing_is_gained(self) -> None:
        assert gpus("optimus", [J(speed=(1.0, 1.5, 1.5, 2.0))], 4) == [2]

    def test_everyone_starts_before_anyone_grows(self) -> None:
        assert gpus("optimus", [J(work=1, speed=power(1, 4)), J(work=1e6, speed=power(1, 4))], 2) == [1, 1]

    def test_gains_follow_the_formula(self) -> None:
        jobs = [J(work=90, speed=(1.0, 2.0, 3.0)), J(work=30, speed=(1.0, 3.0, 3.1))]
        # First job 1 -> 2 saves 45 s, 2 -> 3 saves 15 s; second job 1 -> 2 saves 20 s, 2 -> 3 saves 0.3 s.
        assert [gpus("optimus", jobs, capacity) for capacity in (3, 4, 5, 6)] == [[2, 1], [2, 2], [3, 2], [3, 3]]

    def test_a_job_without_room_for_its_least_gets_nothing_and_leaves_the_rest_to_others(self) -> None:
        jobs = [J(speed=power(0.5, 2)), J(lowest=3, requested=3, speed=power(0.5, 6))]
        assert gpus("optimus", jobs, 3) == [2, 0]

    def test_ties_go_to_the_first_in_the_queue(self) -> None:
        assert gpus("optimus", [J(speed=power(0.5, 4))] * 3, 4) == [2, 1, 1]

    def test_small_jobs_are_placed_first_and_equal_ones_in_queue_order(self) -> None:
        jobs = [J(work=1000, speed=power(0.5, 8)), J(work=1, speed=power(0.5, 8)), J(work=1, speed=power(0.5, 8))]
        allocation = make_policy("optimus")(make_state(jobs, 6))
        assert list(allocation.gpus) == [4, 1, 1]
        assert list(allocation.order) == [1, 2, 0]


class TestHesrpt:
    def test_shares_of_three_jobs(self) -> None:
        # p = 1/2: exponent 2, so (1/3)^2, (2/3)^2 - (1/3)^2, 1 - (2/3)^2, largest job first.
        assert optimal_shares(3, 0.5) == pytest.approx([1 / 9, 3 / 9, 5 / 9])

    def test_gpus_of_three_jobs(self) -> None:
        jobs = [J(work=work, speed=power(0.5, 18)) for work in (50, 500, 5)]
        assert gpus("hesrpt", jobs, 18) == [6, 2, 10]

    @pytest.mark.parametrize("p", [0.3, 0.5, 0.8])
    def test_no_other_share_gives_two_jobs_a_lower_total_time(self, p: float) -> None:
        small, large = 1.0, 3.0

        def total_time(share: float) -> float:
            """Small job first with `share` of one server's worth, then the large one has it all."""
            first = small / share**p
            return 2 * first + (large - first * (1 - share) ** p)

        shares = np.linspace(0.5, 0.999, 2000)
        best = shares[np.argmin([total_time(share) for share in shares])]
        assert optimal_shares(2, p)[1] == pytest.approx(best, abs=1e-3)

    def test_caps_pass_gpus_on(self) -> None:
        assert gpus("hesrpt:p=0.5", [J(work=5, highest=2), J(work=50, highest=40)], 18) == [2, 16]

    def test_every_job_is_served(self) -> None:
        assert min(gpus("hesrpt:p=0.9", [J(work=10.0**i, highest=9) for i in range(5)], 9)) == 1

    def test_smallest_are_served_where_not_all_can_be(self) -> None:
        assert gpus("hesrpt", [J(work=work) for work in (4, 2, 8, 1)], 2) == [0, 1, 0, 1]

    def test_a_higher_class_counts_as_smaller(self) -> None:
        jobs = [J(work=500, highest=18, priority=0), J(work=5, highest=18, priority=2)]
        high, low = gpus("hesrpt:p=0.5", jobs, 18)
        assert high > low

    @pytest.mark.parametrize("p", [0.2, 0.55, 0.9])
    def test_exponent_is_recovered_from_speed_tables(self, p: float) -> None:
        jobs = [J(speed=power(p, 16)), J(speed=power(p, 6, unit=7.0)), J()]
        assert fit_exponent(make_state(jobs, 8).jobs) == pytest.approx(p)

    def test_exponent_of_jobs_that_cannot_grow_is_a_default(self) -> None:
        assert fit_exponent(make_state([J(), J()], 8).jobs) == 0.5
        assert fit_exponent(make_state([J(lowest=4, requested=4, speed=power(0.9, 4))], 8).jobs) == pytest.approx(0.5)


class TestRewardGreedy:
    def value(self, job: J, horizon: float = 600.0, **weights: float) -> np.ndarray:
        nothing = {"accuracy": 0.0, "time": 0.0, "resources": 0.0, "rescale": 0.0}
        return expected_reward(make_state([job], 8).jobs, horizon, RewardWeights(**(nothing | weights)))[0]

    def test_resources_part_is_what_the_reward_charges(self) -> None:
        job = J(work=1e9, speed=(1.0, 2.0), held=1, delay=0)
        assert self.value(job, resources=0.5) == pytest.approx([0, -0.5 / 6, -2 * 0.5 / 6])

    def test_finished_jobs_cost_no_gpus_any_more(self) -> None:
        job = J(work=60, speed=(1.0, 2.0), held=1, delay=0)
        assert self.value(job, resources=60.0) == pytest.approx([0, -1.0, -1.0])

    def test_only_changes_of_jobs_that_ran_cost_a_rescale(self) -> None:
        assert self.value(J(speed=(1.0, 2.0), held=1, delay=360), rescale=1.0) == pytest.approx([0, 0, -0.1])
        assert self.value(J(speed=(1.0, 2.0), delay=360), rescale=1.0) == pytest.approx([0, 0, 0])

    def test_time_part_counts_work_at_one_gpus_pace(self) -> None:
        job = J(work=1e9, speed=(2.0, 3.0), held=1, delay=60)
        assert self.value(job, time=3600.0) == pytest.approx([0, 660, 600 * 1.5])

    def test_finishing_early_saves_the_rest_of_the_time(self) -> None:
        job = J(work=200, speed=(1.0, 2.0), held=1, delay=0)
        assert self.value(job, time=3600.0) == pytest.approx([0, 400 + 200, 500 + 200])

    def test_accuracy_part_is_weighted_by_class(self) -> None:
        # Four epochs gain all there is to gain; a quarter is gained in one.
        work = {"work": 4.0, "speed": (1 / 600,), "held": 1, "delay": 0.0}
        assert self.value(J(priority=0, **work), accuracy=1.0)[1] == pytest.approx(3 / 4)
        assert self.value(J(priority=2, **work), accuracy=1.0)[1] == pytest.approx(1 / 4)

    def test_takes_no_gpu_that_does_not_pay(self) -> None:
        jobs = [J(work=1e9, speed=(1.0, 1.01, 1.02, 1.03), held=1)]
        assert gpus("reward_greedy", jobs, 4) == [1]

    def test_a_long_delay_keeps_a_job_as_it_is(self) -> None:
        grow = {"work": 1e5, "speed": power(0.8, 4), "held": 2}
        assert gpus("reward_greedy", [J(delay=900, **grow)], 4) == [2]
        assert gpus("reward_greedy", [J(delay=5, **grow)], 4) == [4]
