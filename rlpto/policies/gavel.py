"""Gavel: max-min fair shares of time on GPU types, by a linear programme.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020,
whose appendix A states the programme.
Where many shares are equally good, those with most throughput are taken. docs/systems/sia.md measures it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.policies.rounds import ShareOptions, SharePolicy

TINY = 1e-6
"""Share below which a job has none."""
TOTAL_WEIGHT = 1e-3
"""Weight of the mean normalised throughput relative to the least one: it decides what fairness leaves undetermined."""


class Gavel(SharePolicy[ShareOptions]):
    """Max-min fair throughput over GPU types: "least attained service, heterogeneity-aware", a linear programme."""

    name = "gavel"
    summary = "max-min fair shares of time over GPU types (Gavel), requested GPUs, in rounds"
    source = "Narayanan et al., OSDI 2020 (Gavel)"

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:
        """Maximise the smallest normalised throughput: a job's sum of share x speed over GPU types, times its GPUs,
        divided by the same sum if its time were spread over types in proportion to their GPUs."""
        gpus, equal = state.jobs.requested_gpus, np.maximum(speed @ (room / max(room.sum(), 1)), 1e-300)
        share, _, _ = best_shares(speed / equal[:, None] * gpus[:, None], gpus, room)
        return np.where(share > TINY, share, 0.0)


def best_shares(
    value: FloatArray, gpus: IntArray, room: IntArray, *, fair: bool = True
) -> tuple[FloatArray, float, FloatArray]:
    """Maximise the smallest sum of share x value of a job, or without `fair` the total of all jobs.

    Returns shares [n, G], the smallest sum, and the reduced cost of each share [n, G]. value: of a job's whole time on
    each type [n, G]; 0 if it does not fit. Jobs that fit nowhere do not count. gpus: of each job [n]. room: [G] GPUs.
    """
    from scipy.optimize import linprog  # a third of a second, for these policies alone
    from scipy.sparse import block_array, csr_array

    count, types = value.shape
    fits = (gpus[:, None] <= room) & (value > 0)
    value = np.where(fits, value, 0.0)
    runs = fits.any(axis=1) & fair
    of_job, variable = np.repeat(np.arange(count), types), np.arange(count * types)
    least = csr_array((-value.ravel(), (of_job, variable)), shape=(count, count * types))
    once = csr_array((np.ones(count * types), (of_job, variable)), shape=(count, count * types))
    within = csr_array((np.repeat(gpus, types).astype(np.float64), (variable % types, variable)))
    lowest = csr_array(np.asarray(runs, dtype=np.float64).reshape(-1, 1))
    limited: Any = block_array([[least, lowest], [once, None], [within, None]], format="csr")
    found = linprog(  # the last variable is the least sum
        np.append(-(TOTAL_WEIGHT / count if fair else 1.0) * value.ravel(), -1.0),
        A_ub=limited,
        b_ub=np.concatenate([np.zeros(count), np.ones(count), room]),
        bounds=[*((0.0, float(fit)) for fit in fits.ravel()), (0.0, np.inf if runs.any() else 0.0)],
    )
    assert found.x is not None, "shares of 0 are always possible"
    return found.x[:-1].reshape(count, types), float(found.x[-1]), found.lower.marginals[:-1].reshape(count, types)
