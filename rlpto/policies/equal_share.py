"""Equal share: max-min fair numbers of GPUs (EQUI).

Source: Ghodsi et al., "Dominant Resource Fairness", NSDI 2011; with GPUs as the one resource, DRF
is max-min fairness, solved by water-filling (Bertsekas and Gallager, "Data Networks", section 6.5).
Adapted: whole GPUs between each job's limits; a job that already holds the odd GPU keeps it.
"""

from __future__ import annotations

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy, NoOptions, StandsUntilEvent
from rlpto.policies.filling import fill_evenly


class EqualShare(BasePolicy[NoOptions], StandsUntilEvent):
    """Equal numbers of GPUs for all jobs, within their limits; min_gpus in queue order if GPUs are scarce."""

    name = "equal_share"
    summary = "max-min fair GPUs (DRF with one resource, EQUI), elastic; knows no durations"
    source = "Ghodsi et al., NSDI 2011 (DRF)"

    def __call__(self, state: ClusterState) -> Allocation:
        """Raise one common level until the GPUs are gone."""
        jobs = state.jobs
        return Allocation(fill_evenly(jobs.min_gpus, jobs.max_gpus, jobs.gpus, state.capacity))
