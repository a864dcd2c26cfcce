from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlpto.forecasting.hybrid import LABELS, NAMES, HybridForecaster
from rlpto.forecasting.registry import load
from rlpto.forecasting.series import ForecastError, TimeSeries
from rlpto.io.arrays import FloatArray
from tests.forecasting.test_networks import days

FITTED = 480


def quick() -> HybridForecaster:
    return HybridForecaster(horizon=6, hidden=8, updates=40)


@pytest.fixture(scope="module")
def whole() -> TimeSeries:
    return days(25)


@pytest.fixture(scope="module")
def saved(whole: TimeSeries, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hybrid") / "hybrid.npz"
    quick().fit(whole.head(FITTED)).save(path)
    return path


@pytest.fixture
def fitted(saved: Path) -> HybridForecaster:
    return HybridForecaster.load(saved)


def test_online_and_batched_numbers_are_the_same(fitted: HybridForecaster, whole: TimeSeries) -> None:
    for origin in range(FITTED + 1, FITTED + 9):
        found = fitted.update(whole.values[origin - 1]).predict(6, [0.1, 0.5, 0.9])
        np.testing.assert_allclose(found.point, fitted.forecasts(whole, [origin], 6)[0], rtol=1e-4, atol=1e-4)
        batch = fitted.batch_forecasts(whole, [origin], 6, [0.1, 0.5, 0.9])
        np.testing.assert_allclose(found.mean, batch.mean[0], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(found.values, batch.quantiles[0], rtol=1e-3, atol=1e-3)
    # Several counts at once, and further ahead than was learnt.
    found = fitted.update(whole.values[FITTED + 8 : FITTED + 12]).predict(15)
    np.testing.assert_allclose(found.point, fitted.forecasts(whole, [FITTED + 12], 15)[0], rtol=1e-4, atol=1e-4)


def test_no_forecast_sees_the_future(fitted: HybridForecaster, whole: TimeSeries) -> None:
    origins = np.arange(FITTED - 100, FITTED + 31)
    changed = TimeSeries(np.where(np.arange(len(whole)) >= FITTED + 30, 9999.0, whole.values), whole.step, whole.start)
    before, after = (fitted.batch_forecasts(y, origins, 6, [0.1, 0.9]) for y in (whole, changed))
    for name in ("point", "mean", "quantiles"):
        np.testing.assert_allclose(getattr(before, name), getattr(after, name), rtol=1e-4, atol=1e-4)


def test_predict_before_a_count_is_not_changed_by_it(fitted: HybridForecaster) -> None:
    twin = HybridForecaster.from_state(fitted.state(), "twin")
    np.testing.assert_array_equal(fitted.predict(6).point, twin.predict(6).point)
    assert np.abs(fitted.update(500.0).predict(6).point - twin.update(0.0).predict(6).point).max() > 0.1


def test_forecast_is_complete(fitted: HybridForecaster) -> None:
    found = fitted.predict(6, [0.9, 0.1, 0.5])
    assert found.point.shape == found.mean.shape == (6,)
    np.testing.assert_array_equal(found.levels, [0.1, 0.5, 0.9])
    assert (np.diff(found.values, axis=1) >= 0).all()
    np.testing.assert_allclose(found.quantile(0.5), found.point)


def test_parts_and_weights_explain_the_forecast(fitted: HybridForecaster, whole: TimeSeries) -> None:
    origins = np.array([FITTED + 5, FITTED + 40])
    parts, weights = fitted.parts(whole, origins, 6), fitted.weights(whole, origins)
    assert tuple(parts) == NAMES
    assert weights.shape == (2, 6, len(LABELS))
    np.testing.assert_allclose(weights.sum(axis=2), 1.0)
    assert (weights > 0).all()
    # Between the smallest and the largest of its experts; corrected copies may lie a little outside the parts.
    found = fitted.forecasts(whole, origins, 6)
    everyone = np.stack(list(parts.values()))
    assert (found >= 0.5 * everyone.min(axis=0)).all()
    assert (found <= 2.0 * everyone.max(axis=0)).all()


def test_combination_is_close_to_its_best_part(fitted: HybridForecaster, whole: TimeSeries) -> None:
    origins = np.arange(FITTED, len(whole) - 6)
    truth = np.stack([whole.values[origins + h] for h in range(6)], axis=1)
    error = np.abs(fitted.forecasts(whole, origins, 6) - truth).mean()
    best = min(np.abs(part - truth).mean() for part in fitted.parts(whole, origins, 6).values())
    assert error < 1.05 * best


def test_level_shift_is_followed(fitted: HybridForecaster, whole: TimeSeries) -> None:
    shifted = TimeSeries(whole.values * np.where(np.arange(len(whole)) >= FITTED, 4, 1), whole.step, whole.start)
    origins = np.arange(FITTED + 48, len(whole) - 6)
    truth = np.stack([shifted.values[origins + h] for h in range(6)], axis=1)
    error = np.abs(fitted.forecasts(shifted, origins, 6) - truth).mean()
    best = min(np.abs(part - truth).mean() for part in fitted.parts(shifted, origins, 6).values())
    assert error < 1.1 * best


@pytest.mark.parametrize(
    "values",
    [np.zeros(60), np.full(60, 7.0), days(2).values[:30], np.arange(12.0)],
    ids=["zeros", "constant", "30 points", "12 points"],
)
def test_odd_series_give_finite_counts(values: FloatArray) -> None:
    forecaster = HybridForecaster(horizon=3, hidden=4, updates=5).fit(values, step=3600.0)
    found = forecaster.update(values[:5]).predict(5, [0.1, 0.9])
    for numbers in (found.point, found.mean, found.values):
        assert np.isfinite(numbers).all()
        assert (numbers >= 0).all()
    if np.ptp(values) == 0:
        np.testing.assert_allclose(found.point, values[0], rtol=0.05, atol=0.05)
        np.testing.assert_allclose(found.values, values[0], rtol=0.05, atol=0.05)


def test_what_parts_fell_back_to_is_on_record() -> None:
    forecaster = HybridForecaster(horizon=3, hidden=4, updates=5).fit(np.full(60, 7.0), step=3600.0)
    assert "arima_log: constant series" in forecaster.fallback


def test_series_with_holes_is_refused_or_filled_as_asked() -> None:
    stamps = pd.date_range("2024-01-01", periods=60, freq="h").delete(20)
    counts = pd.Series(np.arange(59.0), index=stamps)
    with pytest.raises(ForecastError, match="1 intervals missing"):
        quick().fit(counts)
    twice = pd.Series(np.ones(3), index=stamps[[0, 1, 1]])
    with pytest.raises(ForecastError, match="occurs twice"):
        quick().fit(twice)
    filled = HybridForecaster(horizon=3, hidden=4, updates=5).fit(counts, gaps="zero")
    assert np.isfinite(filled.predict(3).point).all()


def test_file_that_was_cut_is_refused(saved: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.npz"
    cut.write_bytes(saved.read_bytes()[:2000])
    with pytest.raises(ForecastError, match=r"cut\.npz: truncated, damaged or foreign .*, expected a saved forecaster"):
        load(cut)


def test_file_with_a_part_missing_is_refused(fitted: HybridForecaster) -> None:
    state = fitted.state()
    del state.arrays["learnt/pool.weights"]
    with pytest.raises(ForecastError, match="here: broken, expected a saved hybrid"):
        HybridForecaster.from_state(state, "here")


def test_import_of_the_package_alone_is_light() -> None:
    import subprocess
    import sys

    program = "import sys, rlpto.forecasting; print(sorted({'torch', 'pandas', 'numba', 'scipy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
