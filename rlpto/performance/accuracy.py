"""Accuracy against epochs: the meaning of each application's metric, a saturating curve fitted to it, and the steepness
of accuracy from each epoch on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.compiled import kernel
from rlpto.io.errors import ProfileError

MetricKind = Literal["share", "percent", "error_percent", "loss"]
Points = tuple[tuple[float, float], ...]
"""Values by epochs of training: (epochs, value)."""


@dataclass(frozen=True)
class Metric:
    """Conversion of an application's validation metric to an accuracy in [0, 1].

    kind: share: used unchanged; percent: divide by 100; error_percent: 1 - metric / 100, at least 0; loss: 1 - loss /
    loss of the untrained model, at least 0, with that loss extrapolated linearly from the first two epochs (or taken
    from the first if there is only one).
    untrained: accuracy before training, usually chance.
    """

    meaning: str
    kind: MetricKind
    untrained: float = 0.0


VALIDATION_METRICS = {
    "cifar10": Metric("top-1 accuracy on the validation set; 10 classes, so 0.1 untrained", "share", 0.1),
    "imagenet": Metric("top-1 accuracy on the validation set; 1000 classes, so 0.001 untrained", "share", 0.001),
    "bert": Metric("F1 score of the answers (measured in percent) / 100; 0 untrained", "percent"),
    "deepspeech2": Metric("1 - word error rate (measured in percent) / 100, at least 0; 0 untrained", "error_percent"),
    "yolov3": Metric(
        "quality 1 - validation loss / loss of the untrained model, the latter extrapolated linearly from "
        "the first two epochs; not a detection accuracy",
        "loss",
    ),
    "ncf": Metric("hit rate at 10 among 100 items, of which one is right, so 0.1 untrained", "share", 0.1),
}
"""The measured applications' metrics."""
HEADROOM = 0.03
"""Largest margin of a curve's final accuracy above the last measured accuracy."""
STEEPEST = 1000.0
"""Upper limit of the steepness, for accuracy gained without any work."""


