from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlpto.forecasting.backtest import backtest
from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.hybrid import HybridForecaster
from rlpto.forecasting.registry import load
from rlpto.forecasting.series import ForecastError, TimeSeries
from rlpto.forecasting.trees import TreesForecaster
from rlpto.io.arrays import FloatArray

POINTS, FITTED = 500, 420


def foretold() -> tuple[TimeSeries, FloatArray]:
    """Counts that one covariate tells an hour before; the other one says nothing."""
    rng = np.random.default_rng(0)
    signal = rng.choice([0.0, 1.0], POINTS)
    counts = rng.poisson(np.where(np.concatenate([[0.0], signal[:-1]]) > 0, 30, 5)).astype(float)
    return TimeSeries(counts, 3600.0), np.stack([1000 * signal, rng.normal(size=POINTS)], axis=1)


Y, X = foretold()
ORIGINS = np.arange(FITTED, POINTS)


def hybrid() -> HybridForecaster:
    return HybridForecaster(horizon=2, hidden=4, updates=5)


def error(forecaster: Forecaster, covariates: FloatArray | None) -> float:
    said = forecaster.forecasts(Y, ORIGINS, 1, covariates)[:, 0]
    return float(np.abs(said - Y.values[ORIGINS]).mean())


@pytest.mark.parametrize("make", [TreesForecaster, hybrid], ids=["trees", "hybrid"])
def test_given_covariates_are_used_and_come_out_the_same_online(make: Callable[[], Forecaster], tmp_path: Path) -> None:
    known = slice(0, FITTED)
    forecaster = make().fit(Y.head(FITTED), X[known])
    assert error(forecaster, X) < 0.7 * error(make().fit(Y.head(FITTED)), None)
    # A covariate is known once its interval is over: later ones must not count.
    later = np.where(np.arange(POINTS)[:, None] >= FITTED + 20, -X, X)
    before, after = (forecaster.forecasts(Y, ORIGINS[:21], 2, given) for given in (X, later))
    np.testing.assert_array_equal(before, after)
    forecaster.save(tmp_path / "model")
    online = load(tmp_path / "model")
    for origin in range(FITTED, FITTED + 5):
        np.testing.assert_allclose(online.predict(2).point, forecaster.forecasts(Y, [origin], 2, X)[0], atol=1e-3)
        online.update(Y.values[origin], X[origin : origin + 1])
    online.update(Y.values[FITTED + 5 : FITTED + 8], X[FITTED + 5 : FITTED + 8])
    np.testing.assert_allclose(online.predict(2).point, forecaster.forecasts(Y, [FITTED + 8], 2, X)[0], atol=1e-3)


def test_covariates_that_are_missing_or_of_another_shape_are_refused() -> None:
    forecaster = TreesForecaster(horizon=2).fit(Y, X)
    with pytest.raises(ForecastError, match="covariates missing: trees was fitted with 2 columns"):
        forecaster.update(3.0)
    with pytest.raises(ForecastError, match=r"covariates of shape \(1, 3\): expected \(1, 2\)"):
        forecaster.update(3.0, [[1.0, 2.0, 3.0]])
    with pytest.raises(ForecastError, match="covariates: expected finite numbers"):
        forecaster.update(3.0, [[1.0, np.nan]])
    with pytest.raises(ForecastError, match="trees: fitted with covariates"):
        forecaster.moved(Y)
    result = backtest({forecaster.kind: forecaster}, Y, covariates=X, horizon=1)
    plain = backtest({forecaster.kind: forecaster}, Y, horizon=1)
    assert result.score("trees", "1", [0]).mae < 0.7 * plain.score("trees", "1", [0]).mae
