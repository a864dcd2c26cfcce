"""From the pool to one number: the count with the least absolute error, by which point forecasts are scored.

The pool combines in log1p. The count with the least absolute error is the median, for whole counts a whole number (a
mix of 0.3 jobs means that 0 is most likely). So candidates compete by their absolute errors in counts: every part, and
three mixes of the parts (the pool, a regression on all parts, and the middle of the pool and the regressions), each
moved by a few factors and rounded at a few thresholds. They have exponential weights as in `rlpto.forecasting.pool`,
with a longer memory. The decision is their weighted median, which is one of the candidates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from rlpto.forecasting.pool import reweigh
from rlpto.io.arrays import FloatArray, IntArray

SHIFTS = np.array([-0.15, -0.1, -0.05, 0.0, 0.05])
"""Candidates are the mixes moved by these [log1p]; more of them below it: most counts are skewed."""

THRESHOLDS = np.array([0.3, 0.4, 0.5])
"""Whole counts are candidates rounded down after adding these."""

PART_THRESHOLD = 0.4
"""The same for candidates that are parts."""


class Criteria(NamedTuple):
    """Constants of the decision, chosen on synthetic series and on the first 80 % of real ones.

    half_life: of losses [steps]; rate: of the exponential weights; floor: share of the weights that is always the
    prior's; pooled: share of the losses taken from all horizons together; regression, middle, parts: what the
    candidates made of the regression, those of the middle, and all parts together weigh at the start, relative to
    those made of the pool.
    """

    half_life: float = 2000.0
    rate: float = 0.2
    floor: float = 0.01
    pooled: float = 0.2
    regression: float = 0.5
    middle: float = 0.5
    parts: float = 1.0


class DecisionState(NamedTuple):
    """What has been learnt. H horizons, G candidates.

    whole [1]: 1 if counts are whole numbers; prior [G]: fixed. losses [H, G], weight [H]: discounted absolute errors
    in counts and their number; weights [H, G]. origins [1]: seen so far. old [H, G, H]: candidates of the last H.
    """

    whole: IntArray
    prior: FloatArray
    losses: FloatArray
    weight: FloatArray
    weights: FloatArray
    origins: IntArray
    old: FloatArray


def new_decision(horizon: int, parts: int, whole: bool, criteria: Criteria) -> DecisionState:
    """A decision that has seen nothing. whole: whether counts are whole numbers."""
    own = len(SHIFTS) * (len(THRESHOLDS) if whole else 1)
    groups = [(own, 1.0), (own, criteria.regression), (own, criteria.middle), (parts, criteria.parts)]
    prior = np.concatenate([np.full(size, share / size) for size, share in groups])
    prior /= prior.sum()
    return DecisionState(
        whole=np.array([int(whole)]),
        prior=prior,
        losses=np.zeros((horizon, len(prior))),
        weight=np.zeros(horizon),
        weights=np.tile(prior, (horizon, 1)),
        origins=np.zeros(1, dtype=np.int64),
        old=np.zeros((horizon, len(prior), horizon)),
    )


@njit(cache=True)
def decide(
    state: DecisionState,
    criteria: Criteria,
    newest: FloatArray,
    pool: FloatArray,
    mixes: FloatArray,
    parts: FloatArray,
    learning: bool,
) -> FloatArray:
    """Run through N consecutive origins, changing `state`, and return [N, H] counts.

    newest: [N] newest count known at each origin. pool: [N, H], mixes: [N, R, H] the regressions,
    parts: [N, K, H], all in log1p. learning: False decides from the present state and leaves it unchanged.
    H may exceed the horizons of the state and must cover them: later steps are treated like its last.
    """
    origins, horizon = pool.shape
    learnt = state.weight.shape[0]
    said = np.empty((origins, horizon))
    for i in range(origins):
        if learning:
            _settle(state, criteria, newest[i])
        seen = _candidates(state, _mixed(pool[i], mixes[i]), parts[i])
        for h in range(horizon):
            said[i, h] = _weighted_median(seen[:, h], state.weights[min(h, learnt - 1)])
        if learning:
            state.old[state.origins[0] % learnt] = seen[:, :learnt]
            state.origins[0] += 1
    return said


@njit(cache=True)
def _settle(state: DecisionState, criteria: Criteria, count: float) -> None:
    """Learn from the candidates whose target is `count`: those for step h said h + 1 origins ago."""
    learnt = len(state.losses)
    known = min(learnt, state.origins[0])
    keep = 0.5 ** (1 / criteria.half_life)
    for h in range(known):
        old = (state.origins[0] - 1 - h) % learnt
        state.losses[h] = keep * state.losses[h] + np.abs(state.old[old, :, h] - count)
        state.weight[h] = keep * state.weight[h] + 1
    # Horizons without a settled forecast keep the prior.
    reweigh(state.losses[:known], state.weight[:known], state.weights[:known], state.prior, criteria)


@njit(cache=True)
def _mixed(pool: FloatArray, mixes: FloatArray) -> FloatArray:
    """[3, H] what candidates are made of: the pool [H], the first regression of [R, H], the middle of all."""
    found = np.empty((3, len(pool)))
    found[0], found[1] = pool, mixes[0]
    found[2] = (pool + mixes.sum(axis=0)) / (1 + len(mixes))
    return found


@njit(cache=True)
def _candidates(state: DecisionState, mixed: FloatArray, parts: FloatArray) -> FloatArray:
    """[G, H] counts, from the mixes [3, H] and the parts [K, H] in log1p."""
    whole = state.whole[0] == 1
    seen = np.empty((state.prior.shape[0], mixed.shape[1]))
    at = 0
    for mix in mixed:
        for shift in SHIFTS:
            moved = np.expm1(np.maximum(mix + shift, 0.0))
            if whole:
                for threshold in THRESHOLDS:
                    seen[at] = np.floor(moved + threshold)
                    at += 1
            else:
                seen[at] = moved
                at += 1
    for k in range(len(parts)):
        count = np.expm1(parts[k])
        seen[at + k] = np.floor(count + PART_THRESHOLD) if whole else count
    return seen


@njit(cache=True)
def _weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """The smallest of the values at which half of the weights is reached."""
    order = np.argsort(values)
    reached = 0.0
    for place in order:
        reached += weights[place]
        if reached >= 0.5:
            return float(values[place])
    return float(values[order[-1]])
