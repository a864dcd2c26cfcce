"""One policy after another in the same run: at set times, or when somebody asks for another.

A switch is written `FIRST>SECONDS:NEXT`, as in `fifo>3600:las>7200:srtf`: fifo decides, las from the first decision at
or after 3600 s on, srtf from 7200 s on. The text is the policy's spec and its name in tables.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from rlpto.cluster import Allocation, ClusterState
from rlpto.errors import ConfigError
from rlpto.policies.base import Policy, StandingPolicy
from rlpto.records import PolicySwitches

SIGN = ">"
"""Stands between the policies of a schedule in a spec."""


class SwitchingPolicy:
    """Asks whichever policy is in force: `first`, and from each time [s] of `later` on the policy that stands there.

    name: of the whole, in tables. later: in order of time. Which policy is in force depends on the time alone, so a
    scheduler that is started again finds the same one.
    """

    def __init__(self, name: str, first: Policy, later: Sequence[tuple[float, Policy]] = ()) -> None:
        self.name = name
        self._starts = [-np.inf, *(time for time, _ in later)]
        self._policies = [first, *(policy for _, policy in later)]
        self._seed = 0
        self._decided: list[tuple[float, str]] = []

    def present(self, time: float) -> Policy:
        """The policy in force at a time [s]."""
        return self._policies[bisect_right(self._starts, time) - 1]

    def switch(self, policy: Policy, time: float) -> None:
        """Let another policy decide from `time` [s] on, until the next set time."""
        policy.reset(self._seed)
        at = bisect_right(self._starts, time)
        self._starts.insert(at, time)
        self._policies.insert(at, policy)

    def reset(self, seed: int) -> None:
        """Forget everything but which policy decides when."""
        self._seed = seed
        self._decided = []
        for policy in self._policies:
            policy.reset(seed)

    def __call__(self, state: ClusterState) -> Allocation:
        """Decide as the policy in force does."""
        policy = self.present(state.time)
        if not self._decided or self._decided[-1][1] != policy.name:
            self._decided.append((state.time, policy.name))
        return policy(state)

    def stands_until(self, state: ClusterState) -> float:
        """Time [s] until which the decision stands: as the policy in force says, and no later than the next switch."""
        policy = self.present(state.time)
        if not isinstance(policy, StandingPolicy):
            return state.time
        at = bisect_right(self._starts, state.time)
        following = self._starts[at] if at < len(self._starts) else np.inf
        return float(min(policy.stands_until(state), following))

    def switches(self) -> PolicySwitches:
        """When each policy took its first decision, since the last reset; empty if one took all."""
        if len(self._decided) < 2:
            return PolicySwitches()
        return PolicySwitches(
            time=np.array([time for time, _ in self._decided], dtype=np.float64),
            policy=tuple(name for _, name in self._decided),
        )


def split_schedule(spec: str) -> tuple[str, list[tuple[float, str]]]:
    """The first policy's spec, and time [s] and spec of those that follow (none for an ordinary policy).

    Raises ConfigError that names the part that is wrong.
    """
    first, *parts = (part.strip() for part in spec.split(SIGN))
    if not first:
        raise ConfigError(f"policy {spec}: expected a policy before {SIGN}")
    later: list[tuple[float, str]] = []
    for part in parts:
        later.append(_timed(part))
        if len(later) > 1 and later[-1][0] <= later[-2][0]:
            raise ConfigError(f"policy switch {part}: expected a time later than that before it, {later[-2][0]:g} s")
    return first, later


def _timed(part: str) -> tuple[float, str]:
    """Time and policy of `SECONDS:POLICY`."""
    text, colon, policy = part.partition(":")
    try:
        time = float(text) if colon else np.nan
    except ValueError:
        time = np.nan
    if not (np.isfinite(time) and time > 0 and policy.strip()):
        raise ConfigError(f"policy switch {part!r}: expected SECONDS:POLICY, such as 3600:las")
    return time, policy.strip()


def switching(policy: Policy) -> SwitchingPolicy:
    """The policy as one that may be switched."""
    return policy if isinstance(policy, SwitchingPolicy) else SwitchingPolicy(policy.name, policy)
