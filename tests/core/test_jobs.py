"""Jobs, and the table a policy sees of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.job_store import JobStore
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import EstimateNoise
from rlpto.io.errors import JobError
from rlpto.performance.solo import alone_bound, seconds_to_finish
from rlpto.performance.tables import elapsed_from_rates, placement_key

from ..builders import advance_to, give, job, linear_tables, make_cluster, make_tables, random_tables


class TestJob:
    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"submit": -1.0}, "submit_time -1.0 s, expected 0 or more"),
            ({"epochs": 0.0}, "epochs 0.0, expected more than 0"),
            ({"gpus": 0}, "expected 1 <= min_gpus <= requested_gpus <= max_gpus, got 0, 0, 0"),
            ({"priority": -1}, "priority -1, expected 0 to 2"),
        ],
    )
    def test_a_wrong_job_says_which_and_what(self, wrong, said):
        with pytest.raises(JobError) as caught:
            job(7, **wrong)
        assert str(caught.value).startswith("job job7: ")
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([job(0, 5.0), job(1, 4.0)], "sorted by submit_time"),
        ([job(0), job(1, max_gpus=9)], "job job1: max_gpus 9, but speed tables end at 8"),
        ([job(0, batch_size=128)], "job job0: no speed table for model m0 with batch_size 128"),
    ],
)
def test_jobs_come_in_order_and_tables_cover_them(jobs, said):
    with pytest.raises(JobError, match=said):
        JobStore.from_jobs(jobs, linear_tables())


class TestTable:
    def test_speed_is_that_of_packed_placements_in_the_present_epoch(self):
        one_node = [[0.01 * k, 0.02 * k] for k in (1, 2, 3, 4)]
        two_nodes = [[0.005 * k, 0.006 * k] for k in (1, 2, 3, 4)]
        tables = make_tables([[one_node, two_nodes]])
        cluster = make_cluster([job(epochs=9.0, gpus=1, max_gpus=4, data_size=500.0)], tables, [2, 2], interval=30)
        assert cluster.state().jobs.speed[0].tolist() == pytest.approx([0, 0.02, 0.04, 0.03, 0.04])
        give(cluster, [1])
        advance_to(cluster, 60)
        assert cluster.state().jobs.epoch.tolist() == [1]
        assert cluster.state().jobs.speed[0].tolist() == pytest.approx([0, 0.04, 0.08, 0.036, 0.048])
        advance_to(cluster, 240)
        assert cluster.state().jobs.progress[0] > 2
        assert cluster.state().jobs.epoch.tolist() == [1], "later epochs repeat the last one measured"

    def test_noise_changes_what_is_shown_not_what_happens(self):
        jobs = [job(0, epochs=1.0, gpus=4), job(1, epochs=1.0, gpus=4)]
        noise = EstimateNoise(np.array([2.0, 1.0]), np.array([0.5, 1.0]), np.array([0.0, -1.0]))
        cluster = make_cluster(jobs, linear_tables(), [8], interval=60)
        seen = cluster.state().jobs
        noised = JobTable(cluster.store, cluster.tables, seen.index, seen.priority, 8, noise)
        assert noised.remaining.tolist() == [2.0, 1.0]
        assert noised.speed[0].tolist() == pytest.approx((seen.speed[0] * 0.5).tolist())
        assert noised.speed[1, 1:].tolist() == pytest.approx([0.01] * 8)
        assert noised.remaining_time(np.array([4, 4])).tolist() == pytest.approx([4 * 25.0, 4 * 25.0])
        assert noised.reordered(np.array([1, 0]), np.array([1, 1])).remaining.tolist() == [1.0, 2.0]


class TestAloneBound:
    @given(st.integers(0, 1000), st.floats(0.01, 9.0), st.integers(1, 6), st.floats(0.2, 5.0))
    def test_no_constant_allocation_beats_it(self, seed, epochs, most, scale):
        tables = random_tables(seed, 6, 0.0, types=2)
        given_jobs = (np.array([1]), np.array([scale]), np.array([epochs]))
        bound = alone_bound(tables, *given_jobs, np.array([most]))[0]
        for gpus_per_node in (1, 8):
            alone = seconds_to_finish(tables, 1, scale, epochs, np.arange(1, most + 1), gpus_per_node)
            assert bound <= alone.min() * (1 + 1e-12)

    def test_every_epoch_has_its_own_best_number_of_gpus(self):
        # One GPU is best in the first epoch, two in the second, and the best of the last goes on.
        tables = make_tables([[[[0.1, 0.01], [0.05, 0.05]]]])
        scale, epochs, most = np.array([1.0, 1.0, 2.0]), np.array([2.0, 3.5, 2.0]), np.array([2, 2, 1])
        bound = alone_bound(tables, np.zeros(3, np.int64), scale, epochs, most)
        assert bound.tolist() == pytest.approx([10 + 20, 10 + 20 + 30, (10 + 100) / 2])

    def test_measured_placements_count_if_the_job_may_hold_them(self):
        tables = make_tables([[[[0.1]] * 4]])
        rates = np.concatenate([tables.rates, [[0.4], [0.8]]])
        tables = replace(
            tables,
            rates=rates,
            elapsed=elapsed_from_rates(rates),
            exact_keys=np.array([placement_key(0, (1, 1)), placement_key(0, (1, 3))]),
            exact_rows=np.array([len(rates) - 2, len(rates) - 1], dtype=np.int32),
        )
        most = np.array([1, 2, 3, 4])
        bound = alone_bound(tables, np.zeros(4, np.int64), np.ones(4), np.ones(4), most)
        assert bound.tolist() == pytest.approx([10, 2.5, 2.5, 1.25])
