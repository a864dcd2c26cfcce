"""Switch between policies during a run, at set times or on request.

Times are set in a policy's spec, such as `fifo>3600:las` (`rlpto.policies.spec`). Tables have the whole spec as the
policy's name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import Policy, StandingPolicy, frozen
from rlpto.core.records import PolicySwitches


class SwitchingPolicy:
    """Delegates to the active policy: `first`, and from each time [s] of `later` the policy listed there.

    name: name of the whole schedule in tables. later: in order of time. The active policy depends only on the time, so
    a restarted scheduler finds the same policy. policies: all policies of the schedule, in order of time.
    """

    def __init__(self, name: str, first: Policy, later: Sequence[tuple[float, Policy]] = ()) -> None:
        self.name = name
        self._starts = [-np.inf, *(time for time, _ in later)]
        self.policies = [first, *(policy for _, policy in later)]
        self._seed = 0
        self._decided: list[tuple[float, str]] = []

    def present(self, time: float) -> Policy:
        """The policy in force at a time [s]."""
        return self.policies[bisect_right(self._starts, time) - 1]

    def switch(self, policy: Policy, time: float) -> None:
        """Let another policy decide from `time` [s] on, until the next set time."""
        policy.reset(self._seed)
        at = bisect_right(self._starts, time)
        self._starts.insert(at, time)
        self.policies.insert(at, policy)

    def reset(self, seed: int) -> None:
        """Forget everything except the times of the policies."""
        self._seed = seed
        self._decided = []
        for policy in self.policies:
            policy.reset(seed)

    def __call__(self, state: ClusterState) -> Allocation:
        policy = self.present(state.time)
        if not self._decided or self._decided[-1][1] != policy.name:
            self._decided.append((state.time, policy.name))
        return policy(state)

    def stands_until(self, state: ClusterState) -> float:
        policy = self.present(state.time)
        if not isinstance(policy, StandingPolicy):
            return state.time
        at = bisect_right(self._starts, state.time)
        following = self._starts[at] if at < len(self._starts) else np.inf
        return float(min(policy.stands_until(state), following))

    def frozen(self) -> SwitchingPolicy:
        """Return the schedule with all policies as snapshot policies, which do not look ahead."""
        first, *later = map(frozen, self.policies)
        return SwitchingPolicy(self.name, first, list(zip(self._starts[1:], later, strict=True)))

    def switches(self) -> PolicySwitches:
        """Return when each deciding policy took over since the last reset; empty if only one has decided."""
        if len(self._decided) < 2:
            return PolicySwitches()
        return PolicySwitches(
            time=np.array([time for time, _ in self._decided], dtype=np.float64),
            policy=tuple(name for _, name in self._decided),
        )


def switching(policy: Policy) -> SwitchingPolicy:
    """Return the policy as a SwitchingPolicy."""
    return policy if isinstance(policy, SwitchingPolicy) else SwitchingPolicy(policy.name, policy)
