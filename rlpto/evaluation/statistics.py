"""Intervals and paired comparisons over cells: the same windows and seeds for every policy.

Intervals are bootstrap percentile intervals with two corrections for the small samples of this field:
a resample draws n - 1 of n values, which makes its variance unbiased (Rao and Wu, "Resampling inference
with complex survey data", JASA 1988), and the percentile levels are widened from the normal to Student's
t distribution (Hesterberg, "What teachers should know about the bootstrap", The American Statistician
2015). With fewer than six values, resamples cannot reach these levels, and the interval is Student's,
with the standard deviation of the resamples. The probability of improvement follows Agarwal et al., "Deep
reinforcement learning at the edge of the statistical precipice", NeurIPS 2021, over pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import pandas as pd
from scipy.special import ndtr, stdtrit  # quantiles of `scipy.stats`, which takes a second to import

from rlpto.evaluation.metrics import LOWER_BOUND, METRIC
from rlpto.io.arrays import FloatArray

LEVEL = 0.95
FEWEST_FREEDOM = 5
"""Fewest degrees of freedom (values minus one) for which percentiles of resamples serve as bounds."""
RESAMPLES = 5000

Statistic = Callable[[FloatArray, FloatArray], FloatArray]
"""Function from values [n], and counts [R, n] of each value in each resample, to one figure per resample [R]."""

Verdict = Literal["better", "worse", "equal", "undecided"]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its confidence interval (NaN if it has none) and its sample size."""

    estimate: float
    low: float
    high: float
    samples: int

    @property
    def bounded(self) -> bool:
        """True if there are bounds."""
        return not np.isnan(self.low)

    def within(self, least: float, most: float) -> Interval:
        """Clip the interval to possible values of the figure, such as probabilities up to 1."""
        low, high = np.clip([self.low, self.high], least, most)
        return Interval(self.estimate, float(low), float(high), self.samples)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Difference between a policy and the reference in one metric, cell by cell.

    difference: mean of policy - reference. relative: the difference over the absolute mean of the reference
    (NaN if 0). improvement: probability that the policy is better on a cell, ties counted half. wins, ties:
    cells in which it is better, and equal. verdict: in the metric's good direction; "equal" if
    no cell differs, "undecided" if the interval of the difference includes 0 or does not exist.
    """

    policy: str
    difference: Interval
    relative: float
    improvement: Interval
    wins: int
    ties: int
    verdict: Verdict


def mean(values: FloatArray, counts: FloatArray) -> FloatArray:
    """Return the mean of each resample; a `Statistic`."""
    means: FloatArray = counts @ values / counts.sum(axis=1)
    return means


def bootstrap_interval(
    values: FloatArray,
    windows: Sequence[object] | None = None,
    statistic: Statistic = mean,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Return the 95 % confidence interval of a statistic of `values` [n]; NaNs are left out.

    windows: [n] window of each value. The sampling unit is the window: jobs of a window are not independent,
    and another seed on it is not another window. The values of a window are therefore averaged first, and
    windows are resampled: the interval describes similar windows. If all values are of one window, it
    describes seeds on this window; seeds that change nothing give no interval.
    A single value has no interval: its bounds are NaN.
    """
    known = ~np.isnan(values)
    units = _units(values[known], None if windows is None else np.asarray(windows, dtype=object)[known])
    if len(units) == 0:
        return Interval(float("nan"), float("nan"), float("nan"), 0)
    estimate = float(statistic(units, np.ones((1, len(units))))[0])
    freedom = len(units) - 1
    if freedom == 0:
        return Interval(estimate, float("nan"), float("nan"), 1)
    resampled = statistic(units, _resample_counts(len(units), resamples, seed))
    reach = float(stdtrit(freedom, (1 + LEVEL) / 2))
    if freedom < FEWEST_FREEDOM:
        spread = reach * float(resampled.std())
        return Interval(estimate, estimate - spread, estimate + spread, len(units))
    tail = float(ndtr(-reach))
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(estimate, float(low), float(high), len(units))


def compare(frame: pd.DataFrame, reference: str, metric: str, seed: int = 0) -> list[Comparison]:
    """Compare every other policy of `frame` with `reference` in one metric, over the same (window, seed) cells.

    frame: columns policy, window, seed and the metric, made by `rlpto.evaluation.tables.frame`.
    Cells in which either policy's metric is undefined are left out; the lower bound is no policy.
    """
    cells = frame.pivot(index=["window", "seed"], columns="policy", values=metric)
    others = [str(name) for name in frame["policy"].unique() if name not in (reference, LOWER_BOUND)]
    return [_compare(cells[reference], cells[policy], policy, metric, seed) for policy in others]


def _compare(base: pd.Series[float], other: pd.Series[float], policy: str, metric: str, seed: int) -> Comparison:
    reference_values = base.to_numpy(dtype=np.float64)
    difference = other.to_numpy(dtype=np.float64) - reference_values
    windows = list(base.index.get_level_values("window"))
    # If the metric has no good direction, an increase counts as improvement and the verdict stays open.
    gain = -difference if METRIC[metric].better == "lower" else difference
    improved = np.where(np.isnan(gain), np.nan, (gain > 0) + 0.5 * (gain == 0))
    interval = bootstrap_interval(difference, windows, seed=seed)
    paired = reference_values[~np.isnan(difference)]
    scale = abs(float(paired.mean())) if len(paired) else 0.0
    return Comparison(
        policy=policy,
        difference=interval,
        relative=interval.estimate / scale if scale > 0 else float("nan"),
        improvement=bootstrap_interval(improved, windows, seed=seed).within(0.0, 1.0),
        wins=int((gain > 0).sum()),
        ties=int((gain == 0).sum()),
        verdict=_verdict(metric, difference, interval),
    )


def _verdict(metric: str, difference: FloatArray, interval: Interval) -> Verdict:
    known = difference[~np.isnan(difference)]
    if len(known) and not known.any():
        return "equal"
    if METRIC[metric].better == "none" or not (interval.low > 0 or interval.high < 0):
        return "undecided"
    return "better" if (interval.estimate > 0) == (METRIC[metric].better == "higher") else "worse"


def _units(values: FloatArray, windows: np.ndarray | None) -> FloatArray:
    """Return the independent values: means over each window, or the values themselves if there is one window."""
    if windows is None or len(values) == 0:
        return values
    members: dict[object, list[float]] = {}
    for window, value in zip(windows.tolist(), values.tolist(), strict=True):
        members.setdefault(window, []).append(value)
    if len(members) > 1:
        return np.array([np.mean(group) for group in members.values()])
    return values[:1] if (values == values[0]).all() else values


@lru_cache(maxsize=8)
def _resample_counts(size: int, resamples: int, seed: int) -> FloatArray:
    """Draw the counts [resamples, size] of each of `size` values in size - 1 draws."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(size - 1, np.full(size, 1 / size), size=resamples).astype(np.float64)
    counts.flags.writeable = False
    return counts
