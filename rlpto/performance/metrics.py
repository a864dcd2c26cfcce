"""Metrics by name: the quantity maximised by a job that chooses its own batch size.

Pollux (Qiao et al., OSDI 2021) has goodput only. AdaptDL with selectable performance metrics (Aptanagi 2021) adds two
more. Its abstract gives their purpose but no formulas, so the family of scores below is inferred.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray

MetricName = Literal["goodput", "throughput", "efficiency"]
METRIC_NAMES: tuple[MetricName, ...] = get_args(MetricName)
DEFAULT_METRIC: MetricName = "goodput"


@dataclass(frozen=True)
class UtilityBand:
    """Bounds within which an allocator keeps the utility of a GPU: speed-up / GPUs, 1 if scaling is perfect. Raises
    ValueError unless 0 < min_util < max_util <= 1."""

    min_util: float
    max_util: float

    def __post_init__(self) -> None:
        if not 0 < self.min_util < self.max_util <= 1:
            raise ValueError(f"expected 0 < min_util < max_util <= 1, got {self.min_util:g} and {self.max_util:g}")

    @property
    def middle(self) -> float:
        """Target utility of an allocator."""
        return (self.min_util + self.max_util) / 2

    def holds(self, utility: float) -> bool:
        """Whether a utility lies between the bounds, both included."""
        return self.min_util <= utility <= self.max_util

    def gpus(self, utility: FloatArray) -> IntArray:
        """[n] GPUs whose utility is closest to the middle and not below min_util; else GPUs with the highest utility.

        utility: [n, K] of 1 to K GPUs for n jobs, -inf for a number that is not allowed. This is AdaptDL's rule for the
        size of a cluster (`_desired_nodes`), applied to one job at a time. A number is excluded if a larger one has at
        least its utility, so a higher band never asks for more GPUs.
        """
        best_beyond = np.full_like(utility, -np.inf)
        best_beyond[:, :-1] = np.maximum.accumulate(utility[:, ::-1], axis=1)[:, -2::-1]
        choice = utility > best_beyond
        enough = choice & (utility >= self.min_util)
        nearest = np.where(enough, np.abs(utility - self.middle), np.inf).argmin(axis=1)
        most = np.where(choice, utility, -np.inf).argmax(axis=1)
        return np.asarray(np.where(enough.any(axis=1), nearest, most) + 1)


STOCK_BAND = UtilityBand(0.35, 0.65)
"""AdaptDL's default band, unchanged since 2020."""
EFFICIENCY_BAND = UtilityBand(0.60, 0.90)
"""The band of the efficiency metric: fewer GPUs, each better used."""


@dataclass(frozen=True)
class JobMetric:
    """SCORE = THROUGHPUT x EFF^exponent, in samples per second, with EFF the statistical efficiency.

    exponent: 1 for goodput, 0 for samples per second alone. band: bounds on a GPU's utility under this metric.
    """

    exponent: float
    band: UtilityBand = STOCK_BAND


METRICS: Mapping[str, JobMetric] = {
    "goodput": JobMetric(1.0),
    "throughput": JobMetric(0.0),
    "efficiency": JobMetric(1.0, EFFICIENCY_BAND),
}
