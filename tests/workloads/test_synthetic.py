from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlpto.io.errors import TraceError
from rlpto.workloads.calibration import LEVELS, Calibration, DurationCurve, GpuClass, load_calibration
from rlpto.workloads.importers import import_trace
from rlpto.workloads.synthetic import calibrate, cluster_users, generate
from rlpto.workloads.trace import Trace, make_trace

HOUR, DAY = 3600.0, 86_400.0


def constant(value: float) -> tuple[float, ...]:
    return (value,) * len(LEVELS)


def gpu_class(
    gpus: dict[int, float], share: float, jobs: float, seconds: tuple[float, ...], likeness: float
) -> GpuClass:
    curve = DurationCurve(seconds=seconds)
    return GpuClass(gpus=gpus, submissions=share, jobs=constant(jobs), durations=(curve,), likeness=likeness)


def plain_calibration(**changes: object) -> Calibration:
    """Ten submissions an hour by day, two by night, of one or two jobs with 1 or 4 GPUs."""
    day = (2.0,) * 8 + (10.0,) * 12 + (2.0,) * 4
    spread = tuple(float(100 * 10**level) for level in LEVELS)
    values: dict[str, object] = {
        "name": "plain",
        "first_day": "2020-01-06",
        "days": 7,
        "pause": 60.0,
        "gap": 5.0,
        "day_sigma": 0.0,
        "day_correlation": 0.0,
        "submissions_per_hour": day * 7,
        "classes": (
            gpu_class({1: 1.0}, 0.75, 2, spread, likeness=0.8),
            gpu_class({4: 0.5, 3: 0.5}, 0.25, 1, constant(1000), likeness=0),
        ),
    }
    return Calibration.model_validate({**values, **changes})


def test_seed_rate_and_days() -> None:
    first, again, other = (generate(plain_calibration(), 3, seed) for seed in (1, 1, 2))
    assert first.jobs.equals(again.jobs)
    assert not first.jobs.equals(other.jobs)
    counts = [len(generate(plain_calibration(), 30, 1, rate_scale=scale)) for scale in (0.5, 1, 2)]
    assert counts[0] / counts[1] == pytest.approx(0.5, rel=0.1)
    assert counts[2] / counts[1] == pytest.approx(2, rel=0.1)
    assert generate(plain_calibration(), 0.5, 1).submit_time[-1] < 0.5 * DAY
    with pytest.raises(TraceError, match="expected both above 0"):
        generate(plain_calibration(), 0, 1)
    with pytest.raises(TraceError, match="not a single job"):
        generate(plain_calibration(), 0.01, 1, rate_scale=1e-9)


def test_calibrating_a_generated_trace_gives_the_calibration_back() -> None:
    asked = plain_calibration(day_sigma=0.3, day_correlation=0.6)
    found = calibrate(generate(asked, 490, 5), name="again")
    np.testing.assert_allclose(found.submissions_per_hour, asked.submissions_per_hour, rtol=0.3)
    assert sum(found.submissions_per_hour) == pytest.approx(sum(asked.submissions_per_hour), rel=0.1)
    assert found.day_sigma == pytest.approx(0.3, abs=0.06)
    assert found.day_correlation == pytest.approx(0.6, abs=0.15)
    assert found.gap == pytest.approx(5, rel=0.1)
    assert [set(group.gpus) for group in found.classes] == [{1}, {3, 4}]
    assert found.classes[0].submissions == pytest.approx(0.75, abs=0.02)
    assert found.classes[0].jobs[10] == 2
    assert found.classes[0].likeness == pytest.approx(0.8, abs=0.06)
    assert found.classes[0].durations[0].seconds[11] == pytest.approx(100 * 10**0.5, rel=0.05)


