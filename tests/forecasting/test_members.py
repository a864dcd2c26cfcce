"""Simple members and ARIMAs: what all must do, and what each is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.forecasting.arima import FourierArima, LogArima, RawArima
from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.naive import ExponentialSmoothing, MovingAverage, Naive, SeasonalNaive
from rlpto.forecasting.registry import METHODS, load, make_method
from rlpto.forecasting.series import ForecastError, TimeSeries
from rlpto.io.arrays import FloatArray

HOURS = 24 * 21
SIMPLE = ("naive", "mean_24h", "smoothing", "season_24h", "season_168h")
ARIMAS = ("arima_raw", "arima_log", "arima_fourier")
MEMBERS = SIMPLE + ARIMAS


def daily(hours: int = HOURS, seed: int = 0, level: float = 20.0) -> TimeSeries:
    """Hourly counts with a day in them, from a Wednesday 7:00 on."""
    rng = np.random.default_rng(seed)
    hour = np.arange(hours)
    rate = level * np.exp(0.8 * np.sin(2 * np.pi * hour / 24) + 0.3 * np.sin(2 * np.pi * hour / 168))
    return TimeSeries(rng.poisson(rate).astype(float), 3600.0, 18353 * 86400.0 + 7 * 3600.0)


def error(forecaster: Forecaster, series: TimeSeries, first: int, horizon: int = 1) -> float:
    origins = np.arange(first, len(series) - horizon + 1)
    last = forecaster.forecasts(series, origins, horizon)[:, -1]
    return float(np.abs(last - series.values[origins + horizon - 1]).mean())


@pytest.fixture(scope="module")
def series() -> TimeSeries:
    return daily()


@pytest.fixture(scope="module")
def fitted(series: TimeSeries) -> dict[str, Forecaster]:
    """Every member, fitted on all but the last five days."""
    return {name: make_method(name).fit(series.head(HOURS - 120)) for name in MEMBERS}


@pytest.mark.parametrize("name", MEMBERS)
def test_no_forecast_sees_the_future(name: str, fitted: dict[str, Forecaster], series: TimeSeries) -> None:
    rng = np.random.default_rng(1)
    origins = np.arange(1, HOURS + 1)
    before = fitted[name].forecasts(series, origins, 6)
    quantiles = fitted[name].batch_forecasts(series, origins, 6, [0.1, 0.9]).quantiles
    for changed_from in (30, HOURS - 120, HOURS - 1):
        values = series.values.copy()
        values[changed_from:] = rng.integers(0, 500, HOURS - changed_from)
        changed = TimeSeries(values, series.step, series.start)
        known = origins <= changed_from
        np.testing.assert_array_equal(fitted[name].forecasts(changed, origins, 6)[known], before[known])
        after = fitted[name].batch_forecasts(changed, origins, 6, [0.1, 0.9]).quantiles
        np.testing.assert_array_equal(after[known], quantiles[known])


@pytest.mark.parametrize("name", MEMBERS)
def test_past_counts_matter(name: str, fitted: dict[str, Forecaster], series: TimeSeries) -> None:
    more = TimeSeries(np.concatenate([series.values[:-1], [900.0]]), series.step, series.start)
    steps = 24 * 7  # as far as the longest season
    at = [HOURS]
    assert not np.array_equal(fitted[name].forecasts(series, at, steps), fitted[name].forecasts(more, at, steps))


@pytest.mark.parametrize("name", MEMBERS)
def test_online_and_batched_numbers_are_the_same(
    name: str, fitted: dict[str, Forecaster], series: TimeSeries, tmp_path: Path
) -> None:
    fitted[name].save(tmp_path / "f")
    online = load(tmp_path / "f")
    levels = [0.1, 0.5, 0.9]
    origins = [HOURS - 120, HOURS - 119, HOURS - 60, HOURS]
    batched = fitted[name].forecasts(series, origins, 30)
    quantiles = fitted[name].batch_forecasts(series, origins, 30, levels).quantiles
    known = HOURS - 120
    for place, origin in enumerate(origins):
        if origin > known:
            online.update(series.values[known:origin])
        known = origin
        found = online.predict(30, levels)
        np.testing.assert_allclose(found.point, batched[place], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.values, quantiles[place], rtol=1e-9, atol=1e-9)
        assert found.index[0] == pd.Timestamp("2020-04-01 07:00") + pd.Timedelta(hours=origin)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_saved_forecaster_goes_on_as_the_one_before(
    name: str, fitted: dict[str, Forecaster], series: TimeSeries, tmp_path: Path
) -> None:
    fitted[name].save(tmp_path / "folder" / "f.pt")
    again = type(fitted[name]).load(tmp_path / "folder" / "f.pt")
    assert again.settings() == fitted[name].settings()
    here, there = fitted[name].predict(6, [0.2]), again.predict(6, [0.2])
    np.testing.assert_array_equal(here.point, there.point)
    np.testing.assert_array_equal(here.values, there.values)
    again.update(series.values[HOURS - 120 :])
    np.testing.assert_allclose(again.predict(6).point, fitted[name].forecasts(series, [HOURS], 6)[0], rtol=1e-9)


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("shape", ["zeros", "constant", "30 points", "10 points", "level shift", "one burst"])
def test_odd_series_are_forecast_with_finite_counts(name: str, shape: str) -> None:
    rng = np.random.default_rng(2)
    values = {
        "zeros": np.zeros(200),
        "constant": np.full(200, 7.0),
        "30 points": rng.poisson(5, 30),
        "10 points": rng.poisson(5, 10),
        "level shift": np.concatenate([rng.poisson(2, 150), rng.poisson(200, 150)]),
        "one burst": np.where(np.arange(300) == 250, 50_000, rng.poisson(1, 300)),
    }[shape].astype(float)
    forecaster = make_method(name).fit(values, step="1h")
    found = forecaster.predict(12, [0.1, 0.9])
    every = forecaster.forecasts(values, np.arange(1, len(values) + 1), 12)
    for numbers in (found.point, found.mean, found.values, every):
        assert np.isfinite(numbers).all()
        assert (numbers >= 0).all()
    assert (np.diff(found.values, axis=1) >= 0).all()
    if shape in ("zeros", "constant"):
        np.testing.assert_allclose(found.point, values[-1], atol=1e-6)
    elif shape == "level shift":
        # Only who looks a week back may still be at the old level.
        assert found.point[0] > 100 or name == "season_168h"


@pytest.mark.parametrize("name", ["smoothing", "arima_log", "arima_fourier"])
def test_who_has_seen_the_level_move_follows_it_within_a_day(name: str) -> None:
    rng = np.random.default_rng(3)
    level = np.exp(np.cumsum(rng.normal(0, 0.1, HOURS)))
    moving = np.round(np.minimum(level, 50) * daily(level=40.0).values)
    shifted = np.where(np.arange(HOURS) < HOURS - 60, 1.0, 6.0) * moving
    fitted = make_method(name).fit(moving[: HOURS - 120], step="1h")
    late = np.arange(HOURS - 30, HOURS - 12)
    ratio = fitted.forecasts(shifted, late, 6) / fitted.forecasts(moving, late, 6)
    assert 4.0 < np.median(ratio) < 8.0


def test_simple_members_are_what_they_say() -> None:
    y = np.arange(1.0, 61.0)
    assert Naive().fit(y, step="1h").predict(2).point.tolist() == [60, 60]
    assert MovingAverage(3).fit(y, step="1h").predict(2).point.tolist() == [59, 59]
    assert MovingAverage(1).fit(y, step="20min").predict(1).point.tolist() == [59]
    assert MovingAverage(3).fit(y, step="1h").forecasts(y, [1, 2], 1).tolist() == [[1], [1.5]]
    assert SeasonalNaive(24).fit(y, step="1h").predict(26).point.tolist() == [*range(37, 61), 37, 38]
    # Before a whole season is known, the last count.
    assert SeasonalNaive(24).fit(y, step="1h").forecasts(y, [5], 2).tolist() == [[5, 5]]
    levels = ExponentialSmoothing(0.5).fit(y, step="1h").forecasts(y, [1, 2], 1)
    np.testing.assert_allclose(levels, np.expm1([[np.log1p(1)], [(np.log1p(1) + np.log1p(2)) / 2]]))


@given(st.lists(st.integers(0, 1000), min_size=10, max_size=60), st.integers(1, 30), st.floats(0.5, 40))
@settings(max_examples=40)
def test_averages_lie_between_the_extremes_of_what_they_average(values: list[int], horizon: int, hours: float) -> None:
    y = np.array(values, dtype=float)
    origins = np.arange(1, len(y) + 1)
    for member in (MovingAverage(hours), SeasonalNaive(hours), ExponentialSmoothing()):
        found = member.fit(y, step="1h").forecasts(y, origins, horizon)
        low, high = np.minimum.accumulate(y)[:, None], np.maximum.accumulate(y)[:, None]
        assert ((found >= low - 1e-6) & (found <= high * (1 + 1e-9) + 1e-6)).all()


def test_smoothing_learns_how_fast_to_forget() -> None:
    rng = np.random.default_rng(3)
    noise = rng.poisson(50, 500).astype(float)
    walk = np.round(np.exp(4 + np.cumsum(rng.normal(0, 0.2, 500))))
    naive = Naive()
    for y, better in ((noise, True), (walk, False)):
        smooth = TimeSeries(y, 3600.0)
        ratio = error(ExponentialSmoothing().fit(smooth), smooth, 250) / error(naive.fit(smooth), smooth, 250)
        assert ratio < 0.85 if better else ratio < 1.05


def test_arimas_beat_the_naive_where_there_is_something_to_learn(fitted: dict[str, Forecaster]) -> None:
    whole = daily()
    naive = {horizon: error(fitted["naive"], whole, HOURS - 120, horizon) for horizon in (1, 12)}
    for name in ARIMAS:
        assert error(fitted[name], whole, HOURS - 120) < naive[1], name
    # Half a day ahead, who knows the day is far better than who does not.
    assert error(fitted["arima_fourier"], whole, HOURS - 120, 12) < 0.5 * naive[12]


def test_orders_are_told() -> None:
    series = daily(24 * 28)
    fourier = FourierArima().fit(series)
    assert "daily" in fourier.order
    assert "+ 0 daily" not in fourier.order
    assert LogArima().fit(series).order.split(",")[1] == "1"
    stationary = np.random.default_rng(0).poisson(9, 500).astype(float)
    assert RawArima().fit(stationary, step="1h").order.split(",")[1] == "0"
    assert RawArima().fit(np.arange(300.0), step="1h").order.split(",")[1] == "1"


def test_what_could_not_be_fitted_is_told(tmp_path: Path) -> None:
    constant = LogArima().fit(np.full(50, 3.0), step="1h")
    assert "constant" in constant.fallback
    constant.save(tmp_path / "f")
    assert LogArima.load(tmp_path / "f").fallback == constant.fallback
    assert FourierArima().fit(daily()).fallback == ""


def test_weekly_and_daily_terms_follow_the_clock_of_the_series_they_are_applied_to() -> None:
    fitted = FourierArima().fit(daily())
    values = np.full(48, 20.0)
    there = fitted.forecasts(TimeSeries(values, 3600.0, daily().start), [48], 24)[0]
    later = fitted.forecasts(TimeSeries(values, 3600.0, daily().start + 6 * 3600.0), [48], 24)[0]
    assert np.argmax(there) != np.argmax(later)


def covered(forecaster: Forecaster, whole: TimeSeries, first: int) -> float:
    origins = np.arange(first, len(whole))
    bounds: FloatArray = forecaster.batch_forecasts(whole, origins, 1, [0.1, 0.9]).quantiles[:, 0]
    return float(((whole.values[origins] >= bounds[:, 0]) & (whole.values[origins] <= bounds[:, 1])).mean())


@pytest.mark.parametrize("name", ["smoothing", "arima_log", "arima_fourier"])
def test_intervals_cover_about_their_share_while_nothing_changes(name: str) -> None:
    whole = daily(24 * 60, seed=4, level=60.0)
    assert 0.7 < covered(make_method(name).fit(whole.head(24 * 40)), whole, 24 * 40) < 0.9


def test_updates_must_follow_the_history() -> None:
    counts = pd.Series(np.ones(48), index=pd.date_range("2020-04-01", periods=48, freq="1h"))
    naive = Naive().fit(counts)
    with pytest.raises(ForecastError, match="starts at 2020-04-02 12:00:00: expected 2020-04-03 00:00:00"):
        naive.update(counts.iloc[36:])
    following = pd.Series([4.0, 5.0], index=pd.date_range("2020-04-03", periods=2, freq="1h"))
    assert naive.update(following).predict(1).point.tolist() == [5]
    assert naive.update(following.iloc[:1].shift(2, freq="1h")).predict(1).point.tolist() == [4]
    assert naive.update(9).update([8.0, np.nan], gaps="previous").predict(1).point.tolist() == [8]
    for bad in ([np.nan], [-1.0], [], "many"):
        with pytest.raises(ForecastError):
            naive.update(bad)
    assert naive.predict(1).index[0] == pd.Timestamp("2020-04-03 06:00")


def test_arguments_out_of_range_are_refused(tmp_path: Path) -> None:
    y = np.ones(20)
    naive = Naive().fit(y, step="1h")
    for call, message in (
        (lambda: naive.predict(0), "horizon 0: expected an integer, 1 to 10000"),
        (lambda: naive.predict(2.5), "horizon 2.5"),
        (lambda: naive.predict(1, [0.0]), "between 0 and 1"),
        (lambda: naive.predict(1, [0.5]).quantile(0.4), "quantile 0.4: expected one of 0.5"),
        (lambda: naive.forecasts(y, [0], 1), "origins 0 to 0: expected 1 to 20"),
        (lambda: naive.forecasts(y, [21], 1), "expected 1 to 20"),
        (lambda: naive.forecasts(TimeSeries(y, 60.0), [5], 1), "step of 60 s: expected 3600 s"),
        (lambda: naive.fit(y, [[1.0]] * 20, step="1h"), "naive forecasts take no covariates"),
        (lambda: naive.fit(np.ones(9), step="1h"), "9 points: expected at least 10"),
        (lambda: Naive().predict(1), "nothing fitted yet"),
        (lambda: Naive().save(tmp_path / "f"), "nothing fitted yet"),
        (lambda: MovingAverage(0), "hours 0"),
        (lambda: ExponentialSmoothing(1.5), "alpha 1.5"),
        (lambda: naive.predict(10**9), "horizon 1000000000"),
        (lambda: naive.predict(True), "horizon True"),
        (lambda: naive.predict(1, ["low"]), "expected numbers between 0 and 1"),
        (lambda: naive.forecasts(np.ones(6000), np.arange(1, 6001), 9000), "expected 5e+07 forecasts at most"),
        (lambda: make_method("prophet"), f"expected one of {', '.join(METHODS)}"),
    ):
        with pytest.raises(ForecastError) as caught:
            call()  # type: ignore[no-untyped-call]
        assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"\x80\x04K\x01.", b"text"])
def test_broken_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(
        ForecastError, match=r"f: (broken|truncated, damaged) or foreign.*, expected a saved forecaster$"
    ):
        load(tmp_path / "f")


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    Naive().fit(np.ones(20), step="1h").save(tmp_path / "naive")
    with pytest.raises(ForecastError, match="of kind naive, expected arima_log"):
        LogArima.load(tmp_path / "naive")
    with pytest.raises(ForecastError, match="no such file or directory"):
        load(tmp_path / "nothing")
    np.savez(tmp_path / "other.npz", header=np.array('{"format": "other", "version": 1, "kind": "a", "values": {}}'))
    with pytest.raises(ForecastError, match="broken or foreign"):
        load(tmp_path / "other.npz")
    text = '{"format": "forecasting", "version": 99, "kind": "naive", "values": {}}'
    np.savez(tmp_path / "new.npz", header=np.array(text))
    with pytest.raises(ForecastError, match="written in version 99, expected version 5"):
        load(tmp_path / "new.npz")
    np.savez(tmp_path / "half.npz", header=np.array(text.replace("99", "5")))
    with pytest.raises(ForecastError, match="expected a saved naive"):
        load(tmp_path / "half.npz")


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("")
    with pytest.raises(ForecastError, match="cannot write the forecaster there"):
        Naive().fit(np.ones(20), step="1h").save(tmp_path / "blocked" / "f")
    assert [path.name for path in tmp_path.iterdir()] == ["blocked"]


def test_what_was_learnt_can_be_put_on_another_series() -> None:
    model = SeasonalNaive(24).fit(np.arange(72.0), step="1h")
    other = TimeSeries(np.arange(50.0) + 100, 3600.0, 86400.0)
    for updated in (0, 10):
        found = model.moved(other, updated).predict(3)
        np.testing.assert_array_equal(found.point, [126, 127, 128])
        assert found.start == other.start + 50 * 3600
    np.testing.assert_array_equal(model.predict(1).point, [48])
    with pytest.raises(ForecastError, match="series of 600 s a step: expected 3600 s"):
        model.moved(TimeSeries(np.arange(50.0), 600.0))
    with pytest.raises(ForecastError, match="updated 50: expected 0 to 49"):
        model.moved(other, 50)
