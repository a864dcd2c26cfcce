"""The arithmetic of the combination: weights, bias corrections, intervals and the mean, one value at a time.

The code is compiled, and the same for a whole series and for counts one by one. At each origin, forecasts of the newest
value made 1, 2, ... steps before are settled: weights of step h learn from forecasts h steps old alone, so nothing is
used before it is known.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from rlpto.io.arrays import FloatArray, IntArray

FEATURES = 5
"""Columns that the mean is regressed on."""

MIXES = 2
"""Regressions on all parts."""

MIX_SWEEPS = 4
"""Of coordinate descent for every value."""


class CombinationRules(NamedTuple):
    """Constants of the combination, chosen on synthetic series and on parts of real ones that are not tested on.

    half_life: of losses [steps]; rate: of the exponential weights; floor: share of the weights that is always the
    prior's; pooled: share of the losses taken from all horizons together. bias_half_life: of corrections [steps];
    bias_prior: steps' worth of no bias that they start with. mix_half_life [steps], mix_prior: of the two
    regressions on all parts; the second forgets nothing and is hardly drawn to the prior. window: scores from which
    intervals are computed; window_least: fewest scores for that; pace: of the adaptive level.
    mean_half_life [steps], mean_prior: of the regression for the mean.
    """

    half_life: float = 36.0
    rate: float = 0.5
    floor: float = 0.05
    pooled: float = 0.3
    bias_half_life: float = 200.0
    bias_prior: float = 24.0
    mix_half_life: tuple[float, float] = (1500.0, math.inf)
    mix_prior: tuple[float, float] = (3.0, 0.1)
    window: int = 100
    window_least: int = 20
    pace: float = 0.02
    mean_half_life: float = 2000.0
    mean_prior: float = 50.0


MEAN_PRIOR = np.array([0.5, 0.2, 0.15, 0.15, 0.0])
"""[FEATURES] of pooled median, mean of the pooled quantiles, raw ARIMA, daily mean, a constant."""


class PoolState(NamedTuple):
    """What has been learnt. H horizons, K parts, C of them with a corrected copy, Q levels, E = K + C + 1 experts.

    prior [E], corrected [C] places of parts, sides [Q] -1, 0, 1, tails [Q], variance [1] of counts: fixed.
    losses [H, E], weight [H]: discounted absolute errors in log1p and their number; weights [H, E].
    bias [H, K]: discounted signed errors. mix_gram [R, H, K, K], mix_moment [R, H, K], mix_noise [R, H], mix_weight
    [R, H] and mix [R, H, K]: the R = 2 regressions on all parts; the first is an expert.
    adapted [H, Q], scores [H, Q, window], scored [H]: intervals.
    gram [H, F, F], moment [H, F]: regression for the mean. origins [1]: seen so far. top [1]: largest log1p count.
    Of the last H origins: old_experts [H, E, H], old_point [H, H], old_spread and old_bounds [H, H, Q],
    old_features [H, H, F].
    """

    prior: FloatArray
    corrected: IntArray
    sides: FloatArray
    tails: FloatArray
    variance: FloatArray
    losses: FloatArray
    weight: FloatArray
    weights: FloatArray
    bias: FloatArray
    mix_gram: FloatArray
    mix_moment: FloatArray
    mix_noise: FloatArray
    mix_weight: FloatArray
    mix: FloatArray
    adapted: FloatArray
    scores: FloatArray
    scored: IntArray
    gram: FloatArray
    moment: FloatArray
    origins: IntArray
    top: FloatArray
    old_experts: FloatArray
    old_point: FloatArray
    old_spread: FloatArray
    old_bounds: FloatArray
    old_features: FloatArray


class Combined(NamedTuple):
    """At N origins: point [N, H], regressions on all parts [N, R, H] and bounds [N, H, Q], all in log1p, mean [N, H]
    in counts, weights [N, H, E]."""

    point: FloatArray
    mixes: FloatArray
    bounds: FloatArray
    mean: FloatArray
    weights: FloatArray


def new_state(
    horizon: int,
    prior: FloatArray,
    parts: int,
    corrected: list[int],
    levels: FloatArray,
    variance: float,
    rules: CombinationRules,
) -> PoolState:
    """A combination that has seen nothing: its weights are the prior's [K + C + 1]."""
    experts, quantiles = len(prior), len(levels)
    ridge = rules.mean_prior * max(variance, 1e-6) * np.eye(FEATURES)
    return PoolState(
        prior=prior / prior.sum(),
        corrected=np.array(corrected, dtype=np.int64),
        sides=np.sign(levels - 0.5),
        tails=np.minimum(levels, 1 - levels),
        variance=np.array([max(variance, 1e-6)]),
        losses=np.zeros((horizon, experts)),
        weight=np.zeros(horizon),
        weights=np.tile(prior / prior.sum(), (horizon, 1)),
        bias=np.zeros((horizon, parts)),
        mix_gram=np.zeros((MIXES, horizon, parts, parts)),
        mix_moment=np.zeros((MIXES, horizon, parts)),
        mix_noise=np.zeros((MIXES, horizon)),
        mix_weight=np.zeros((MIXES, horizon)),
        mix=np.tile(prior[:parts] / prior[:parts].sum(), (MIXES, horizon, 1)),
        adapted=np.tile(np.minimum(levels, 1 - levels), (horizon, 1)),
        scores=np.zeros((horizon, quantiles, rules.window)),
        scored=np.zeros(horizon, dtype=np.int64),
        gram=np.tile(ridge, (horizon, 1, 1)),
        moment=np.tile(ridge @ MEAN_PRIOR, (horizon, 1)),
        origins=np.zeros(1, dtype=np.int64),
        top=np.zeros(1),
        old_experts=np.zeros((horizon, experts, horizon)),
        old_point=np.zeros((horizon, horizon)),
        old_spread=np.zeros((horizon, horizon, quantiles)),
        old_bounds=np.zeros((horizon, horizon, quantiles)),
        old_features=np.zeros((horizon, horizon, FEATURES)),
    )