def test_calibrate_needs_a_week_and_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraceError, match=r"3 whole days from 2018-01-01 on, expected at least 7"):
        calibrate(generate(plain_calibration(), 3, 0))
    with pytest.raises(TraceError, match=r"begins on 2018-01-01, expected --start to be no earlier"):
        calibrate(generate(plain_calibration(), 10, 0), start=pd.Timestamp("2017-12-01"))
    unknown = make_trace({"name": ["a", "b"], "submit_time": [0.0, 8 * DAY]}, source="test")
    with pytest.raises(TraceError, match="no job with a known duration"):
        calibrate(unknown)
    with pytest.raises(TraceError, match=r"0 whole days from 2018-01-01 on"):
        calibrate(unknown.take(np.arange(0)))
    busy = np.append(np.arange(0, 7 * DAY, 600.0), 14 * DAY)  # for a week, then nothing for a week
    assert calibrate(make_trace({"submit_time": busy, "duration": np.full(len(busy), 60.0)}, "test")).day_sigma == 3
    sweeps = (np.arange(20)[:, None] * DAY / 2 + np.arange(10)).ravel()  # none has fewer than ten jobs
    (group,) = calibrate(make_trace({"submit_time": sweeps, "duration": np.full(len(sweeps), 60.0)}, "test")).classes
    assert [curve.submission_jobs for curve in group.durations] == [1]
    monkeypatch.setattr("rlpto.workloads.synthetic.LARGEST_SUBMISSION", 1)
    with pytest.raises(TraceError, match=r"jobs of one size at most 60 s apart, expected at most 1"):
        calibrate(generate(plain_calibration(), 10, 0))


@pytest.mark.slow
def test_the_committed_calibration_is_what_calibrate_gives_of_the_whole_philly_csv(shared_data: Path) -> None:
    imported = import_trace("philly_csv", shared_data / "traces" / "philly.csv.gz")
    assert (len(imported.trace), imported.skipped) == (64_483, ())
    assert imported.trace.origin == pd.Timestamp("2017-09-04 10:30:41")
    committed = load_calibration("philly")
    start = pd.Timestamp(committed.first_day)
    assert start == pd.Timestamp("2017-10-03")
    assert calibrate(imported.trace, name="philly", source=committed.source, start=start) == committed


@pytest.fixture(scope="module")
def day() -> Trace:
    trace = generate(load_calibration("philly"), 14, seed=1).slice(4 * 86_400.0, 5 * 86_400.0)
    groups = np.array([f"vc{int(user[-1]) % 2}" for user in trace.texts("user")], dtype=object)
    return Trace(trace.jobs.assign(group=groups), trace.origin, trace.source)


def test_a_few_users_have_most_jobs_and_no_user_is_in_two_virtual_clusters(day: Trace) -> None:
    users = cluster_users(day, seed=0)
    assert np.array_equal(users, cluster_users(day, 0))
    assert not np.array_equal(users, cluster_users(day, 1))
    counts = np.sort(np.bincount(users))[::-1]
    assert 4 < np.count_nonzero(counts) < 0.2 * len(day)
    assert counts[:3].sum() > 0.4 * len(day)
    jobs = day.jobs.assign(made=users)
    assert (jobs.groupby("made")["group"].nunique() == 1).all()
    assert (jobs.groupby("user")["made"].nunique() == 1).all()


def test_users_explain_more_than_half_but_not_all_of_how_long_jobs_take() -> None:
    rng = np.random.default_rng(0)
    durations, explained = np.exp(rng.normal(7.0, 2.0, 300)), []
    trace = make_trace({"submit_time": 100.0 * np.arange(300), "duration": durations, "gpus": np.ones(300)}, "test")
    for seed in range(5):
        log, user = pd.Series(np.log(durations)), cluster_users(trace, seed)
        size, mean = (log.groupby(user).transform(what) for what in ("size", "mean"))
        error = (log - (mean * size - log) / (size - 1))[size > 1]
        explained.append(1 - (error**2).mean() / log.var())
    assert 0.5 < np.mean(explained) < 0.8
