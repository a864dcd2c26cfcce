"""How much accuracy jobs lack over time, and when they have most of it: against closed forms, and small steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.io.arrays import FloatArray
from rlpto.simulator.settings import FailureSettings

from ..builders import give, job, linear_tables, make_cluster, make_tables, random_tables

CURVE = np.array([0.1, 0.5, 0.86, 0.9])
"""Accuracy after 0 to 3 epochs: 0.8 to gain; 90 % of it at 2 - 0.04 / 0.36 epochs, 95 % and 99 % in the third."""


def test_one_job_by_hand() -> None:
    """It waits 100 s, starts for 50 s, and then takes 100 s for each of three epochs."""
    tables = make_tables([[[[0.01] * 3]]], [50.0], CURVE)
    cluster = make_cluster([job(epochs=3.0, priority=2)], tables, interval=100.0)
    give(cluster, [0])
    passed = [cluster.advance().copy()]
    give(cluster, [1])
    while not cluster.done:
        passed.append(cluster.advance().copy())
    missing = (0.9 - CURVE) / 0.8
    lost = 150.0 + 100.0 * (missing[1:] + missing[:-1]).sum() / 2
    assert np.concatenate(passed)["shortfall"].sum(axis=0).tolist() == pytest.approx([0.0, 0.0, lost], rel=1e-12)
    assert passed[0]["shortfall"].tolist() == [[0.0, 0.0, 100.0]]
    epochs = [2.0 - 0.04 / 0.36, 2.0, 2.0 + 0.032 / 0.04]
    assert cluster.store.reached[0].tolist() == pytest.approx([150.0 + 100.0 * done for done in epochs], rel=1e-9)


def lost_and_reached(interval: float, growth: str, seed: int, failing: bool) -> tuple[FloatArray, FloatArray]:
    """Shortfall by class and [M, levels] times of a few jobs whose GPUs change at fixed times."""
    rules = FailureSettings(mtbf_hours=0.5, mttr_hours=0.1, checkpoint_interval=300.0) if failing else FailureSettings()
    jobs = [job(i, 40.0 * i, epochs=3.5, gpus=1, max_gpus=4, priority=i) for i in range(3)]
    tables = random_tables(seed, 8, 20.0, types=1)
    cluster = make_cluster(jobs, tables, [4, 4], seed=seed, interval=interval, growth=growth, failures=rules)
    lost, rng = np.zeros(3), np.random.default_rng(seed)
    for at in np.arange(0.0, 10_000.0, 120.0):
        while cluster.time < at and not cluster.done:
            lost += cluster.advance()["shortfall"][0]
        if cluster.done:
            break
        if cluster.active_jobs:
            wanted = rng.integers(0, 4, 3)[: cluster.active_jobs] if at < 1000.0 else [2, 1, 1][: cluster.active_jobs]
            give(cluster, np.where(cluster.up_gpus >= sum(wanted), wanted, 0))
    return lost, cluster.store.reached.copy()


@given(st.integers(0, 10_000), st.sampled_from(["pause", "overlap"]), st.booleans())
def test_how_often_one_looks_changes_nothing(seed: int, growth: str, failing: bool) -> None:
    coarse, reached = lost_and_reached(120.0, growth, seed, failing)
    fine, reached_fine = lost_and_reached(8.0, growth, seed, failing)
    assert coarse.tolist() == pytest.approx(fine.tolist(), rel=1e-7, abs=1e-6)
    assert reached == pytest.approx(reached_fine, rel=1e-7, nan_ok=True)


def test_a_job_that_stops_early_lacks_nothing_from_then_on() -> None:
    """After 2 of 3 epochs, in the middle of an interval: what it has not gained by then counts no longer."""
    cluster = make_cluster([job(epochs=3.0), job(1, epochs=9.0)], make_tables([[[[0.01] * 3]]], accuracy=CURVE))
    cluster.store.stop_epoch[0] = 2.0
    give(cluster, [1, 0])
    lost = 0.0
    while cluster.store.gpus[0]:
        lost += cluster.advance()["shortfall"].sum()
    missing = (0.9 - CURVE) / 0.8
    expected = 100.0 * (missing[1:3] + missing[:2]).sum() / 2
    assert lost - cluster.time == pytest.approx(expected, rel=1e-12), "the other waits"
    assert cluster.advance()["shortfall"].sum() == pytest.approx(cluster.time - 200.0, rel=1e-12)
    assert cluster.store.reached[0, 1] == pytest.approx(200.0)
    assert np.isnan(cluster.store.reached[0, 2])


def test_a_level_that_a_failure_takes_back_was_reached() -> None:
    """Without checkpoints a failure takes everything back, but not that it was there."""
    rules = FailureSettings(mtbf_hours=0.08, mttr_hours=0.01, checkpoint_interval=1e9)
    for seed in range(50):
        cluster = make_cluster([job(epochs=3.0)], linear_tables(), [1], seed=seed, interval=7.0, failures=rules)
        reached = np.nan
        while not cluster.done and not (reached > 0.0 and cluster.store.progress[0] == 0.0):
            if cluster.up_gpus:
                give(cluster, [1])
            cluster.advance()
            reached = cluster.store.reached[0, 0]
        if not cluster.done:
            break
    assert not cluster.done
    before = cluster.time
    assert reached < before
    while not cluster.done:
        if cluster.up_gpus:
            give(cluster, [1])
        cluster.advance()
    assert cluster.store.reached[0, 0] == reached
    assert cluster.store.reached[0, 2] > before
