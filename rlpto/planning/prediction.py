"""When jobs will start and finish, if nothing comes in between: a scratch cluster runs forward under their policy."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.loop import run
from rlpto.core.policy import Policy, StandingPolicy, as_it_stands
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.planning.snapshot import Snapshot
from rlpto.simulator.settings import SimulatorSettings


@dataclass(frozen=True)
class JobForecast:
    """What n jobs that are there now will come to.

    time [s]: of the snapshot. index: [n] numbers of the jobs in the cluster's workload, in order of submission; names:
    theirs.
    start, finish: [n] s on the cluster's clock; start is the first GPU, which may lie in the past. NaN where it does
    not come to that with the nodes that are up.
    """

    time: float
    index: IntArray
    names: tuple[str, ...]
    start: FloatArray
    finish: FloatArray


def predict(
    snapshot: Snapshot, policy: Policy, queue: QueueSettings, settings: SimulatorSettings, *, decided: bool = False
) -> JobForecast:
    """Run forward until the jobs of the snapshot have finished: no further jobs, no failures, no forecast.

    policy: decides in the scratch cluster; a copy of it is asked, with its memory as it stands. One that looks ahead
    does not do so there. decided: the decision on this state has been carried out already, the next one is taken when
    it is due. Same arguments, same prediction.
    Raises PolicyError if the policy returns no allocation, ConfigError without GPUs.
    """
    if not len(snapshot.index):
        return JobForecast(snapshot.time, snapshot.index, (), np.zeros(0), np.zeros(0))
    scratch = snapshot.restore(settings.model_copy(update={"max_hours": None}))
    if decided:
        scratch.advance()
    run(scratch, _GoesOn(as_it_stands(policy)), queue, RewardWeights())
    store, names = scratch.store, tuple(job.name for job in snapshot.jobs)
    return JobForecast(snapshot.time, snapshot.index, names, store.start_time.copy(), store.finish_time.copy())


class _GoesOn:
    """A copy of a policy that is not reset: it goes on from what it remembers."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self._policy = copy.deepcopy(policy)

    def reset(self, seed: int) -> None:
        """Nothing is forgotten."""

    def __call__(self, state: ClusterState) -> Allocation:
        """Decide."""
        return self._policy(state)

    def stands_until(self, state: ClusterState) -> float:
        """As the policy says; it is asked at every decision point if it says nothing."""
        return self._policy.stands_until(state) if isinstance(self._policy, StandingPolicy) else state.time
