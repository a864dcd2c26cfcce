"""Metrics against figures worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.metrics import METRIC, METRICS, lower_bound, measure
from rlpto.evaluation.runner import Cell
from rlpto.evaluation.timeline import utilisation

from ..builders import job, linear_tables, make_cluster, played
from .helpers import empty_record, tiny_record, toy_record


def test_every_metric_of_three_jobs() -> None:
    expected = {
        "reward": -4.75,
        "reward_accuracy": 3.0,
        "reward_time": -5.0,
        "reward_resources": -2.25,
        "reward_rescale": -0.5,
        "reward_shortfall": 0.0,
        "reward_money": 0.0,
        "jct_mean": 200.0,
        "jct_median": 200.0,
        "jct_p95": 290.0,
        "jct_p99": 298.0,
        "makespan": 350.0,
        "queueing_mean": 50.0,
        "queueing_p95": 135.0,
        "queueing_high": 0.0,
        "queueing_normal": 0.0,
        "queueing_low": 150.0,
        "utilisation": 1200 / 1400,
        "gpu_hours": 1200 / 3600,
        "cost": math.nan,
        **dict.fromkeys(("node_gpu_hours", "idle_gpu_hours", "late_hours", "idle_cost"), math.nan),
        "cost_per_job": math.nan,
        "rescales_per_job": 1.0,
        "fairness_mean": (2 / 3 + 2 / 3 + 1.5) / 3,
        "slowdown_mean": 2.0,
        "final_accuracy": 0.8,
        "epochs_saved": math.nan,
        "accuracy_lost": math.nan,
        "ettr": (90 / 100 + 180 / 200 + 100 / 300) / 3,
        "lost_gpu_hours": 2.0,
        "time_to_90": (60 + 120 + 200) / 3,
        "time_to_95": (80 + 160 + 250) / 3,
        "time_to_99": (90 + 190) / 2,
        "accuracy_hours_lost": 240 / 3600,
        "latency_p50": 0.0025,
        "latency_p99": 0.00397,
        "unfinished": 0.0,
        "jobs": 3.0,
        "wall_seconds": 0.5,
    }
    assert measure(tiny_record()) == pytest.approx(expected, nan_ok=True)
    assert list(measure(tiny_record())) == [metric.name for metric in METRICS]


def test_unfinished_jobs_are_left_out_of_the_times_of_which_a_run_without_jobs_has_none() -> None:
    values = measure(tiny_record(finish=(100.0, 200.0, np.nan)))
    assert values["unfinished"] == 1
    assert values["jct_mean"] == 150.0
    assert np.isnan(values["makespan"])
    # Up to the last event on record at 350 s.
    assert values["utilisation"] == pytest.approx(1200 / 1400)
    values = measure(empty_record())
    assert (values["reward"], values["jobs"]) == (0.0, 0.0)
    assert np.isnan([values["jct_mean"], values["makespan"], values["utilisation"], values["latency_p99"]]).all()
    assert np.isnan(lower_bound(empty_record())["makespan"])


@pytest.mark.parametrize("jobs", [1, 2])
def test_gpus_are_used_until_the_time_limit_where_it_stops_a_run(jobs: int) -> None:
    cluster = make_cluster([job(i, epochs=1e9) for i in range(jobs)], linear_tables(), [8], max_hours=10)
    record = played(cluster)
    assert record.end == 36_000.0
    assert measure(record)["utilisation"] == pytest.approx(jobs / 8)


def test_utilisation_by_stretch_of_time_and_with_capacity_lost_to_failures() -> None:
    record = tiny_record()
    assert utilisation(record, np.array([0.0, 100.0, 200.0, 350.0])) == pytest.approx([1.0, 0.5, 1.0])
    decisions = type(record.decisions)(**{**vars(record.decisions), "capacity": np.array([4, 4, 2, 4])})
    # 2 GPUs were down from 100 s to 200 s.
    assert measure(tiny_record(decisions=decisions))["utilisation"] == pytest.approx(1200 / 1200)


def test_lower_bound_runs_every_job_alone_from_its_submit() -> None:
    bound = lower_bound(tiny_record(), RewardWeights(classes=(3.0, 2.0, 1.0), time=2.0, resources=0.5))
    assert bound["jct_mean"] == 100.0
    assert bound["makespan"] == 200.0
    assert bound["queueing_low"] == 0.0
    assert bound["slowdown_mean"] == 1.0
    assert bound["reward_accuracy"] == 6.0
    assert bound["reward_time"] == pytest.approx(-2 * 300 / 3600)
    assert bound["reward_resources"] == pytest.approx(-0.5 * 300 / 3600)
    assert bound["reward"] == pytest.approx(6 - 2.5 * 300 / 3600)
    assert np.isnan(bound["utilisation"])
    assert bound.keys() == METRIC.keys()
    record = tiny_record()
    guessed = replace(record, jobs=replace(record.jobs, alone_time=np.array([50.0, np.nan, 150.0])))
    assert lower_bound(guessed, RewardWeights()) == {}, "where speeds are guessed there is none"
    assert np.isnan(lower_bound(record)["reward"]), "without weights there is none of the reward"


@given(policy=st.sampled_from(["fifo", "a", "b", "c"]), seed=st.integers(0, 10_000), jobs=st.integers(1, 25))
def test_no_run_beats_the_bound_and_both_ways_to_count_gpus_agree(policy: str, seed: int, jobs: int) -> None:
    record = toy_record(Cell(policy, "w", seed), jobs=jobs)
    values, bound = measure(record), lower_bound(record, RewardWeights())
    for name in ("jct_mean", "jct_median", "jct_p95", "jct_p99", "makespan", "slowdown_mean", "queueing_mean"):
        assert values[name] >= bound[name] * (1 - 1e-9)
    for name in ("reward", "reward_accuracy", "reward_time", "reward_resources", "reward_rescale"):
        assert values[name] <= bound[name] + 1e-9
    held = values["utilisation"] * record.capacity * values["makespan"]
    assert held == pytest.approx(record.jobs.gpu_seconds.sum())
    assert 0 < values["utilisation"] <= 1 + 1e-9
