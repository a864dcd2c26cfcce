"""Branching rollouts: many candidates tried from each of many states that a planner met.

In one state all candidates meet the same future, so that there is no chance in what one costs more than another. Plans
are learnt from that: a portfolio (`rlpto.planning.portfolio`), and proposals (`rlpto.agents.proposals`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlpto.core.cluster import ClusterState
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import FloatArray
from rlpto.planning.compiled_loop import Loop
from rlpto.planning.planner import Planner, perturbed
from rlpto.planning.rollout import Start, roll_out


@dataclass(frozen=True)
class Branch:
    """A state in which a plan was made.

    loop, start: what rollouts from it run by, and where they begin. plan: [STEERING_FEATURES] the plan that stood.
    base: [STEERING_FEATURES] of the planner. cost: what `base` costs. seen: what the keeper's `look` said of the state.
    """

    loop: Loop
    start: Start
    plan: FloatArray
    base: FloatArray
    cost: float
    seen: Any


class Keeper(Planner):
    """A planner that keeps the states it plans in.

    Speeds must be known exactly: where jobs learn, those that rollouts go by change as they do.
    """

    def __init__(
        self, planner: Planner, share: float = 1.0, look: Callable[[ClusterState], Any] = lambda state: len(state.jobs)
    ) -> None:
        """planner: plans as it does. share: of its states that are kept. look: is shown each state that is kept."""
        self.__dict__.update(planner.__dict__)  # an experiment makes planners, and tells them its queue and its reward
        self.kept: list[Branch] = []
        self._share, self._look = share, look
        self._choice = np.random.default_rng(11)

    def _best(self, state: ClusterState) -> FloatArray:
        """As the planner; the state is kept."""
        before = self._plan
        best = super()._best(state)
        if len(state.jobs) > 1 and self._choice.random() < self._share:
            loop, start = self._scenes.build(state)
            cost = np.zeros(1)
            roll_out(loop, start, self._base[None], self.options.work, self._reward, cost)
            if np.isfinite(cost[0]) and cost[0] > 0:
                self.kept.append(Branch(loop, start, before, self._base, float(cost[0]), self._look(state)))
        return best


def relative_costs(branch: Branch, candidates: FloatArray, work: int, reward: RewardWeights) -> FloatArray:
    """[C] cost of candidates [C, STEERING_FEATURES] in the state of a branch, relative to that of its base.

    work: as of `roll_out`. Infinity where a cost cannot be told.
    """
    cost = np.zeros(len(candidates))
    roll_out(branch.loop, branch.start, np.ascontiguousarray(candidates), work, reward.record(), cost)
    return np.where(np.isfinite(cost), cost / branch.cost, np.inf)


def cost_matrix(branches: Sequence[Branch], candidates: FloatArray, work: int, reward: RewardWeights) -> FloatArray:
    """[S, C] what candidates cost in each state, see `relative_costs`.

    candidates: [C, STEERING_FEATURES], or [S, C, STEERING_FEATURES] where every state has its own.
    """
    own = candidates if candidates.ndim == 3 else np.broadcast_to(candidates, (len(branches), *candidates.shape))
    found = [relative_costs(one, tried, work, reward) for one, tried in zip(branches, own, strict=True)]
    return np.array(found).reshape(len(branches), candidates.shape[-2])


def drawn_candidates(around: FloatArray, count: int, spread: float, seed: int) -> FloatArray:
    """[A + count, STEERING_FEATURES] the vectors `around` [A, ...], and as many more near to them in turn."""
    rng = np.random.default_rng([seed, 5])
    centres = around[np.arange(count) % len(around)]
    return np.concatenate([around, perturbed(centres, spread, rng)])
