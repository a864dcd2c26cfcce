import numpy as np
import pandas as pd
import pytest

from rlpto.forecasting.series import MONDAY, ForecastError, TimeSeries, as_series, seconds


def hourly(values: list[float], start: str = "2020-04-01") -> pd.Series:
    return pd.Series(values, index=pd.date_range(start, periods=len(values), freq="1h"))


def refused(*arguments: object, **options: object) -> str:
    with pytest.raises(ForecastError) as caught:
        as_series(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pandas_series_and_numbers_with_a_step_are_the_same() -> None:
    dated = as_series(hourly([1, 2, 3]))
    plain = as_series([1, 2, 3], step="1h")
    np.testing.assert_array_equal(dated.values, plain.values)
    assert (dated.step, plain.step, dated.start) == (3600.0, 3600.0, 18353 * 86400.0)
    assert list(dated.index()) == list(hourly([1, 2, 3]).index)


def test_clock_of_a_series_is_the_local_one() -> None:
    zoned = pd.Series([1.0, 2.0], index=pd.date_range("2020-04-01 22:00", periods=2, freq="1h", tz="Asia/Shanghai"))
    assert as_series(zoned).start == as_series(hourly([0.0], "2020-04-01 22:00"), 3600).start
    series = as_series([1.0, 2.0], 600)  # without a start
    assert series.start == MONDAY
    assert series.index()[0].day_name() == "Monday"


@pytest.mark.parametrize(
    ("step", "expected"), [("10min", 600.0), ("1h", 3600.0), ("h", 3600.0), ("1D", 86400.0), (90, 90.0), ("0.5h", 1800)]
)
def test_steps(step: str | float, expected: float) -> None:
    assert seconds(step) == expected


@pytest.mark.parametrize("step", ["soon", "", "600", "-1h", 0, float("nan"), float("inf"), 10**400, "1x"])
def test_bad_steps_are_refused(step: str | float) -> None:
    assert "step" in refused([1.0], step)


def test_steps_of_milliseconds_are_found() -> None:
    series = as_series(pd.Series(np.ones(50), index=pd.date_range("2020-04-01", periods=50, freq="100ms")))
    assert series.step == pytest.approx(0.1, rel=1e-12)


@pytest.mark.parametrize(
    ("stamps", "said"),
    [
        (["00:00", "01:00", "03:00", "04:00"], "timestamp 2020-04-01 03:00:00: expected 2020-04-01 02:00:00"),
        (["00:00", "01:00", "01:00", "02:00"], "timestamp 2020-04-01 01:00:00: expected 2020-04-01 02:00:00"),
        (["00:00", "02:00", "01:00", "02:00", "03:00"], "timestamp 2020-04-01 02:00:00: expected 2020-04-01 01:00:00"),
        (["00:00", "01:00", "02:00", "03:07"], "03:07:00: expected 2020-04-01 03:00:00, as intervals are of 3600 s"),
        (["03:00", "02:00", "01:00"], "timestamp 2020-04-01 02:00:00: expected 2020-04-01 04:00:00"),
        (["00:00", "00:00", "01:00", "01:00"], "timestamp 2020-04-01 00:00:00: expected 2020-04-01 01:00:00"),
        (["00:00", "00:00"], "series of one timestamp: give its step"),
        (["00:00", None], "entry 1 missing"),
    ],
    ids=["gap", "twice", "order", "off the grid", "backwards", "each twice", "one", "none"],
)
def test_broken_timestamps_are_refused(stamps: list[str | None], said: str) -> None:
    index = pd.DatetimeIndex([None if time is None else f"2020-04-01 {time}" for time in stamps])
    broken = pd.Series(np.ones(len(stamps)), index=index)
    assert said in refused(broken)
    if "03:00" in stamps[2:3]:
        assert as_series(broken.asfreq("1h", fill_value=0)).values.tolist() == [1, 1, 0, 1, 1]


def test_impossible_counts_and_other_shapes_are_refused() -> None:
    for bad in (-1.0, np.nan, np.inf):
        assert "at entry 2 (2020-04-01 02:00:00): expected a count, 0 to 1e+12" in refused(hourly([1, 2, bad, 4]))
    assert "give their step" in refused([1.0, 2.0])
    for square in (np.zeros((3, 2)), TimeSeries(np.zeros((3, 2)), 60.0)):
        assert "one dimension" in refused(square, 60)
    for wrong in ("many", 10**400):
        assert "expected numbers" in refused([wrong], 60)
    assert "expected 600 s" in refused(TimeSeries(np.ones(3), 60.0), 600)
    assert "one timestamp" in refused(hourly([1.0]))
    assert "RangeIndex" in refused(pd.Series([1.0, 2.0]))
    assert "of 3 points: expected at least 10" in refused([1.0] * 3, 60, min_points=10)
    assert "0 points" in refused(pd.Series([], index=pd.DatetimeIndex([]), dtype=float))
