import warnings

import numpy as np
import pytest
from statsmodels.tsa.statespace.sarimax import SARIMAX

from rlpto.forecasting.arma import Arima, fit_arima, needs_difference
from rlpto.io.arrays import FloatArray

MIXED = Arima(ar=(0.5,), ma=(-0.6, 0.1), difference=1)


def walk(count: int, seed: int = 0) -> FloatArray:
    rng = np.random.default_rng(seed)
    return 5 + np.cumsum(rng.normal(0, 0.3, count)) + rng.normal(size=count)


@pytest.mark.parametrize(
    "model", [Arima(), Arima(mean=3.0), Arima(difference=1), Arima(ar=(0.5, 0.2), ma=(0.3,), mean=1.0), MIXED]
)
def test_residuals_are_what_the_forecast_one_step_before_missed(model: Arima) -> None:
    z = walk(120)
    one_ahead = model.forecasts(z, np.arange(1, 120), 1)[:, 0]
    missed = (z[1:] - one_ahead)[model.difference :]
    np.testing.assert_allclose(missed, model.residuals(z)[1 + model.difference :], atol=1e-9)


@pytest.mark.parametrize("model", [Arima(ar=(0.5, 0.2), ma=(0.3,)), MIXED])
def test_forecasts_are_those_of_the_kalman_filter(model: Arima) -> None:
    z = walk(400)
    reference = SARIMAX(z, order=(len(model.ar), model.difference, len(model.ma)))
    expected = reference.filter([*model.ar, *model.ma, 1.0]).forecast(20)
    np.testing.assert_allclose(model.forecasts(z, np.array([400]), 20)[0], expected, rtol=1e-6)


def test_walks_need_a_difference_and_noise_does_not() -> None:
    rng = np.random.default_rng(6)
    walks = [needs_difference(np.cumsum(rng.normal(size=1000))) for _ in range(40)]
    noises = [needs_difference(rng.normal(size=1000)) for _ in range(40)]
    assert np.mean(walks) > 0.85
    assert np.mean(noises) < 0.2
    assert not needs_difference(np.ones(50))


@pytest.mark.parametrize("failure", [UserWarning("no convergence"), np.linalg.LinAlgError("singular matrix")])
def test_a_fit_that_warns_or_fails_keeps_its_start(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Result:
        params = np.array([np.nan])

    def fit(*_: object, **__: object) -> type[Result]:
        if not isinstance(failure, Warning):
            raise failure
        warnings.warn(failure, stacklevel=1)
        return Result

    monkeypatch.setattr(SARIMAX, "fit", fit)
    found = fit_arima(walk(300), 1)
    assert np.square(found.residuals(walk(300))).mean() < np.square(np.diff(walk(300))).mean()
