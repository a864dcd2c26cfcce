from __future__ import annotations

import numpy as np
import pytest

from rlpto.io.errors import ProfileError
from rlpto.performance.efficiency import MAX_KNOTS, NoiseCurve, fit_noise


def test_curve_is_linear_in_the_logarithm_and_constant_outside() -> None:
    curve = NoiseCurve((1.0, 3.0), (10.0, 1000.0))
    np.testing.assert_allclose(curve([0, 1, 2, 3, 9]), [10, 10, 100, 1000, 1000])


def test_fit_follows_a_curve_with_few_bends_exactly() -> None:
    truth = NoiseCurve((0.0, 5.0, 30.0, 59.0), (50.0, 3000.0, 4000.0, 90_000.0))(np.arange(60))
    fitted, error = fit_noise(np.ones((3, 60)), np.tile(truth / 128, (3, 1)), 128)
    assert error < 1e-6
    assert len(fitted.epochs) <= MAX_KNOTS
    np.testing.assert_allclose(fitted(np.arange(60)), truth, rtol=1e-6)


def test_fit_takes_the_median_of_runs_and_states_their_spread() -> None:
    variance = np.exp(np.array([-1.0, 0.0, 1.0]))[:, None] * np.ones((3, 20))
    fitted, error = fit_noise(np.ones((3, 20)), variance, 1)
    np.testing.assert_allclose(fitted(np.arange(20)), 1.0)
    assert error == pytest.approx(np.sqrt(2 / 3))


def test_estimates_that_are_not_positive_are_left_out() -> None:
    sqr = np.ones((2, 6))
    sqr[0, 2] = -1.0
    fitted, _ = fit_noise(sqr, np.full((2, 6), 4.0), 10)
    np.testing.assert_allclose(fitted(np.arange(6)), 40.0)
    sqr[1, 2] = 0.0
    with pytest.raises(ProfileError, match="epoch 2"):
        fit_noise(sqr, np.full((2, 6), 4.0), 10)


def test_one_epoch_is_a_constant() -> None:
    fitted, error = fit_noise(np.array([[2.0]]), np.array([[1.0]]), 8)
    assert (fitted.epochs, error) == ((0.0,), 0.0)
    assert fitted(3) == pytest.approx(4.0)


@pytest.mark.parametrize(("epochs", "values"), [((0.0, 1.0), (1.0,)), ((1.0, 1.0), (1.0, 2.0))])
def test_knots_must_ascend_and_have_one_value_each(epochs: tuple[float, ...], values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="epochs"):
        NoiseCurve(epochs, values)
