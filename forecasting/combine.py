"""Arithmetic of the combination: weighted median of candidates, its intervals, and the mean, one count at a time.

The forecast with the least absolute error is the median, a whole number for whole counts (an expectation of 0.3 jobs
means that 0 is most likely). Candidates are the members, the mean of the strong members and the median of all members,
each shifted by a few factors and rounded at a few thresholds. Every candidate has an exponential weight of its
discounted absolute errors in counts, per step ahead and partly over all steps; a share of the weights always stays with
the prior (Herbster and Warmuth 1998). The point forecast is the weighted median of the candidates.

The compiled code is the same for a whole series and for single counts. It goes through arrays element by element,
because functions of NumPy took most of the half minute to compile it. At each origin, forecasts of the newest
count made 1, 2, ... steps before are settled: step h learns only from forecasts h steps old, so nothing is used before
it is known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.compiled import njit

SHIFTS = np.array([-0.15, -0.1, -0.05, 0.0, 0.05])
"""Shifts of candidates [log1p]. More of them are negative, because most counts are skewed."""

THRESHOLDS = np.array([0.3, 0.4, 0.5])
"""Whole counts are candidates rounded down after adding these."""

FEATURES = 5
"""Number of columns on which the mean is regressed."""
LEAST_RIDGE = 1e-9
"""Ridge relative to the largest squared feature, where the features are collinear to machine precision."""

MEAN_PRIOR = np.array([0.5, 0.2, 0.15, 0.15, 0.0])
"""[FEATURES] prior coefficients of the point, mean of the learnt quantiles, raw ARIMA, daily mean, a constant."""


class CombinationRules(NamedTuple):
    """Constants of the combination.

    half_life: half-life of losses [steps]; rate: rate of the exponential weights; floor: share of the weights that
    always stays with the prior; pooled: share of the losses taken from all steps ahead together. mean, middle, members:
    starting weights of the candidates made of the mean of the strong members, of the median of all, and of all members
    together. window: scores from which intervals are computed; window_least: fewest scores to compute them; pace: step
    size of the adaptive level. mean_half_life [steps], mean_prior: half-life and prior of the regression for the mean.
    """

    half_life: float = 2000.0
    rate: float = 0.2
    floor: float = 0.01
    pooled: float = 0.2
    mean: float = 1.0
    middle: float = 0.5
    members: float = 3.0
    window: int = 100
    window_least: int = 20
    pace: float = 0.02
    mean_half_life: float = 2000.0
    mean_prior: float = 50.0


class CombinationState(NamedTuple):
    """Learnt state of the combination. H steps ahead, K members, G candidates, Q levels.

    whole [1]: 1 if counts are whole numbers; strong: places of strong members; prior [G], levels [Q] of the quantiles,
    variance [1] of counts: fixed. origins [1]: number so far; top [1]: largest log1p count. losses [H, G]: discounted
    absolute errors in counts; adapted [H, Q], scores [H, Q, window]: intervals; gram [H, F, F], moment [H, F]:
    regression for the mean. Of the last H origins: old_candidates [H, G, H], old_spread and old_bounds [H, H, Q],
    old_features [H, H, F], the point first.
    """

    whole: IntArray
    strong: IntArray
    prior: FloatArray
    levels: FloatArray
    variance: FloatArray
    origins: IntArray
    top: FloatArray
    losses: FloatArray
    adapted: FloatArray
    scores: FloatArray
    gram: FloatArray
    moment: FloatArray
    old_candidates: FloatArray
    old_spread: FloatArray
    old_bounds: FloatArray
    old_features: FloatArray


FIXED = ("whole", "strong", "prior", "levels", "variance")
"""Parts of the state that never change."""


class Combined(NamedTuple):
    """Combined forecasts at N origins: point and mean [N, H] in counts, bounds [N, H, Q] in log1p."""

    point: FloatArray
    mean: FloatArray
    bounds: FloatArray


def new_state(
    horizon: int,
    members: int,
    strong: list[int],
    levels: FloatArray,
    variance: float,
    whole: bool,
    rules: CombinationRules,
) -> CombinationState:
    """Return an untrained combination. levels: levels of the quantiles. whole: whether counts are whole numbers."""
    each = len(SHIFTS) * (len(THRESHOLDS) if whole else 1)
    shares = np.array([rules.members / members] * members + [rules.mean, rules.middle])
    prior = np.repeat(shares / shares.sum() / each, each)
    variance = max(variance, 1e-6)
    ridge = rules.mean_prior * variance * np.eye(FEATURES)
    return CombinationState(
        whole=np.array([int(whole)]),
        strong=np.array(strong, dtype=np.int64),
        prior=prior,
        levels=levels,
        variance=np.array([variance]),
        origins=np.zeros(1, dtype=np.int64),
        top=np.zeros(1),
        losses=np.zeros((horizon, len(prior))),
        adapted=np.tile(np.minimum(levels, 1 - levels), (horizon, 1)),
        scores=np.zeros((horizon, len(levels), rules.window)),
        gram=np.tile(ridge, (horizon, 1, 1)),
        moment=np.tile(ridge @ MEAN_PRIOR, (horizon, 1)),
        old_candidates=np.zeros((horizon, len(prior), horizon)),
        old_spread=np.zeros((horizon, horizon, len(levels))),
        old_bounds=np.zeros((horizon, horizon, len(levels))),
        old_features=np.zeros((horizon, horizon, FEATURES)),
    )


@njit()
def combine(
    state: CombinationState,
    rules: CombinationRules,
    newest: FloatArray,
    members: FloatArray,
    spread: FloatArray,
    features: FloatArray,
    learning: bool,
) -> Combined:
    """Run through N consecutive origins, changing `state`, and combine at each.

    newest: [N] newest count known at each origin. members: [N, K, H] in log1p. spread: [N, H, Q] distance of quantiles
    from the median in log1p, 0 or more. features: [N, H, FEATURES] counts for the mean (the first column is filled in
    here). learning: if False, combine with the present weights and leave them unchanged. H must be at least the number
    of steps in the state; later steps are treated like the state's last.
    """
    origins, _, horizon = members.shape
    learnt, levels = state.losses.shape[0], state.levels.shape[0]
    point = np.empty((origins, horizon))
    mean = np.empty((origins, horizon))
    bounds = np.empty((origins, horizon, levels))
    weights = weights_of(state, rules)
    for i in range(origins):
        if learning:
            state.top[0] = max(state.top[0], np.log1p(newest[i]))
            for h in range(min(learnt, state.origins[0])):
                _settle(state, rules, newest[i], h)
            state.origins[0] += 1
            weights = weights_of(state, rules)
        seen = _candidates(state, members[i])
        for h in range(horizon):
            own = min(h, learnt - 1)
            point[i, h] = _weighted_median(seen[:, h], weights[own])
            for q in range(levels):
                bounds[i, h, q] = _bound(state, rules, own, q, np.log1p(point[i, h]), spread[i, h, q])
            sort(bounds[i, h])
            features[i, h, 0] = point[i, h]
            slopes, expected = _slopes(state.gram[own], state.moment[own]), 0.0
            for a in range(FEATURES):
                expected += slopes[a] * features[i, h, a]
            mean[i, h] = max(expected, 0.0)
        if learning:
            _keep(state, seen, spread[i], bounds[i], features[i])
    return Combined(point, mean, bounds)


@njit()
def _slopes(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """Return the coefficients [FEATURES] of the mean. If counts grow by many orders of magnitude, the prior's ridge
    vanishes in rounding, and a ridge relative to the counts takes its place."""
    try:
        slopes = np.linalg.solve(gram, moment)
    except Exception:  # compiled code can name no other exception
        ridge = LEAST_RIDGE * max(np.diag(gram).max(), 1.0)
        slopes = np.linalg.solve(gram + ridge * np.eye(FEATURES), moment + ridge * MEAN_PRIOR)
    return slopes.astype(np.float64)


@njit()
def _keep(
    state: CombinationState, seen: FloatArray, spread: FloatArray, bounds: FloatArray, features: FloatArray
) -> None:
    """Keep the forecasts of the newest origin until their targets are known."""
    place = state.origins[0] % state.losses.shape[0]
    for h in range(state.losses.shape[0]):
        for g in range(seen.shape[0]):
            state.old_candidates[place, g, h] = seen[g, h]
        for q in range(state.levels.shape[0]):
            state.old_spread[place, h, q], state.old_bounds[place, h, q] = spread[h, q], bounds[h, q]
        for a in range(FEATURES):
            state.old_features[place, h, a] = features[h, a]


@njit()
def _settled(state: CombinationState, h: int) -> int:
    """Return the number of forecasts of step h whose targets are known."""
    return int(max(state.origins[0] - 1 - h, 0))


@njit()
def _settle(state: CombinationState, rules: CombinationRules, count: float, h: int) -> None:
    """Learn from the forecast of step h made h + 1 origins ago, whose target is `count`."""
    old, x = (state.origins[0] - h) % state.losses.shape[0], np.log1p(count)
    seen = state.old_features[old, h]
    forget = 0.5 ** (1 / rules.half_life)
    for g in range(state.losses.shape[1]):
        state.losses[h, g] = forget * state.losses[h, g] + abs(state.old_candidates[old, g, h] - count)
    at = (state.origins[0] - 1 - h) % rules.window
    for q in range(state.levels.shape[0]):
        side = np.sign(state.levels[q] - 0.5)
        if side == 0:
            continue
        tail = min(state.levels[q], 1 - state.levels[q])
        missed = 1.0 if side * (x - state.old_bounds[old, h, q]) > 1e-9 else 0.0
        level = state.adapted[h, q] + rules.pace * (tail - missed)
        state.adapted[h, q] = min(max(level, -0.1), 0.9)
        state.scores[h, q, at] = side * (x - np.log1p(seen[0])) / state.old_spread[old, h, q]
    keep = 0.5 ** (1 / rules.mean_half_life)
    ridge = (1 - keep) * rules.mean_prior * state.variance[0]
    for a in range(FEATURES):
        state.moment[h, a] = keep * state.moment[h, a] + ridge * MEAN_PRIOR[a] + seen[a] * count
        for b in range(FEATURES):
            state.gram[h, a, b] = keep * state.gram[h, a, b] + seen[a] * seen[b] + (ridge if a == b else 0.0)


@njit()
def weights_of(state: CombinationState, rules: CombinationRules) -> FloatArray:
    """Return exponential weights [H, G] of losses relative to the prior's mean loss, partly pooled over all steps."""
    prior, forget = state.prior, 0.5 ** (1 / rules.half_life)
    horizon, candidates = state.losses.shape
    weights, relative = np.empty((horizon, candidates)), np.zeros((horizon, candidates))
    together = np.zeros(candidates)
    known = min(horizon, max(state.origins[0] - 1, 0))
    for h in range(known):
        number = (1 - forget ** _settled(state, h)) / (1 - forget)
        level = _dot(state.losses[h], prior) / number + 1e-12
        for g in range(candidates):
            relative[h, g] = state.losses[h, g] / level
        level = _dot(relative[h], prior)
        for g in range(candidates):
            relative[h, g] -= level
            together[g] += relative[h, g]
    for h in range(horizon):
        total, least = 0.0, np.inf
        for g in range(candidates):
            excess = (1 - rules.pooled) * relative[h, g] + rules.pooled * (together[g] / max(known, 1))
            weights[h, g], least = excess, min(excess, least)
        for g in range(candidates):
            weights[h, g] = prior[g] * np.exp(-rules.rate * (weights[h, g] - least))
            total += weights[h, g]
        for g in range(candidates):  # no forecast of later steps is settled yet
            own = (1 - rules.floor) * weights[h, g] / total + rules.floor * prior[g]
            weights[h, g] = own if h < known else prior[g]
    return weights