@njit(cache=True)
def advance(
    state: PoolState,
    rules: CombinationRules,
    newest: FloatArray,
    parts: FloatArray,
    spread: FloatArray,
    features: FloatArray,
    learning: bool,
) -> Combined:
    """Run through N consecutive origins, changing `state`, and combine at each.

    newest: [N] log1p of the newest value known at each origin. parts: [N, K, H] in log1p. spread:
    [N, H, Q] distance of quantiles from the median in log1p, 0 or more. features: [N, H, FEATURES - 1] counts for the
    mean (the first column is filled in here). learning: False combines with what is known and remembers nothing.
    H may exceed the horizons of the state, at least those must be given: later steps are treated like its last.
    """
    origins, horizon = parts.shape[0], parts.shape[2]
    experts, levels = state.prior.shape[0], state.sides.shape[0]
    learnt = state.weight.shape[0]
    point = np.empty((origins, horizon))
    mixes = np.empty((origins, MIXES, horizon))
    bounds = np.empty((origins, horizon, levels))
    mean = np.empty((origins, horizon))
    weights = np.empty((origins, horizon, experts))
    for i in range(origins):
        if learning:
            state.top[0] = max(state.top[0], newest[i])
            for h in range(min(learnt, state.origins[0])):
                _settle(state, rules, newest[i], h)
            reweigh(state.losses, state.weight, state.weights, state.prior, rules)
        full = _with_corrections(state, rules, parts[i])
        for h in range(horizon):
            own = min(h, learnt - 1)
            weights[i, h] = state.weights[own]
            point[i, h] = (state.weights[own] * full[:, h]).sum()
            for r in range(MIXES):
                mixes[i, r, h] = max((state.mix[r, own] * parts[i, :, h]).sum(), 0.0)
            for q in range(levels):
                bounds[i, h, q] = _bound(state, rules, own, q, point[i, h], spread[i, h, q])
            bounds[i, h] = np.sort(bounds[i, h])
            features[i, h, 0] = np.expm1(point[i, h])
            slopes = np.linalg.solve(state.gram[own], state.moment[own])
            mean[i, h] = max((slopes * features[i, h]).sum(), 0.0)
        if learning:
            place = state.origins[0] % learnt
            state.old_experts[place] = full[:, :learnt]
            state.old_point[place] = point[i, :learnt]
            state.old_spread[place] = spread[i, :learnt]
            state.old_bounds[place] = bounds[i, :learnt]
            state.old_features[place] = features[i, :learnt]
            state.origins[0] += 1
    return Combined(point, mixes, bounds, mean, weights)


@njit(cache=True)
def _settle(state: PoolState, rules: CombinationRules, x: float, h: int) -> None:
    """Learn from the forecast of step h made h + 1 origins ago: its target is x."""
    old = (state.origins[0] - 1 - h) % state.weight.shape[0]
    forget = 0.5 ** (1 / rules.half_life)
    state.losses[h] = forget * state.losses[h] + np.abs(state.old_experts[old, :, h] - x)
    state.weight[h] = forget * state.weight[h] + 1
    slow = 0.5 ** (1 / rules.bias_half_life)
    parts = state.bias.shape[1]
    state.bias[h] = slow * state.bias[h] + (x - state.old_experts[old, :parts, h])
    for r in range(MIXES):
        _regress(state, rules, state.old_experts[old, :parts, h], x, h, r)
    at = state.scored[h] % rules.window
    for q in range(state.sides.shape[0]):
        side = state.sides[q]
        if side == 0:
            continue
        missed = 1.0 if side * (x - state.old_bounds[old, h, q]) > 1e-9 else 0.0
        level = state.adapted[h, q] + rules.pace * (state.tails[q] - missed)
        state.adapted[h, q] = min(max(level, -0.1), 0.9)
        state.scores[h, q, at] = side * (x - state.old_point[old, h]) / state.old_spread[old, h, q]
    state.scored[h] += 1
    keep = 0.5 ** (1 / rules.mean_half_life)
    ridge = (1 - keep) * rules.mean_prior * state.variance[0]
    seen = state.old_features[old, h]
    for a in range(FEATURES):
        state.moment[h, a] = keep * state.moment[h, a] + ridge * MEAN_PRIOR[a] + seen[a] * np.expm1(x)
        for b in range(FEATURES):
            state.gram[h, a, b] = keep * state.gram[h, a, b] + seen[a] * seen[b] + (ridge if a == b else 0.0)


