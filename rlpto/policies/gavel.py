"""Gavel: max-min fairness over kinds of GPU.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020:
the policy "least attained service, heterogeneity-aware" as a linear programme, in rounds (`rlpto.policies.rounds`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.policies.rounds import ShareOptions, SharePolicy

TOTAL_WEIGHT = 1e-3
"""Weight of the mean normalised throughput relative to the least one: it decides what fairness leaves undetermined."""
NO_SHARE = 1e-6
"""Shares below this count as 0."""


class Gavel(SharePolicy[ShareOptions]):
    """Shares of time on every kind by a linear programme; whole GPUs go to the jobs furthest behind their shares."""

    name = "gavel"
    summary = "max-min fair shares of time over kinds of GPU (Gavel), requested GPUs, in rounds"
    source = "Narayanan et al., OSDI 2020 (Gavel)"
    Options = ShareOptions

    def shares(self, state: ClusterState, speed: FloatArray, room: IntArray) -> FloatArray:
        """As `fair_shares`."""
        return fair_shares(speed, state.jobs.requested_gpus, room)


def fair_shares(speed: FloatArray, gpus: IntArray, room: IntArray) -> FloatArray:
    """[n, G] share of its time that each job should spend on every kind.

    The least normalised throughput over jobs is as large as can be: sum_k share x speed, by that of a job whose time is
    spread over kinds in proportion to their GPUs, times its GPUs. speed: [n, G] on `gpus` [n] GPUs. room: [G] GPUs.
    """
    equal = np.maximum(speed @ (room / max(room.sum(), 1)), 1e-300)
    share = best_shares(speed / equal[:, None] * gpus[:, None], gpus, room).share
    return np.where(share > NO_SHARE, share, 0.0)


class BestShares(NamedTuple):
    """Shares [n, G], the least sum_k share x value of a job, and what each share lacks [n, G]: its reduced cost."""

    share: FloatArray
    least: float
    lacks: FloatArray


def best_shares(value: FloatArray, gpus: IntArray, room: IntArray, *, fair: bool = True) -> BestShares:
    """Shares for which the least sum_k share x value over jobs is as large as can be; not fair: the sum over all jobs.

    value: [n, G], 0 where a job does not fit; a job that fits nowhere does not count. gpus: [n]. room: [G] GPUs.
    """
    from scipy.optimize import linprog  # a third of a second, for these policies alone
    from scipy.sparse import block_array, csr_array

    count, kinds = value.shape
    fits = (gpus[:, None] <= room) & (value > 0)
    value = np.where(fits, value, 0.0)
    runs = fits.any(axis=1) & fair
    of_job, variable = np.repeat(np.arange(count), kinds), np.arange(count * kinds)
    least = csr_array((-value.ravel(), (of_job, variable)), shape=(count, count * kinds))
    once = csr_array((np.ones(count * kinds), (of_job, variable)), shape=(count, count * kinds))
    within = csr_array((np.repeat(gpus, kinds).astype(np.float64), (variable % kinds, variable)))
    lowest = csr_array(np.asarray(runs, dtype=np.float64).reshape(-1, 1))
    limited: Any = block_array([[least, lowest], [once, None], [within, None]], format="csr")
    found = linprog(  # the last variable is the least sum
        np.append(-(TOTAL_WEIGHT / count if fair else 1.0) * value.ravel(), -1.0),
        A_ub=limited,
        b_ub=np.concatenate([np.zeros(count), np.ones(count), room]),
        bounds=[*((0.0, float(fit)) for fit in fits.ravel()), (0.0, np.inf if runs.any() else 0.0)],
    )
    assert found.x is not None, "shares of 0 are always possible"
    lacks = found.lower.marginals[:-1].reshape(count, kinds)
    return BestShares(found.x[:-1].reshape(count, kinds), float(found.x[-1]), lacks)
