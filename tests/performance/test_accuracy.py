"""Accuracy curves: their fit, what metrics mean, and how steeply accuracy rises ahead."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ProfileError
from rlpto.performance.accuracy import (
    STEEPEST,
    VALIDATION_METRICS,
    AccuracyCurve,
    Metric,
    accuracy_ahead,
    fit_accuracy,
    metric_of,
    to_accuracy,
)

SHARE = Metric("a share", "share", 0.1)


@settings(max_examples=10)
@given(final=st.floats(0.5, 0.95), scale=st.floats(1.0, 20.0), shape=st.floats(0.4, 1.5), runs=st.integers(1, 3))
def test_fit_finds_the_curve_behind_the_accuracies(final: float, scale: float, shape: float, runs: int) -> None:
    truth = AccuracyCurve("", 0.1, final, scale, shape)(np.arange(1, 101))
    fitted, rmse = fit_accuracy(np.tile(truth, (runs, 1)), SHARE)
    assert rmse < 0.01
    np.testing.assert_allclose(fitted(np.arange(1, 101)), truth, atol=0.03)


@pytest.mark.parametrize("untrained", [0.9985, 1.0])
def test_programs_that_are_accurate_untrained_have_a_curve(untrained: float) -> None:
    curve, error = fit_accuracy(np.full((1, 3), untrained), Metric("accuracy", "share", untrained), headroom=1.0)
    assert curve(2.0) == pytest.approx(untrained, abs=3e-3)
    assert error < 3e-3


def test_metrics_become_accuracies() -> None:
    with pytest.raises(ProfileError, match="finite"):
        fit_accuracy(np.array([[0.5, np.nan]]), SHARE)
    assert to_accuracy(VALIDATION_METRICS["bert"], np.array([[88.0]])) == pytest.approx(0.88)
    assert to_accuracy(VALIDATION_METRICS["deepspeech2"], np.array([[104.0, 25.0]]))[0].tolist() == [0.0, 0.75]
    # Losses 20, 15, 5: the untrained model is taken to have 25.
    loss = to_accuracy(VALIDATION_METRICS["yolov3"], np.array([[20.0, 15.0, 5.0]]))
    np.testing.assert_allclose(loss[0], [0.2, 0.4, 0.8])
    # Unknown applications are judged by their values.
    assert metric_of("new", np.array([[0.1, 0.9]])).kind == "share"
    assert metric_of("new", np.array([[10.0, 90.0]])).kind == "percent"
    assert metric_of("new", np.array([[4.0, 2.0]])).kind == "loss"
    with pytest.raises(ProfileError, match="new: metric falls from 0 to -2, expected one above 0 at first"):
        metric_of("new", np.array([[0.0, -2.0]]))


NO_WORK = np.zeros((0, 0))


def ahead_of(curve: FloatArray, work: FloatArray | None = None) -> list[float]:
    """Of one type with this curve [P + 1]; work [P] of each epoch."""
    left = NO_WORK if work is None else np.append(np.cumsum(work[::-1])[::-1], 0.0)[None]
    return accuracy_ahead(curve[None], np.array([len(curve) - 1]), left)[0].tolist()


def test_types_end_where_they_were_measured() -> None:
    curves = np.array([[0.0, 0.5, 1.0, 1.0], [0.0, 0.2, 0.4, 0.6]])
    assert accuracy_ahead(curves, np.array([2, 3]), NO_WORK).tolist() == [
        pytest.approx([1.0, 0.5, 0.0]),
        pytest.approx([1.0, 2 / 3, 1 / 3]),
    ]


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=11), st.lists(st.floats(0.1, 10.0), min_size=11, max_size=11)
)
def test_it_is_the_best_of_all_stretches(values: list[int], costs: list[float]) -> None:
    curve = np.array([0, *sorted(values)]) / 1000.0
    work = np.array(costs)[: len(curve) - 1]
    found, left = ahead_of(curve, work), np.append(np.cumsum(work[::-1])[::-1], 0.0)
    for epoch, value in enumerate(found):
        gained = (curve[epoch + 1 :] - curve[epoch]) / max(curve[-1], 1e-9)
        best = float((gained / ((left[epoch] - left[epoch + 1 :]) / left[epoch])).max()) if curve[-1] > 0 else 0.0
        assert value == pytest.approx(min(best, STEEPEST), rel=1e-6, abs=1e-9)
