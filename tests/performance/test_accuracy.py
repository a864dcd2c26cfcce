from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.io.errors import ProfileError
from rlpto.performance.accuracy import (
    METRICS,
    AccuracyCurve,
    Metric,
    fit_accuracy,
    metric_of,
    to_accuracy,
)
from rlpto.performance.measurements import read_measurements

SHARE = Metric("a share", "share", 0.1)


@settings(max_examples=10)
@given(final=st.floats(0.5, 0.95), scale=st.floats(1.0, 20.0), shape=st.floats(0.4, 1.5), runs=st.integers(1, 3))
def test_fit_finds_the_curve_behind_the_accuracies(final: float, scale: float, shape: float, runs: int) -> None:
    truth = AccuracyCurve("", 0.1, final, scale, shape)(np.arange(1, 101))
    fitted, rmse = fit_accuracy(np.tile(truth, (runs, 1)), SHARE)
    assert rmse < 0.01
    np.testing.assert_allclose(fitted(np.arange(1, 101)), truth, atol=0.03)


@given(
    final=st.floats(0.2, 1.0), scale=st.floats(0.1, 100.0), shape=st.floats(0.05, 5.0), untrained=st.floats(0.0, 0.2)
)
def test_curves_start_untrained_never_fall_and_stay_below_the_final_accuracy(
    final: float, scale: float, shape: float, untrained: float
) -> None:
    accuracy = AccuracyCurve("", untrained, final, scale, shape)(np.linspace(0, 300, 1000))
    assert accuracy[0] == pytest.approx(untrained)
    assert np.all(np.diff(accuracy) >= -1e-15)
    assert accuracy.max() <= final


def test_two_epochs_are_enough() -> None:
    fitted, rmse = fit_accuracy(np.array([[0.86, 0.88]]), METRICS["bert"])
    assert rmse < 0.01
    assert fitted.shape == 1


def test_accuracies_must_be_numbers() -> None:
    with pytest.raises(ProfileError, match="finite"):
        fit_accuracy(np.array([[0.5, np.nan]]), SHARE)


def test_metrics_become_accuracies() -> None:
    assert to_accuracy(METRICS["bert"], np.array([[88.0]])) == pytest.approx(0.88)
    assert to_accuracy(METRICS["deepspeech2"], np.array([[104.0, 25.0]]))[0].tolist() == [0.0, 0.75]
    # Losses 20, 15, 5: the untrained model is taken to have 25.
    loss = to_accuracy(METRICS["yolov3"], np.array([[20.0, 15.0, 5.0]]))
    np.testing.assert_allclose(loss[0], [0.2, 0.4, 0.8])


def test_unknown_applications_are_judged_by_their_values() -> None:
    assert metric_of("new", np.array([[0.1, 0.9]])).kind == "share"
    assert metric_of("new", np.array([[10.0, 90.0]])).kind == "percent"
    assert metric_of("new", np.array([[4.0, 2.0]])).kind == "loss"


@pytest.mark.parametrize("application", sorted(METRICS))
def test_measured_accuracies_are_followed_closely(application: str, shared_data: Path) -> None:
    measured = read_measurements(shared_data / "profiles" / application)
    metric = METRICS[application]
    accuracy = to_accuracy(metric, measured.stacked("metric"))
    fitted, rmse = fit_accuracy(accuracy, metric)
    assert rmse < 0.06
    assert fitted(measured.epochs) == pytest.approx(accuracy[:, -1].mean(), abs=0.03)
