"""GPUs that jobs share: who slows whom, exactly while they are neighbours."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.queues import Queue, QueueSettings
from rlpto.io.errors import JobError
from rlpto.planning.predictor import predict
from rlpto.planning.snapshot import take_snapshot
from rlpto.policies.registry import make_policy
from rlpto.simulator.settings import SimulatorSettings
from rlpto.simulator.sharing import SharedGpus

from ..builders import advance_to, give, job, linear_tables, make_cluster, played, random_jobs, random_tables


def nodes(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_workers_take_the_emptiest_gpus() -> None:
    shared, two = SharedGpus(np.array([4]), 0.5), {0: nodes(0, 0), 1: nodes(0, 0)}
    assert shared.factors(two) == {0: 1.0, 1: 1.0}
    # A third is next to the first, and a fourth, on all GPUs, waits for its slowest worker.
    assert shared.factors(two | {2: nodes(0)}) == {0: 1 / 1.5, 1: 1.0, 2: 1 / 1.5}
    assert shared.factors(two | {2: nodes(0), 3: nodes(0, 0, 0, 0)})[3] == 1 / 2.0


class TestSpeed:
    def test_a_job_is_slow_just_while_it_has_a_neighbour(self) -> None:
        """100 s alone each; the second joins after 50 s; both run at half of their speed until the first is done."""
        jobs = [job(0), job(1, 50.0)]
        cluster = make_cluster(jobs, linear_tables(), (1,), share=2, share_slowdown=1.0)
        record = played(cluster, "fifo")
        assert record.jobs.finish_time.tolist() == pytest.approx([150.0, 200.0])
        assert record.jobs.alone_time.tolist() == pytest.approx([100.0, 100.0])
        assert record.capacity == 2
        with pytest.raises(JobError, match=r"job job0: max_gpus 3, expected at most 2, .* \(simulator.share 2\)"):
            make_cluster([job(gpus=3)], linear_tables(), (2, 4), share=2)

    def test_the_speed_shown_is_that_next_to_the_neighbours(self) -> None:
        cluster = make_cluster([job(0), job(1)], linear_tables(), (1,), share=2, share_slowdown=1.0)
        give(cluster, [1, 0])
        assert cluster.state().jobs.speed[:, 1].tolist() == pytest.approx([0.01, 0.01])
        give(cluster, [1, 1])
        assert cluster.state().jobs.speed[:, 1].tolist() == pytest.approx([0.005, 0.005])
        give(cluster, [0, 1])
        assert cluster.state().jobs.speed[:, 1].tolist() == pytest.approx([0.01, 0.01])

    def test_predictions_know_of_neighbours(self) -> None:
        jobs = [job(0), job(1, 50.0)]
        cluster = make_cluster(jobs, linear_tables(), (1,), share=2, share_slowdown=1.0)
        give(cluster, [1])
        advance_to(cluster, 50.0)
        give(cluster, [1, 1])
        state = Queue(QueueSettings()).order(cluster.state())
        given_settings = SimulatorSettings(share=2, share_slowdown=1.0)
        predicted = predict(take_snapshot(cluster, state), make_policy("fifo"), QueueSettings(), given_settings)
        assert predicted.finish.tolist() == pytest.approx([150.0, 200.0])

    @given(st.integers(0, 1000), st.sampled_from(["fifo", "round_robin", "las", "elastic_fifo", "equal_share"]))
    def test_work_is_conserved_under_any_policy(self, seed: int, policy: str) -> None:
        """Sharing GPUs without slowing each other is having more of them; slowing each other never ends earlier."""
        jobs, tables = random_jobs(seed, 10, 3, 12), random_tables(seed, 3, 0.0)
        cluster = make_cluster(jobs, tables, (3, 3), share=2, share_slowdown=0.5)
        record = played(cluster, policy)
        assert np.isfinite(record.jobs.finish_time).all()
        assert (record.jobs.finish_time - record.jobs.submit_time >= 0.999 * record.jobs.alone_time).all()
        np.testing.assert_allclose(cluster.store.scale, tables.samples[0] / cluster.store.data_size)
