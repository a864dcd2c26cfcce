"""Nodes that fail: what jobs lose, and that every policy meets the same failures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.failures import next_toggle_after
from rlpto.simulator.settings import FailureSettings

from ..builders import give, job, linear_tables, make_cluster


def failing(mtbf: float, mttr: float = 1.0, checkpoint: float = 600.0) -> FailureSettings:
    return FailureSettings(mtbf_hours=mtbf, mttr_hours=mttr, checkpoint_interval=checkpoint)


def test_failures_and_repairs_take_their_mean_time():
    for mean in (100.0, 3600.0):
        drawn = [next_toggle_after(50.0, mean, seed, node, 3) - 50.0 for seed in range(40) for node in range(50)]
        assert np.mean(drawn) == pytest.approx(mean, rel=0.1)
        assert np.std(drawn) == pytest.approx(mean, rel=0.1)
        assert len(set(drawn)) == len(drawn)


def history(cluster: SimulatedCluster, busy: bool) -> list[int]:
    """GPUs that are up at every tick while two jobs run or wait."""
    seen = []
    while cluster.time < 50_000:
        if busy and not cluster.held_gpus and cluster.up_gpus >= 2:
            give(cluster, [1, 1])
        cluster.advance()
        seen.append(cluster.up_gpus)
    return seen


def test_failures_do_not_depend_on_what_runs():
    jobs = [job(0, epochs=1e6), job(1, epochs=1e6)]

    def cluster(seed: int) -> SimulatedCluster:
        rules = {"interval": 60, "decide_on": "interval", "failures": failing(0.5, 0.2)}
        return make_cluster(jobs, linear_tables(), [4, 3, 2], seed=seed, **rules)

    assert history(cluster(1), busy=True) == history(cluster(1), busy=False)
    assert history(cluster(1), busy=True) != history(cluster(2), busy=True)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([10.0, 77.0, 600.0, 1e9]), st.sampled_from(["interval", "events"]))
def test_a_failure_costs_at_most_one_checkpoint_interval(seed, checkpoint, decide_on):
    rate = 0.01
    settings = {"interval": 7.0, "decide_on": decide_on, "failures": failing(0.02, 0.01, checkpoint)}
    cluster = make_cluster([job(epochs=10.0)], linear_tables(rate, delay=5.0), [1], seed=seed, **settings)
    since = None
    for _ in range(400):
        if cluster.done:
            break
        if cluster.up_gpus and not cluster.held_gpus:
            base, since = float(cluster.store.progress[0]), cluster.time
            give(cluster, [1])
        cluster.advance()
        if since is not None and not cluster.held_gpus and not cluster.done:
            stopped = cluster.changes().time[-1]
            trained = max(0.0, stopped - since - 5.0)
            kept = cluster.store.progress[0]
            whole = np.floor(trained / checkpoint) * checkpoint
            assert kept == pytest.approx(base + whole * rate, abs=1e-9) or (
                abs(trained / checkpoint - round(trained / checkpoint)) < 1e-9
            )
            assert base <= kept <= base + trained * rate + 1e-9
            assert base + trained * rate - kept <= checkpoint * rate + 1e-9
            since = None


def test_accuracy_gained_and_lost_again_cancels():
    rules = failing(0.05, 0.01, checkpoint=1e9)
    cluster = make_cluster([job(epochs=3.0)], linear_tables(), [1], seed=1, interval=7.0, failures=rules)
    gained = 0.0
    while cluster.up_gpus:
        if not cluster.held_gpus:
            give(cluster, [1])
        gained += cluster.advance().accuracy_gain.sum()
    assert cluster.store.progress[0] == 0.0
    assert gained == pytest.approx(0.0, abs=1e-12)