@dataclass(frozen=True)
class AccuracyCurve:
    """a(p) = final - (final - untrained) * exp(-(p / scale)^shape), p in epochs; never falls.

    meaning: meaning of accuracy for this model, in words.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    meaning: str
    untrained: Annotated[float, Field(ge=0, le=1)]
    final: Annotated[float, Field(ge=0, le=1)]
    scale: Annotated[float, Field(gt=0)]
    shape: Annotated[float, Field(gt=0)]

    def __call__(self, epochs: ArrayLike) -> FloatArray:
        """Accuracy in [0, 1] after `epochs` epochs; any shape."""
        done = (np.asarray(epochs, dtype=np.float64) / self.scale) ** self.shape
        return np.asarray(self.final - (self.final - self.untrained) * np.exp(-done))


def metric_of(application: str, values: FloatArray) -> Metric:
    """Return the application's metric, or guess it from the values [runs, epochs] of an unknown application. A falling
    metric is treated as a loss, one within [0, 1] as a share, any other as percent. Raises ProfileError for a falling
    metric that does not begin above 0."""
    if application in VALIDATION_METRICS:
        return VALIDATION_METRICS[application]
    first, last = values[:, 0].mean(), values[:, -1].mean()
    if last < first:
        if first <= 0:
            raise ProfileError(f"{application}: metric falls from {first:g} to {last:g}, expected one above 0 at first")
        return Metric("quality 1 - metric / metric of the untrained model (the metric falls)", "loss")
    if values.min() >= 0 and values.max() <= 1:
        return Metric("the validation metric, a share", "share")
    return Metric("the validation metric, taken for percent, / 100", "percent")


def to_accuracy(metric: Metric, values: FloatArray) -> FloatArray:
    """Accuracy in [0, 1] of metric values [runs, epochs]."""
    if metric.kind == "share":
        accuracy = values
    elif metric.kind == "percent":
        accuracy = values / 100
    elif metric.kind == "error_percent":
        accuracy = 1 - values / 100
    else:
        mean = values.mean(axis=0)
        untrained = mean[0] + max(mean[0] - mean[1], 0.0) if len(mean) > 1 else mean[0]
        accuracy = 1 - values / untrained
    return np.clip(accuracy, 0.0, 1.0)


def by_epoch(name: str, points: Points) -> FloatArray:
    """Values at the end of every whole epoch, linear between (epochs, value) points, which need not be regular. Raises
    ProfileError if they do not reach the end of one epoch."""
    last = points[-1][0] if points else 0.0
    if last < 1.0:
        raise ProfileError(f"{name}: trained for {last:.2f} epochs in the time given, expected at least one")
    epochs, values = np.array(points, dtype=np.float64).T
    at = np.arange(1.0, np.floor(last + 1e-9) + 1)
    return np.asarray(np.interp(at, epochs, values))


def fit_accuracy(accuracy: FloatArray, metric: Metric, headroom: float = HEADROOM) -> tuple[AccuracyCurve, float]:
    """Fit a curve to accuracies [runs, epochs] at the end of every epoch; return it and its RMSE.

    Least squares with a soft limit on outliers. The final accuracy stays within `headroom` of the last measured
    accuracy, which prevents extrapolating a late drop of the learning rate as endless growth. Training that continues
    needs more headroom. Fewer than four epochs do not determine the shape, which stays 1 (an exponential). Raises
    ProfileError if the accuracies are not finite.
    """
    from scipy.optimize import least_squares

    if not np.all(np.isfinite(accuracy)):
        raise ProfileError("accuracies must be finite numbers")
    epochs = np.broadcast_to(np.arange(1.0, accuracy.shape[1] + 1), accuracy.shape)
    free_shape = accuracy.shape[1] >= 4

    untrained = min(metric.untrained, 1 - 2e-3)  # the final accuracy is above it, and below 1

    def curve(x: FloatArray) -> AccuracyCurve:
        shape = float(np.exp(x[2])) if free_shape else 1.0
        return AccuracyCurve(metric.meaning, untrained, float(x[0]), float(np.exp(x[1])), shape)

    def residuals(x: FloatArray) -> FloatArray:
        return (curve(x)(epochs) - accuracy).ravel()

    last = float(np.clip(accuracy[:, -1].mean(), untrained + 1e-3, 1 - 1e-3))
    low = [untrained, np.log(0.01), np.log(0.05)]
    high = [min(1.0, last + headroom), np.log(100.0 * accuracy.shape[1]), np.log(5.0)]
    fits = [
        least_squares(
            residuals,
            [last, np.log(share * accuracy.shape[1]), 0.0],
            bounds=(low, high),
            loss="soft_l1",
            f_scale=0.05,
            xtol=1e-12,
            ftol=1e-12,
        )
        for share in (0.03, 0.2)
    ]
    best = curve(min(fits, key=lambda fit: float(fit.cost)).x)
    return best, float(np.sqrt(np.mean((best(epochs) - accuracy) ** 2)))


def accuracy_ahead(accuracy: FloatArray, epochs: IntArray, known_remaining: FloatArray) -> FloatArray:
    """[T, P] steepest rise of accuracy from an epoch on: share of its total gain per share of the remaining work.

    A type that gains all its accuracy at a constant pace has 1 at its first epoch. The value is the slope of the first
    edge of the upper concave hull over the remaining curve, like the index of chained jobs (Sidney, Operations Research
    23, 1975): the hull skips a plateau if the gain behind it is large enough. 0 if no more accuracy is gained.

    accuracy: [T, P + 1], known for epochs [T]. known_remaining: [T, P + 1] remaining work, or empty to count epochs.
    """
    ahead = np.zeros((accuracy.shape[0], accuracy.shape[1] - 1))
    _fill_ahead(accuracy, epochs, known_remaining, np.empty(accuracy.shape[1], dtype=np.int64), ahead)
    return ahead


@kernel()
def _fill_ahead(
    accuracy: FloatArray, epochs: IntArray, known_remaining: FloatArray, chain: IntArray, ahead: FloatArray
) -> None:
    """Fill ahead [T, P], which is 0. chain: [P + 1] memory for vertices of the hull to the right, nearest last."""
    for job_type in range(len(ahead)):
        last = min(epochs[job_type], accuracy.shape[1] - 1)
        in_all = accuracy[job_type, last] - accuracy[job_type, 0]
        if not in_all > 0.0:
            continue
        chain[0], size = last, 1
        for epoch in range(last - 1, -1, -1):
            steepest = _slope(accuracy, known_remaining, job_type, epoch, chain[size - 1])
            while size > 1:
                beyond = _slope(accuracy, known_remaining, job_type, epoch, chain[size - 2])
                if beyond <= steepest:
                    break
                steepest = beyond
                size -= 1
            left = known_remaining[job_type, epoch] if known_remaining.size else float(last - epoch)
            ahead[job_type, epoch] = min(max(steepest, 0.0) * left / in_all, STEEPEST)
            chain[size] = epoch
            size += 1


@kernel(error_model="numpy", inline="always")
def _slope(accuracy: FloatArray, known_remaining: FloatArray, job_type: int, start: int, end: int) -> float:
    """Accuracy gained per unit of work from the start of one epoch to the start of another."""
    gained = accuracy[job_type, end] - accuracy[job_type, start]
    if not known_remaining.size:
        return float(gained / (end - start))
    work = known_remaining[job_type, start] - known_remaining[job_type, end]
    if work > 0.0:
        return float(gained / work)
    return np.inf if gained > 0.0 else 0.0
