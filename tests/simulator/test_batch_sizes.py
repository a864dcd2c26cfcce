"""Batch sizes that a scheduler chooses: how fast jobs train with them, and that changing them is free."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.loop import run
from rlpto.core.rewards import RewardWeights
from rlpto.io.errors import ConfigError, PolicyError
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster

from ..builders import (
    Case,
    Scripted,
    admit,
    advance_to,
    cases,
    give,
    job,
    linear_tables,
    make_cluster,
    run_out,
    with_batch_sizes,
)

FACTORS = {100: 1.0, 200: 2.0, 400: 3.0}
"""Batch sizes, and how much faster than at its own choice a job is with them."""


def one_job(delay: float = 0.0, **settings: object) -> SimulatedCluster:
    """A job of one epoch; one GPU does 0.01 a second."""
    tables = with_batch_sizes(linear_tables(0.01, delay=delay), FACTORS)
    return make_cluster([job(epochs=1.0, max_gpus=4)], tables, interval=10.0, **settings)


class TestSpeed:
    def test_a_change_costs_nothing_and_counts_as_no_rescale(self) -> None:
        cluster = one_job(delay=30.0)
        give(cluster, [1])
        advance_to(cluster, 50.0)  # 30 s of them to start: 0.2 epochs
        give(cluster, [1], batch_size=[200])
        assert run_out(cluster) == pytest.approx(50 + 0.8 / 0.02)
        assert cluster.store.rescales.tolist() == [0]
        assert cluster.changes().gpus.tolist() == [1, 0]

    def test_workers_that_train_while_others_start_change_too(self) -> None:
        cluster = one_job(delay=30.0, growth="overlap")
        give(cluster, [1])
        advance_to(cluster, 40.0)  # 0.1 epochs
        give(cluster, [2])  # one goes on alone until 70 s
        advance_to(cluster, 50.0)  # 0.2
        give(cluster, [2], batch_size=[200])
        assert run_out(cluster) == pytest.approx(70 + 0.4 / 0.04)  # 0.6 at 70 s

    @settings(max_examples=20)
    @given(case=cases(["fifo", "optimus", "las", "equal_share"]), seed=st.integers(0, 1000))
    def test_sizes_of_one_speed_change_nothing(self, case: Case, seed: int) -> None:
        """Any batch sizes may be chosen in between, as long as jobs are as fast with them.

        A node's failure takes jobs back to the last change of their batch size, and rounded ends of epochs count from
        there, so there is neither here.
        """
        tables = with_batch_sizes(case.tables, {100: 1.0, 200: 1.0})
        calm = case.settings.model_copy(update={"failures": type(case.settings.failures)(), "epoch_resolution": 0.0})
        rng = np.random.default_rng(seed)
        policy = make_policy(case.policy)

        def mixed(state: ClusterState) -> Allocation:
            found = policy(state)
            return Allocation(found.gpus, found.order, rng.choice([0, 100, 200], len(state.jobs)))

        records = [
            run(SimulatedCluster(case.nodes, case.jobs, tables, calm, case.seed), asked, case.queue, RewardWeights())
            for asked in (Scripted(policy), Scripted(mixed))
        ]
        np.testing.assert_allclose(records[0].jobs.finish_time, records[1].jobs.finish_time, rtol=1e-9)
        np.testing.assert_array_equal(records[0].jobs.rescales, records[1].jobs.rescales)


class TestAdmission:
    @pytest.mark.parametrize(
        ("batch_size", "said"),
        [
            ([300], r"job 0 a batch size of 300 at 0 s: expected 0 \(its own choice\) or one of \[100, 200, 400\]"),
            ([-1], "a batch size of -1"),
            ([100, 100], r"samples in a batch of shape \(2,\): expected \(1,\), one per job"),
            ([1.5], "1.5 samples in a batch: expected whole numbers"),
        ],
    )
    def test_a_size_that_the_job_does_not_have_is_named(self, batch_size: list[float], said: str) -> None:
        with pytest.raises(PolicyError, match=said):
            admit(one_job(), [1], batch_size=batch_size)

    def test_who_gets_no_gpus_has_its_own_choice(self) -> None:
        cluster = make_cluster([job(0), job(1)], with_batch_sizes(linear_tables(), FACTORS), [1])
        admitted = admit(cluster, [1, 1], batch_size=[100, 100])
        assert (admitted.gpus.tolist(), admitted.batch_size.tolist()) == ([1, 0], [100, 0])


def test_a_batch_in_use_stays_unless_another_is_so_many_times_as_fast() -> None:
    """With 4 GPUs a batch of 400 is 1.5 times as fast as one of 200 (AdaptDL's rule, there with 1.05)."""
    for above, used, expected in ((1.6, 200, 200), (1.4, 200, 400), (1.6, 0, 400)):
        cluster = one_job()
        give(cluster, [4], batch_size=[used])
        decide = make_policy(f"max_throughput:choose_batch_size=true,change_above={above}")
        found = decide(cluster.state())
        assert found.batch_size.tolist() == [expected]
        give(cluster, [2], batch_size=[used])
        again = decide(cluster.state())
        assert again.batch_size.tolist() == [400], "on other GPUs it is chosen again"
    with pytest.raises(ConfigError, match=r"change_above 1\.05 needs choose_batch_size=true"):
        make_policy("max_throughput:change_above=1.05")
