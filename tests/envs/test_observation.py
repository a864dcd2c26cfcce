"""Observations against numbers worked out by hand."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from rlpto.core.cluster import Forecast
from rlpto.core.queues import Queue, QueueSettings
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.features import CLUSTER_FEATURES, JOB_FEATURES
from rlpto.envs.observation import FORECAST_FEATURES, LIMIT, Observation, empty_observation, encode, observe
from rlpto.simulator.cluster import SimulatedCluster

from ..builders import give, job, linear_tables, make_cluster
from .builders import WHOLE, make_setup


def look(cluster: SimulatedCluster, max_jobs: int = 4, forecast: Forecast | None = None) -> Observation:
    state = Queue(QueueSettings()).order(cluster.state())
    if forecast is not None:
        state = replace(state, forecast=forecast)
    return observe(state, cluster.held_gpus, max_jobs, 2)


def two_jobs() -> SimulatedCluster:
    """At second 600: a low job that has run on two of eight GPUs since second 0, and a high one that waits.

    Linear speed of 0.001 epochs/s per GPU, 20 s of rescale delay: 580 s x 0.002 = 1.16 epochs done of 9.
    """
    jobs = [
        job(0, epochs=9.0, gpus=2, min_gpus=1, max_gpus=4, priority=2),
        job(1, submit=600.0, epochs=3.6, gpus=1, max_gpus=8, priority=0, data_size=10_000.0),
    ]
    cluster = make_cluster(jobs, linear_tables(0.001, 8, 20.0), [8], interval=600.0)
    give(cluster, [2])
    while cluster.time < 600.0:
        cluster.advance()
    return cluster


def test_features_of_jobs_by_hand():
    seen = look(two_jobs())
    high, low = (dict(zip(JOB_FEATURES, row.tolist(), strict=True)) for row in seen.jobs[:2])
    assert seen.mask.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert not seen.jobs[2:].any()
    hours = (9.0 - 1.16) / 0.001 / 3600.0
    assert low["remaining"] == pytest.approx(np.log(hours) / 4, rel=1e-5)
    assert low["remaining_at_most"] == pytest.approx(np.log(hours / 4) / 4, rel=1e-5)
    assert low["gain"] == pytest.approx(0.0, abs=1e-6)
    assert low["efficiency"] == pytest.approx(0.0, abs=1e-6)
    assert low["held"] == pytest.approx(np.log2(3) / 6)
    assert low["held_of_most"] == pytest.approx(0.5)
    assert low["most"] == pytest.approx(np.log2(5) / 6)
    assert low["requested"] == pytest.approx(np.log2(3) / 6)
    assert low["fewest"] == pytest.approx(1 / 6)
    assert low["age"] == pytest.approx(np.log1p(600 / 3600) / 2, rel=1e-5)
    assert low["waiting"] == 0.0
    assert low["attained"] == pytest.approx(np.log1p(1200 / 3600) / 4, rel=1e-5)
    assert low["rescale_delay"] == pytest.approx(20 / 60)
    assert low["rescaling"] == 0.0
    assert low["work_left"] == pytest.approx(1 - 1.16 / 9, rel=1e-5)
    assert (low["high"], low["normal"], low["low"]) == (0.0, 0.0, 1.0)
    assert (low["shorter"], low["work_ahead"]) == (0.0, 0.0)
    assert low["to_finish"] == pytest.approx(np.log(hours / 2) / 4, rel=1e-5)
    assert low["fair_share"] == pytest.approx(np.log2(4 / 4) / 3, abs=1e-6)
    # The curve of the tables: the root of 0.1 ... 0.9, at whole epochs up to 3; the job ends at its flat end.
    curve = np.linspace(0.1, 0.9, 4) ** 0.5
    now = np.interp(1.16, np.arange(4), curve)
    assert low["accuracy_left"] == pytest.approx((curve[3] - now) / (curve[3] - curve[0]), rel=1e-4)
    assert low["slope"] == pytest.approx(np.log1p(low["accuracy_left"] / low["work_left"]) / 2, rel=1e-5)
    # Ten times the data: a tenth of the epochs per second, so 3.6 epochs take 10 hours.
    assert high["remaining"] == pytest.approx(np.log(10.0) / 4, rel=1e-5)
    assert high["data_size"] == pytest.approx(4 / 8)
    assert high["held"] == high["efficiency"] == high["age"] == high["attained"] == 0.0
    assert (high["work_left"], high["accuracy_left"]) == (1.0, 1.0)
    assert (high["shorter"], high["to_finish"]) == (0.5, 0.0)
    assert high["work_ahead"] == pytest.approx(np.log1p(hours / 8), rel=1e-5)
    assert (high["high"], high["normal"], high["low"]) == (1.0, 0.0, 0.0)


def test_features_of_the_cluster_by_hand():
    seen = dict(zip(CLUSTER_FEATURES, look(two_jobs(), max_jobs=1).cluster.tolist(), strict=True))
    low = (9.0 - 1.16) / 3.6
    assert seen["capacity"] == pytest.approx(3 / 10)
    assert seen["node"] == pytest.approx(np.log2(9) / 6)
    assert seen["free"] == pytest.approx(6 / 8)
    assert seen["jobs"] == pytest.approx(np.log1p(20 / 8) / 2)
    assert seen["waiting"] == pytest.approx(np.log1p(10 / 8) / 2)
    assert (seen["high"], seen["normal"], seen["low"]) == (0.5, 0.0, 0.5)
    assert seen["hidden"] == 0.5
    assert seen["hidden_work"] == pytest.approx(np.log1p(low / 8), rel=1e-5)
    assert seen["hidden_wish"] == pytest.approx(np.log1p(4 / 8))
    assert seen["wish"] == pytest.approx(np.log1p(12 / 8))
    assert seen["requested"] == pytest.approx(np.log1p(3 / 8))
    assert seen["work"] == pytest.approx(np.log1p((10.0 + low) / 8), rel=1e-5)
    assert seen["per_gpu"] == pytest.approx(np.log((10.0 + low) / 2) / 4, rel=1e-5)
    assert seen["idle_interval"] == pytest.approx(np.log2(10) / 6)
    assert seen["next_finish"] == pytest.approx(np.log(low / 2) / 4, rel=1e-5)


def test_the_forecast_stands_interval_by_interval():
    mean = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    seen = look(two_jobs(), forecast=Forecast(mean, mean / 2, mean * 2))
    by_interval = seen.forecast.reshape(2, FORECAST_FEATURES)
    np.testing.assert_allclose(by_interval[1], np.log1p([4, 5, 6, 2, 2.5, 3, 8, 10, 12]) / 3, rtol=1e-6)
    short = look(two_jobs(), forecast=Forecast(mean[:1], mean[:1], mean[:1])).forecast.reshape(2, FORECAST_FEATURES)
    assert short[0].all()
    assert not short[1].any()


def test_strange_workloads_stay_within_the_limits():
    """A job of a million years: log(hours) / 4 and log(work) are cut to the limit of the space."""
    env = ClusterEnv(make_setup([[job(0, epochs=1e12, data_size=1e15)]], tables=linear_tables(1e-6), episode=WHOLE,
                                baseline="none"))  # fmt: skip
    seen = env.reset(seed=0)[0]
    assert env.observation_space.contains(seen)
    assert seen["jobs"].max() == LIMIT


def test_observations_keep_no_reference_to_the_speeds_of_jobs() -> None:
    jobs = Queue(QueueSettings()).order(two_jobs().state()).jobs
    view, speed, seen = (
        jobs.records,
        np.array(jobs.speed),
        Observation(*(part[0] for part in empty_observation(1, 4, 2))),
    )
    before = sys.getrefcount(speed)
    for _ in range(10):
        encode(600.0, 8, 8, 2, 600.0, view, speed, seen)
    assert sys.getrefcount(speed) == before
