"""A learnt portfolio: few vectors of steering weights of which one is cheap in every state.

Source: greedy choice for a submodular function (Nemhauser, Wolsey, Fisher 1978), as portfolios of solvers are chosen
(Xu, Hoos, Leyton-Brown, "Hydra", AAAI 2010), then a random search over one vector at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import FloatArray
from rlpto.planning.branching import Branch, cost_matrix
from rlpto.planning.planner import perturbed


def always_tried(branches: Sequence[Branch], work: int, reward: RewardWeights) -> FloatArray:
    """[S] the cheaper of the base and the plan that stands, relative to the base: both are candidates in every plan."""
    plans = np.array([one.plan for one in branches])[:, None]
    return np.minimum(cost_matrix(branches, plans, work, reward)[:, 0], 1.0)


def choose_greedily(costs: FloatArray, count: int, tried: FloatArray) -> list[int]:
    """`count` candidates that together leave the smallest mean of the cheapest, one after another.

    costs: [S, C] relative to the base. tried: [S] the cheapest of what is tried anyway. Fewer where no further one
    helps in any state.
    """
    best = tried.copy()
    chosen: list[int] = []
    for _ in range(min(count, costs.shape[1])):
        mean = np.minimum(best[:, None], costs).mean(axis=0)
        at = int(mean.argmin())
        if mean[at] >= best.mean():
            break
        chosen.append(at)
        best = np.minimum(best, costs[:, at])
    return chosen


def refine(
    portfolio: FloatArray,
    branches: Sequence[Branch],
    rounds: int,
    work: int,
    reward: RewardWeights,
    seed: int,
    spread: float = 0.25,
) -> tuple[FloatArray, FloatArray]:
    """The portfolio [K, STEERING_FEATURES] after `rounds` changes of one vector each, kept where they lower the mean of
    the cheapest over all states, and that mean [rounds + 1]. spread: at most, as of the planner's perturbations."""
    rng = np.random.default_rng([seed, 7])
    found, costs = portfolio.copy(), cost_matrix(branches, portfolio, work, reward)
    anyway = always_tried(branches, work, reward)
    course = [_mean_of_best(costs, anyway)]
    for i in range(rounds):
        at = i % len(found)
        tried = perturbed(found[at : at + 1], spread * rng.uniform(0.3, 1.0), rng)
        changed = costs.copy()
        changed[:, at] = cost_matrix(branches, tried, work, reward)[:, 0]
        if (mean := _mean_of_best(changed, anyway)) < course[-1]:
            found[at], costs = tried[0], changed
        course.append(min(mean, course[-1]))
    return found, np.array(course)


def _mean_of_best(costs: FloatArray, tried: FloatArray) -> float:
    """Mean over states of the cheapest of candidates [S, K] and of what is tried anyway [S]."""
    return float(np.minimum(costs.min(axis=1), tried).mean())
