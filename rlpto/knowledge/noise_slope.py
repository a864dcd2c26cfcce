"""How the gradient noise scale grows with the batch size: an exponent by type of job, learnt from jobs of the type.

The noise scale changes much more from epoch to epoch than with the batch, so only what was seen in the same epoch
with different batches shows it.
"""

from __future__ import annotations

import numpy as np

from rlpto.io.arrays import FloatArray
from rlpto.performance.tables import JobType

PRIOR_WEIGHT = 0.5
"""How much the prior counts: as observations with this sum of squared deviations of the logarithm of the batch."""


class NoiseSlopes:
    """Exponents by type. prior: of a type that nothing was seen of; learn: whether observations change it."""

    def __init__(self, prior: float, *, learn: bool) -> None:
        self._prior, self._learn = prior, learn
        self._sums: dict[JobType, dict[int, FloatArray]] = {}
        self._noted: dict[int, int] = {}
        self._slopes: dict[JobType, float] = {}

    def of(self, job_type: JobType) -> float:
        """The exponent of a type."""
        return self._slopes.get(job_type, self._prior)

    def learn(self, job_type: JobType, job: int, epoch: int, sqr: float, var: float, scale: float) -> None:
        """Job number `job` saw these gradient statistics at `scale` base batches; the first of an epoch count."""
        if not self._learn or self._noted.get(job) == epoch:
            return
        self._noted[job] = epoch
        x, y = np.log(scale), np.log(var / sqr)
        sums = self._sums.setdefault(job_type, {}).setdefault(epoch, np.zeros(5))
        sums += (1.0, x, y, x * x, x * y)
        count, x, y, xx, xy = np.array(list(self._sums[job_type].values())).T
        spread, common = (xx - x * x / count).sum(), (xy - x * y / count).sum()
        self._slopes[job_type] = float((common + PRIOR_WEIGHT * self._prior) / (spread + PRIOR_WEIGHT))
