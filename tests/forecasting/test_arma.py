from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.tsa.statespace.sarimax import SARIMAX

from rlpto.forecasting import arma
from rlpto.forecasting.arma import Arima, Filter, aicc, fit_arima, needs_difference, stable
from rlpto.io.arrays import FloatArray

MODELS = [
    Arima(),
    Arima(mean=3.0),
    Arima(difference=1),
    Arima(ar=(0.5, 0.2), ma=(0.3,), mean=1.0),
    Arima(ar=(0.5,), ma=(-0.6, 0.1), difference=1),
]


def walk(count: int, seed: int = 0) -> FloatArray:
    rng = np.random.default_rng(seed)
    return 5 + np.cumsum(rng.normal(0, 0.3, count)) + rng.normal(size=count)


def simulated(model: Arima, count: int, seed: int) -> FloatArray:
    """Values whose residuals under the model are standard normal."""
    noise = np.random.default_rng(seed).normal(size=count)
    z = np.zeros(count)
    for t in range(count):
        z[t] = noise[t]
        z[t] += sum(c * z[t - lag] for lag, c in enumerate(model.value_lags) if 1 <= lag <= t)
        z[t] += sum(c * noise[t - lag] for lag, c in enumerate(model.moving_average) if 1 <= lag <= t)
    return z


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@given(cuts=st.lists(st.integers(0, 80), max_size=8))
@settings(max_examples=15)
def test_a_series_in_pieces_gives_the_numbers_of_the_whole(model: Arima, cuts: list[int]) -> None:
    z = walk(80)
    errors = model.residuals(z)
    whole = model.forecasts(z, errors, np.arange(1, 81), 9)
    online, found = Filter(model), []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), 80], strict=True):
        found.append(online.extend(z[begin:end]))
        if end:
            np.testing.assert_array_equal(online.forecast(9), whole[end - 1])
    np.testing.assert_array_equal(np.concatenate(found), errors)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_forecasts_read_nothing_beyond_the_series(model: Arima, monkeypatch: pytest.MonkeyPatch) -> None:
    z = walk(40)
    arguments = z, model.residuals(z), np.array([1, 20, 40]), 12
    compiled = model.forecasts(*arguments)
    monkeypatch.setattr(
        arma, "_expected", vars(arma)["_expected"].py_func
    )  # Python looks at bounds, compiled code does not
    np.testing.assert_array_equal(model.forecasts(*arguments), compiled)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_residuals_are_what_the_forecast_one_step_before_missed(model: Arima) -> None:
    z = walk(120)
    errors = model.residuals(z)
    one_ahead = model.forecasts(z, errors, np.arange(1, 120), 1)[:, 0]
    np.testing.assert_allclose((z[1:] - one_ahead)[model.difference :], errors[1 + model.difference :], atol=1e-9)


@pytest.mark.parametrize(
    "model",
    [Arima(ar=(0.5, 0.2), ma=(0.3,)), Arima(ar=(0.5,), ma=(-0.6,), difference=1)],
    ids=lambda model: model.name,
)
def test_forecasts_are_those_of_the_kalman_filter(model: Arima) -> None:
    z = walk(400)
    reference = SARIMAX(z, order=(len(model.ar), model.difference, len(model.ma)))
    expected = reference.filter([*model.ar, *model.ma, 1.0]).forecast(20)
    np.testing.assert_allclose(model.forecasts(z, model.residuals(z), np.array([400]), 20)[0], expected, rtol=1e-6)


def test_parameters_are_found_again() -> None:
    true = Arima(ar=(0.7,), ma=(-0.4,), difference=1)
    z = simulated(true, 3000, 1)
    fit = fit_arima(z, 1)
    assert fit.fallbacks == ()
    # Orders may be larger; what the model forecasts may not be worse.
    assert np.square(fit.model.residuals(z)[1:]).mean() < 1.01 * np.square(true.residuals(z)[1:]).mean()
    assert aicc(fit.model, z) <= aicc(true, z) + 2


def test_a_fit_that_warns_keeps_its_start_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SARIMAX, "fit", Result.warned)
    fit = fit_arima(walk(300), 1)
    assert fit.fallbacks
    assert all("failed to converge; kept its start" in line for line in fit.fallbacks)
    assert np.square(fit.model.residuals(walk(300))).mean() < np.square(np.diff(walk(300))).mean()


class Result:
    """Of a fit that has gone wrong."""

    params = np.array([np.nan])

    @classmethod
    def warned(cls, *_: object, **__: object) -> type[Result]:
        warnings.warn("Maximum Likelihood optimization failed\nto converge.", stacklevel=1)
        return cls


def test_a_fit_that_fails_keeps_its_start_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object, **__: object) -> None:
        raise np.linalg.LinAlgError("singular matrix")

    monkeypatch.setattr(SARIMAX, "fit", failed)
    assert "singular matrix; kept its start" in fit_arima(walk(300), 1).fallbacks[0]


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=4), st.sampled_from([-1.0, 1.0]))
def test_stable_polynomials_have_their_roots_outside(coefficients: list[float], sign: float) -> None:
    found = stable(coefficients, sign)
    assert np.abs(np.roots([1.0, *(sign * c for c in found)])).max(initial=0.0) < 0.9901
    assert stable(found, sign) == pytest.approx(found, rel=1e-6, abs=1e-9)


def test_walks_need_a_difference_and_noise_does_not() -> None:
    rng = np.random.default_rng(6)
    walks = [needs_difference(np.cumsum(rng.normal(size=1000))) for _ in range(40)]
    noises = [needs_difference(rng.normal(size=1000)) for _ in range(40)]
    assert np.mean(walks) > 0.85
    assert np.mean(noises) < 0.2
    assert not needs_difference(np.ones(50))
