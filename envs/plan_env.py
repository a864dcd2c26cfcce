"""An environment over plans: in a state that a planner met, candidates for its next plan are proposed one by one.

There is no chance in it: a candidate costs what its rollout comes to, and nothing that happens later counts. Unlike in
`rlpto/Cluster-v0` a single action can therefore be told from others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from rlpto.core.cluster import ClusterState
from rlpto.core.rewards import RewardWeights
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.observation import LIMIT, Observation, observe
from rlpto.envs.settings import EnvSettings
from rlpto.envs.setup import observation_space
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import ConfigError
from rlpto.planning.branching import Branch, relative_costs
from rlpto.planning.planner import SMALLEST_SCALE

PERCENT = 100.0
LARGEST_OFFSET = 3.0
"""Either way, relative to a weight of the plan that stands."""


def look(settings: EnvSettings) -> Any:
    """What a keeper of states looks at: the observation of a state, without its leading axis."""

    def seen(state: ClusterState) -> Observation:
        return observe(state, int(state.jobs.gpus.sum()), settings.max_jobs, settings.horizon)

    return seen


def plan_observation(seen: Observation, plan: FloatArray, base: FloatArray, slot: int, slots: int) -> dict[str, Any]:
    """What is seen when candidate number `slot` of `slots` is to be proposed; see `PlanEnv`."""
    one = np.zeros(slots, dtype=np.float32)
    one[slot] = 1.0
    plan, base = plan[: len(ACTION_FEATURES)], base[: len(ACTION_FEATURES)]
    offset = np.clip((plan - base) / np.maximum(np.abs(base), SMALLEST_SCALE), -LIMIT, LIMIT)
    parts = {name: part.copy() for name, part in seen._asdict().items()}
    return {**parts, "plan": offset.astype(np.float32), "slot": one}


def proposed(anchors: FloatArray, actions: AnyArray) -> FloatArray:
    """[..., STEERING_FEATURES] weights that actions [..., ACTION_FEATURES] propose around anchors [..., as many].

    The weights that no action changes are those of the anchors.
    """
    offset = np.clip(np.asarray(actions, dtype=np.float64), -LARGEST_OFFSET, LARGEST_OFFSET)
    weights = np.broadcast_to(anchors, (*offset.shape[:-1], anchors.shape[-1])).copy()
    changed = weights[..., : len(ACTION_FEATURES)]
    changed += np.maximum(np.abs(changed), SMALLEST_SCALE) * offset
    return weights


def plan_spaces(settings: EnvSettings, slots: int) -> tuple[spaces.Dict, spaces.Box]:
    """Spaces of observations and of actions; see `PlanEnv`."""
    around = {
        "plan": spaces.Box(-LIMIT, LIMIT, (len(ACTION_FEATURES),), np.float32),
        "slot": spaces.Box(0.0, 1.0, (slots,), np.float32),
    }
    action = spaces.Box(-LARGEST_OFFSET, LARGEST_OFFSET, (len(ACTION_FEATURES),), np.float32)
    return spaces.Dict({**observation_space(settings).spaces, **around}), action


class PlanEnv(gymnasium.Env[Any, AnyArray]):
    """Propose candidates for a plan: an episode is one state, a step one candidate.

    Observation: that of the agent (`rlpto.envs.observation.Observation`) and `plan` [ACTION_FEATURES], how far the
    plan that stands is from the base, relative to its weights, and `slot` [slots], 1 at the number of the candidate.
    Action: [ACTION_FEATURES] float32, how far the candidate is from the anchor of its slot, relative to its weights.
    Reward: percent of the base's cost that the candidate saves against the best so far, the plan that stands and the
    base included; 0 if it saves nothing. Termination: after all slots.

    branches: states of a keeper that looked with `look`. anchors: [slots, STEERING_FEATURES], such as a portfolio.
    work, reward: as of the planner.
    """

    def __init__(
        self, branches: Sequence[Branch], settings: EnvSettings, anchors: FloatArray, work: int, reward: RewardWeights
    ) -> None:
        if not branches:
            raise ConfigError("no states to plan in: expected some, as `Keeper` keeps them")
        self._branches, self._anchors, self._work, self._reward = branches, anchors, work, reward
        self._slots = slots = len(anchors)
        self.observation_space, self.action_space = plan_spaces(settings, slots)
        self._left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, NDArray[np.float32]], Any]:
        """Go to another state. options: `branch`, its number, in place of one that is drawn."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(len(self._branches)))
        self._branch = self._branches[(options or {}).get("branch", drawn)]
        plan = relative_costs(self._branch, self._branch.plan[None], self._work, self._reward)[0]
        self._best, self._left = min(1.0, float(plan)), self._slots
        return self._observation(), {"best": self._best}

    def step(self, action: AnyArray) -> tuple[dict[str, NDArray[np.float32]], float, bool, bool, dict[str, Any]]:
        """Propose a candidate. Raises ResetNeeded if all have been."""
        if not self._left:
            raise ResetNeeded("the episode is over: call reset")
        candidate = proposed(self._anchors[self._slots - self._left], action)[None]
        cost = float(relative_costs(self._branch, candidate, self._work, self._reward)[0])
        saved, self._left = max(self._best - cost, 0.0), self._left - 1
        self._best = min(self._best, cost)
        return self._observation(), PERCENT * saved, self._left == 0, False, {"cost": cost, "best": self._best}

    def _observation(self) -> dict[str, NDArray[np.float32]]:
        slot = min(self._slots - self._left, self._slots - 1)
        return plan_observation(self._branch.seen, self._branch.plan, self._branch.base, slot, self._slots)
