"""Loss curves: their fit, the end they predict, and whether to trust it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.io.errors import ProfileError
from rlpto.performance.loss import FEWEST_EPOCHS, LossCurve, fit_loss

EPOCHS = np.arange(1, 21)


def test_the_end_is_the_first_epoch_at_the_target() -> None:
    curve = LossCurve(0.5, 1.0, 0.1)
    assert curve(2) == pytest.approx(0.6)
    assert curve.end_epoch(0.6) == 2
    assert curve.end_epoch(0.59) == 3
    assert curve.end_epoch(5.0) == 1
    assert math.isinf(curve.end_epoch(0.1))
    assert math.isinf(LossCurve(0.0, 1.0, 0.0).end_epoch(0.5))


@settings(max_examples=30, deadline=None)
@given(a=st.floats(0.05, 2), b=st.floats(0.1, 2), c=st.floats(0, 1), unit=st.sampled_from([1e-2, 1.0, 1e3]))
def test_half_of_a_curve_foretells_its_end(a: float, b: float, c: float, unit: float) -> None:
    truth = LossCurve(a / unit, b / unit, c * unit)
    fit = fit_loss(truth(EPOCHS[:10]))
    assert fit.reliable
    assert fit.curve.end_epoch(float(truth(20))) == pytest.approx(20, abs=2)


def test_later_losses_weigh_more() -> None:
    early, late = LossCurve(1.0, 1.0, 0.5), LossCurve(0.2, 0.5, 0.0)
    mixed = np.where(EPOCHS <= 7, np.maximum(early(EPOCHS), late(EPOCHS)), late(EPOCHS))
    off = np.abs(fit_loss(mixed).curve(EPOCHS) - mixed)
    assert off[13:].max() < 0.1 * off[:7].max()


@pytest.mark.parametrize(
    "tail",
    [0.2 + EPOCHS**-0.5, 0.8 + 1.5 * np.exp(-EPOCHS / 1.5) + 0.15 * (1 - EPOCHS / 60), 0.2 + 2 * np.exp(-EPOCHS / 5)],
    ids=["slow power", "fast fall with a slow tail", "exponential"],
)
def test_a_curve_of_another_kind_is_not_trusted(tail: np.ndarray) -> None:
    assert not fit_loss(tail[:10]).reliable


def test_noise_alone_is_no_reason_to_distrust() -> None:
    rng = np.random.default_rng(0)
    truth = LossCurve(0.3, 0.4, 0.1)(np.arange(1, 31))
    trusted = [fit_loss(truth + 0.01 * rng.standard_normal(30)).reliable for _ in range(30)]
    assert sum(trusted) >= 24


def test_a_few_losses_are_not_trusted() -> None:
    losses = LossCurve(0.3, 0.4, 0.1)(np.arange(1, FEWEST_EPOCHS))
    assert not fit_loss(losses).reliable


def test_a_sudden_rise_does_not_bend_the_fit() -> None:
    losses = LossCurve(0.3, 0.4, 0.1)(EPOCHS)
    end = fit_loss(losses).curve.end_epoch(0.2)
    losses[12] = 50.0
    assert fit_loss(losses).curve.end_epoch(0.2) == pytest.approx(end, rel=0.3)


def test_a_loss_that_stays_never_ends() -> None:
    assert math.isinf(fit_loss(np.full(10, 2.0)).curve.end_epoch(1.0))


@pytest.mark.parametrize("losses", [[1.0, 0.5], [1.0, math.nan, 0.5], []])
def test_no_losses_no_fit(losses: list[float]) -> None:
    with pytest.raises(ProfileError, match="at least 3 finite losses"):
        fit_loss(np.array(losses))