@njit()
def _dot(one: FloatArray, other: FloatArray) -> float:
    """Return the sum of the products."""
    total = 0.0
    for at in range(len(one)):
        total += one[at] * other[at]
    return total


@njit()
def _candidates(state: CombinationState, members: FloatArray) -> FloatArray:
    """Return the candidates [G, H] in counts, from the members [K, H] in log1p."""
    parts, horizon = members.shape
    whole = state.whole[0] == 1
    seen = np.empty((state.prior.shape[0], horizon))
    made, ranked = np.empty(parts + 2), np.empty(parts)
    for h in range(horizon):
        for part in range(parts):
            made[part] = ranked[part] = members[part, h]
        made[parts] = 0.0
        for part in state.strong:
            made[parts] += members[part, h]
        made[parts] /= len(state.strong)
        sort(ranked)
        made[parts + 1] = 0.5 * (ranked[(parts - 1) // 2] + ranked[parts // 2])
        at = 0
        for x in made:
            for shift in SHIFTS:
                shifted = np.expm1(max(x + shift, 0.0))
                if whole:
                    for threshold in THRESHOLDS:
                        seen[at, h] = np.floor(shifted + threshold)
                        at += 1
                else:
                    seen[at, h] = shifted
                    at += 1
    return seen


@njit()
def _weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """Return the smallest value at which half of the weights is reached."""
    order = np.arange(len(values))
    sort_places(values, order)
    reached = 0.0
    for place in order:
        reached += weights[place]
        if reached >= 0.5:
            return float(values[place])
    return float(values[order[-1]])


GAPS = (57, 23, 10, 4, 1)
"""Gap sequence of Shell sort (Ciura 2001)."""


@njit()
def sort(values: FloatArray) -> None:
    """Sort values in place."""
    for gap in GAPS:
        for at in range(gap, len(values)):
            value, free = values[at], at
            while free >= gap and values[free - gap] > value:
                values[free] = values[free - gap]
                free -= gap
            values[free] = value


@njit()
def sort_places(values: FloatArray, order: IntArray) -> None:
    """Sort places by their values."""
    for gap in GAPS:
        for at in range(gap, len(order)):
            place, free = order[at], at
            while free >= gap and values[order[free - gap]] > values[place]:
                order[free] = order[free - gap]
                free -= gap
            order[free] = place


@njit()
def _bound(state: CombinationState, rules: CombinationRules, h: int, q: int, point: float, spread: float) -> float:
    """Return a quantile in log1p: the point, plus past scores' quantile at the adapted level times the spread.

    It is adaptive conformal inference (Gibbs and Candès 2021) on scores scaled as in Romano et al. (2019). The result
    never exceeds the largest count seen, and never crosses the point.
    """
    side = np.sign(state.levels[q] - 0.5)
    if side == 0:
        return point
    known = min(_settled(state, h), rules.window)
    factor = 1.0
    if known >= rules.window_least:
        rank = min(max((1 - state.adapted[h, q]) * (known + 1) - 1, 0.0), known - 1.0)
        low = min(int(rank), known - 2)
        ranked = np.empty(known)
        for at in range(known):
            ranked[at] = state.scores[h, q, at]
        sort(ranked)
        below, above = ranked[low], ranked[low + 1]
        factor = max(below + (above - below) * (rank - low), 0.0)
    found = max(point + side * factor * spread, 0.0)
    if side > 0:
        found = max(min(found, state.top[0]), point)
    return float(found)