@njit(cache=True)
def _regress(state: PoolState, rules: CombinationRules, seen: FloatArray, x: float, h: int, r: int) -> None:
    """Take one more value into a non-negative ridge regression on all parts, which is drawn to the prior's mix.

    A few sweeps of coordinate descent from the last solution (Franc et al. 2005): one value
    more moves it little.
    """
    parts = len(seen)
    start = state.prior[:parts] / state.prior[:parts].sum()
    keep = 0.5 ** (1 / rules.mix_half_life[r])
    error = x - (seen * start).sum()
    state.mix_weight[r, h] = keep * state.mix_weight[r, h] + 1
    state.mix_noise[r, h] = keep * state.mix_noise[r, h] + error * error
    gram, moment, mix = state.mix_gram[r, h], state.mix_moment[r, h], state.mix[r, h]
    moment[:] = keep * moment + seen * error
    for a in range(parts):
        gram[a] = keep * gram[a] + seen[a] * seen
    ridge = rules.mix_prior[r] * parts * (state.mix_noise[r, h] / state.mix_weight[r, h] + 1e-9)
    away = mix - start
    for _ in range(MIX_SWEEPS):
        for a in range(parts):
            # A loop, since an array for every product would take most of the time of a step.
            pull = moment[a] + gram[a, a] * away[a]
            for b in range(parts):
                pull -= gram[a, b] * away[b]
            mix[a] = max(start[a] + pull / (gram[a, a] + ridge), 0.0)
            away[a] = mix[a] - start[a]


@njit(cache=True)
def reweigh(losses: FloatArray, weight: FloatArray, weights: FloatArray, prior: FloatArray, rules: Any) -> None:
    """Exponential weights per horizon: losses relative to the prior's mean loss, partly those of all horizons.

    After Herbster and Warmuth (1998) in that a share of the weights is always handed back: here to the prior.
    losses, weights: [H, E]; weight: [H], 0 where nothing is settled yet; prior: [E]. rules: rate, floor and pooled.
    """
    horizons, experts = losses.shape
    relative = np.zeros((horizons, experts))
    together = np.zeros(experts)
    settled = 0
    for h in range(horizons):
        if weight[h] > 0:
            typical = (losses[h] * prior).sum() / weight[h] + 1e-12
            relative[h] = losses[h] / typical
            relative[h] -= (relative[h] * prior).sum()
            together += relative[h]
            settled += 1
    for h in range(horizons if settled else 0):
        excess = (1 - rules.pooled) * relative[h] + rules.pooled * together / settled
        raw = prior * np.exp(-rules.rate * (excess - excess.min()))
        weights[h] = (1 - rules.floor) * raw / raw.sum() + rules.floor * prior


@njit(cache=True)
def _with_corrections(state: PoolState, rules: CombinationRules, parts: FloatArray) -> FloatArray:
    """[E, H] the parts [K, H], those of `corrected` shifted by their discounted mean error, and the regression."""
    count, horizon = parts.shape
    full = np.empty((state.prior.shape[0], horizon))
    full[:count] = parts
    slow = 0.5 ** (1 / rules.bias_half_life)
    for h in range(horizon):
        own = min(h, state.weight.shape[0] - 1)
        settled = (1 - slow ** state.scored[own]) / (1 - slow)
        for place, part in enumerate(state.corrected):
            shift = state.bias[own, part] / (settled + rules.bias_prior)
            full[count + place, h] = max(parts[part, h] + shift, 0.0)
        full[-1, h] = max((state.mix[0, own] * parts[:, h]).sum(), 0.0)
    return full


@njit(cache=True)
def _bound(state: PoolState, rules: CombinationRules, h: int, q: int, point: float, spread: float) -> float:
    """A quantile in log1p: the point, and past scores' quantile at the adapted level times the spread.

    Adaptive conformal inference (Gibbs and Candès 2021) on scores scaled as in Romano et al. (2019). Never beyond
    the largest count seen, never across the point.
    """
    side = state.sides[q]
    if side == 0:
        return point
    known = min(state.scored[h], rules.window)
    factor = 1.0
    if known >= rules.window_least:
        rank = min(max((1 - state.adapted[h, q]) * (known + 1) - 1, 0.0), known - 1.0)
        low = min(int(rank), known - 2)
        # Only the two neighbouring order statistics are needed.
        parted = np.partition(state.scores[h, q, :known], low + 1)
        below, above = parted[: low + 1].max(), parted[low + 1]
        factor = max(below + (above - below) * (rank - low), 0.0)
    found = max(point + side * factor * spread, 0.0)
    if side > 0:
        found = max(min(found, state.top[0]), point)
    return float(found)
