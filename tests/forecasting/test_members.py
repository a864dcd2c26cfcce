"""The members of the combination: what each of them learns."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.gru import GruForecaster
from rlpto.forecasting.naive import ExponentialSmoothing, MovingAverage, Naive, SeasonalNaive
from rlpto.forecasting.registry import make_forecaster
from rlpto.forecasting.series import TimeSeries
from rlpto.forecasting.trees import TreesForecaster, add_up, forest_of
from rlpto.io.arrays import FloatArray

from .builders import days, error


def test_simple_members_are_what_they_say() -> None:
    y = TimeSeries(np.arange(1.0, 61.0), 3600.0)
    assert Naive().fit(y).predict(2).point.tolist() == [60, 60]
    assert MovingAverage(3).fit(y).predict(2).point.tolist() == [59, 59]
    assert MovingAverage(1).fit(y.values, step="20min").predict(1).point.tolist() == [59]
    assert MovingAverage(3).fit(y).batch(y, np.array([1, 2]), 1).point.tolist() == [[1], [1.5]]
    assert SeasonalNaive(24).fit(y).predict(26).point.tolist() == [*range(37, 61), 37, 38]
    # Before a whole season is known, the last count.
    assert SeasonalNaive(24).fit(y).batch(y, np.array([5]), 2).point.tolist() == [[5, 5]]
    levels = ExponentialSmoothing(0.5).fit(y).batch(y, np.array([1, 2]), 1).point
    np.testing.assert_allclose(levels, np.expm1([[np.log1p(1)], [(np.log1p(1) + np.log1p(2)) / 2]]))


def test_smoothing_learns_how_fast_to_forget() -> None:
    rng, origins = np.random.default_rng(3), np.arange(250, 500)
    noise = rng.poisson(50, 500).astype(float)
    walk = np.round(np.exp(4 + np.cumsum(rng.normal(0, 0.2, 500))))
    for y, most in ((noise, 0.85), (walk, 1.05)):
        series = TimeSeries(y, 3600.0)
        smooth, naive = (error(member.fit(series), series, origins) for member in (ExponentialSmoothing(), Naive()))
        assert smooth < most * naive


@pytest.mark.parametrize("name", ["arima_raw", "arima_log", "arima_fourier"])
def test_arimas_are_ahead_of_the_naive(name: str, whole: TimeSeries) -> None:
    origins = np.arange(480, len(whole) - 12)
    arima, naive = (make_forecaster(one).fit(whole.head(480)) for one in (name, "naive"))
    assert error(arima, whole, origins) < error(naive, whole, origins)
    if name == "arima_fourier":  # half a day ahead, the daily terms decide
        assert error(arima, whole, origins, 12) < 0.5 * error(naive, whole, origins, 12)


@pytest.mark.slow
def test_a_network_learns_a_daily_pattern() -> None:
    whole, origins, before = days(40), np.arange(800, 940), torch.get_rng_state()
    member = GruForecaster(updates=60).fit(whole.head(800))
    assert torch.equal(torch.get_rng_state(), before), "torch's own random numbers are left alone"
    naive = Naive().fit(whole.head(800))
    learnt, plain = (sum(error(one, whole, origins, h) for h in range(1, 13)) for one in (member, naive))
    assert learnt < 0.6 * plain


def test_weekly_and_daily_terms_follow_the_clock_of_the_series_they_are_applied_to(
    fitted: dict[str, Forecaster], whole: TimeSeries
) -> None:
    values, fourier = np.full(48, 20.0), fitted["arima_fourier"]
    shifted = (TimeSeries(values, 3600.0, whole.start + shift) for shift in (0.0, 6 * 3600.0))
    there, later = (fourier.batch(series, np.array([48]), 24).point[0] for series in shifted)
    assert np.argmax(there) != np.argmax(later)


@pytest.mark.parametrize("name", ["smoothing", "arima_log", "arima_fourier"])
def test_intervals_cover_about_their_share_while_nothing_changes(name: str) -> None:
    whole, origins = days(60, seed=4, level=60.0), np.arange(24 * 40, 24 * 60)
    member = make_forecaster(name).fit(whole.head(24 * 40))
    bounds: FloatArray = member.batch(whole, origins, 1, np.array([0.1, 0.9])).quantiles[:, 0]
    actual = whole.values[origins]
    assert 0.7 < np.mean((actual >= bounds[:, 0]) & (actual <= bounds[:, 1])) < 0.9


def test_trees_learn_what_lags_and_clock_show_together() -> None:
    """Counts that no sum of lags and clock explains: afternoons bring ten times as many, on two days of the week."""
    hour = np.arange(24 * 60)
    rate = np.where((hour // 24 % 7 < 2) & (hour % 24 > 11), 40.0, 4.0)
    whole = TimeSeries(np.random.default_rng(0).poisson(rate).astype(float), 3600.0)
    origins = np.arange(24 * 50, len(whole))
    said = error(TreesForecaster(horizon=2).fit(whole.head(24 * 50)), whole, origins)
    others = (np.roll(whole.values, 24), rate)
    yesterday, known = (np.abs(other[origins] - whole.values[origins]).mean() for other in others)
    assert said < min(0.5 * yesterday, 1.5 * known), "not far from the least there can be, that of who knows the rate"


@given(st.integers(0, 10_000), st.integers(1, 40))
def test_trees_say_what_scikit_learn_says(seed: int, trees: int) -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    rng = np.random.default_rng(seed)
    columns = np.round(rng.normal(size=(300, 4)), 1)
    truth = columns[:, 0] * (columns[:, 1] > 0) + rng.normal(size=300)
    model = HistGradientBoostingRegressor(loss="absolute_error", max_iter=trees, random_state=0).fit(columns, truth)
    asked = np.round(2 * rng.normal(size=(100, 4)), 1)
    np.testing.assert_allclose(add_up(forest_of(model, trees), asked), model.predict(asked), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(add_up(forest_of(model, 0), asked), np.median(truth), atol=1e-9)
