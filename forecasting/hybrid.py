"""The default forecaster: an online-weighted combination of ARIMAs, a GRU, trees and the daily mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rlpto.forecasting.base import SPREAD_HORIZON, SPREAD_LEVELS, Batch, Forecaster
from rlpto.forecasting.decision import Criteria, DecisionState, decide, new_decision
from rlpto.forecasting.features import MOST_LEARNT, VALIDATION, describe, layout_of
from rlpto.forecasting.gru import MOST_UNITS, MOST_UPDATES, GruForecaster
from rlpto.forecasting.intervals import MEDIAN, QUANTILES, at_levels, mean_of, spread_of, with_median
from rlpto.forecasting.pool import FEATURES, CombinationRules, PoolState, advance, new_state
from rlpto.forecasting.registry import forecaster_class, make_forecaster
from rlpto.forecasting.series import (
    LARGEST_COUNT,
    LATEST_SECONDS,
    MOST_POINTS,
    ForecastError,
    TimeSeries,
    checked_integer,
)
from rlpto.forecasting.storage import State
from rlpto.forecasting.trees import TreesForecaster
from rlpto.io.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Part:
    """A member of the combination. kind, settings: the forecaster. strong: whether it starts with a full weight, and
    also stands in the pool corrected by its recent errors; the others start with SIMPLE_WEIGHT. shared: settings that
    it takes over from the combination."""

    kind: str
    settings: Mapping[str, Any]
    strong: bool
    shared: tuple[str, ...] = ()


PARTS: Mapping[str, Part] = {
    "mean_24h": Part("moving_average", {"hours": 24.0}, False),
    "arima_raw": Part("arima_raw", {}, False),
    "arima_log": Part("arima_log", {}, True),
    "arima_fourier": Part("arima_fourier", {}, True),
    "trees": Part("trees", {}, True, ("seed", "horizon")),
    "gru": Part("gru", {}, True, ("seed", "horizon", "hidden", "updates")),
}

NAMES = tuple(PARTS)
"""[K] parts in the order of the pool."""

STRONG = [place for place, name in enumerate(NAMES) if PARTS[name].strong]

SIMPLE_WEIGHT = 0.15
CORRECTED_WEIGHT = 0.5
"""Starting weights relative to that of a strong part."""

LABELS = (*NAMES, *(f"{NAMES[place]}, corrected" for place in STRONG), "regression on all")
"""[E] names of the experts, in the order of their weights."""

RULES = CombinationRules()
CRITERIA = Criteria()


class Members(NamedTuple):
    """What the members forecast at N origins, in log1p: points [N, K, H], and the GRU's quantiles [N, H, Q]."""

    points: FloatArray
    quantiles: FloatArray


class Combination(NamedTuple):
    """At N origins: point and mean [N, H] in counts, bounds [N, H, Q] in log1p, the pool's weights [N, H, E]."""

    point: FloatArray
    mean: FloatArray
    bounds: FloatArray
    weights: FloatArray


class Learnt(NamedTuple):
    """State that keeps learning after the fit: the pool, and the decision on a count."""

    pool: PoolState
    decision: DecisionState

    def combine(self, values: FloatArray, members: Members, usual: float, learning: bool) -> Combination:
        """Go through N origins; without learning, nothing is remembered.

        values: [N] newest count known at each origin. usual: mean count of the fitted series.
        """
        points, quantiles = members
        features = np.zeros((*quantiles.shape[:2], FEATURES))  # the first column is the pool's to fill in
        features[..., 1] = mean_of(quantiles)
        features[..., 2] = np.expm1(points[:, NAMES.index("arima_raw")])
        features[..., 3] = np.expm1(points[:, NAMES.index("mean_24h")])
        features[..., 4] = usual
        found = advance(self.pool, RULES, np.log1p(values), points, spread_of(quantiles), features, learning)
        point = decide(self.decision, CRITERIA, values, found.point, found.mixes, points, learning)
        return Combination(point, found.mean, with_median(found.bounds, np.log1p(point)), found.weights)


class HybridForecaster(Forecaster):
    """ARIMA, GRU, trees and the daily mean under weights that follow how each of them is doing.

    `pool.py` combines the parts, copies of the strong ones corrected by their recent errors, and a regression on all
    parts, per step ahead. `decision.py` makes the point forecast of it. Both learn on the last 15 % of the fitted
    series and continue with new counts; a forecast enters them once its target is observed. The intervals are the
    GRU's quantiles under adaptive conformal calibration; `SeriesForecast.mean` is a regression for squared error on the
    pool and some of its parts. Covariates go to the trees.

    A series given to the batched methods must start where the fitted one did for weights to be warm from the fitted
    part on; origins before that, and other series' first ones, are combined under the starting weights.

    seed: of the GRU and the trees. horizon: steps ahead that are learnt; later ones are weighted like the last.
    hidden, updates: size and training of the GRU.
    """

    kind: ClassVar[str] = "hybrid"
    uses_covariates: ClassVar[bool] = True

    def __init__(self, seed: int = 0, horizon: int = 12, hidden: int = 24, updates: int = 400) -> None:
        super().__init__()
        self.seed = checked_integer("seed", seed, 0, 2**32 - 1)
        self.horizon = checked_integer("horizon", horizon, 1, MOST_LEARNT)
        self.hidden = checked_integer("hidden", hidden, 1, MOST_UNITS)
        self.updates = checked_integer("updates", updates, 1, MOST_UPDATES)
        self._members: dict[str, Forecaster] = {}
        self._fitted = (0, 0.0)  # points, and start, of the fitted series
        self._usual, self._variance, self._whole = 0.0, 0.0, True
        self._learnt: Learnt | None = None
        self._now: Combination | None = None

    def _fit(self, series: TimeSeries) -> None:
        self._fitted = (len(series), series.start)
        self._usual, self._variance = float(series.values.mean()), float(series.values.var())
        self._whole = bool((series.values == np.floor(series.values)).all())
        own, self._members = self.settings(), {}
        for name, part in PARTS.items():
            member = make_forecaster(part.kind, **part.settings, **{shared: own[shared] for shared in part.shared})
            self._members[name] = member.fit(series, series.covariates if member.uses_covariates else None)
        self._learnt, found = self._run(series, self._members_on(series, self.horizon))
        self._now = Combination(*(part[-1:] for part in found))

    @property
    def fallback(self) -> str:
        """Deviations of the parts from their planned fit, and why; empty if there were none."""
        notes = ((name, getattr(part, "fallback", "")) for name, part in self._members.items())
        return "; ".join(f"{name}: {note}" for name, note in notes if note)

    def parts(self, y: Any, origins: Any, horizon: int, covariates: Any = None) -> dict[str, FloatArray]:
        """[N, H] point forecasts of every part by name, as `forecasts` of the whole; the arguments are the same."""
        series, checked, steps = self._asked(y, origins, horizon, covariates)
        points, _ = self._members_on(series.head(int(checked.max(initial=1))), steps)
        return {name: np.expm1(points[checked - 1, place]) for place, name in enumerate(NAMES)}

    def weights(self, y: Any, origins: Any, covariates: Any = None) -> FloatArray:
        """[N, horizon, E] weights at N origins of a series, experts in the order of LABELS."""
        return self._combined(*self._asked(y, origins, self.horizon, covariates)).weights

    def _points(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        return self._combined(series, origins, horizon).point

    def _batch(self, series: TimeSeries, origins: IntArray, horizon: int, levels: FloatArray) -> Batch:
        found = self._combined(series, origins, horizon)
        return Batch(found.point, found.mean, at_levels(found.bounds, levels))

    def _measure_spread(self, series: TimeSeries) -> FloatArray:  # noqa: ARG002
        # Intervals of the pool are its own.
        return np.zeros((len(SPREAD_LEVELS), SPREAD_HORIZON))

    def _members_on(self, series: TimeSeries, horizon: int) -> Members:
        """Forecasts of the members at all origins, 1 to T, of a series."""
        every = np.arange(1, len(series) + 1)
        quantiles = self._gru().log_quantiles(series, every, horizon)
        found = [
            quantiles[..., MEDIAN] if name == "gru" else np.log1p(member._points(series, every, horizon))
            for name, member in self._members.items()
        ]
        return Members(np.stack(found, axis=1), quantiles)

    def _gru(self) -> GruForecaster:
        gru = self._members["gru"]
        assert isinstance(gru, GruForecaster)
        return gru

    def _blank(self) -> Learnt:
        weights = [1.0 if place in STRONG else SIMPLE_WEIGHT for place in range(len(NAMES))]
        prior = np.array(weights + [CORRECTED_WEIGHT] * len(STRONG) + [1.0])
        pool = new_state(self.horizon, prior, len(NAMES), STRONG, np.array(QUANTILES), self._variance, RULES)
        return Learnt(pool, new_decision(self.horizon, len(NAMES), self._whole, CRITERIA))

    def _warm_from(self, series: TimeSeries) -> int:
        """First origin from which weights learn: the start of the part that no member was trained on."""
        points, start = self._fitted
        return max(1, points - round(VALIDATION * points)) if series.start == start else 1

    def _run(self, series: TimeSeries, members: Members) -> tuple[Learnt, Combination]:
        """The state after the last of N origins of a series, and the combination at each, `horizon` steps or more."""
        values = series.values[: len(members.points)]
        learnt = self._blank()
        warm = min(self._warm_from(series) - 1, len(values))
        learnt.pool.top[0] = np.log1p(values[: max(warm, 1)].max())
        pieces = [
            learnt.combine(values[some], Members(*(part[some] for part in members)), self._usual, learning)
            for some, learning in ((slice(warm), False), (slice(warm, None), True))
        ]
        return learnt, Combination(*(np.concatenate(pair) for pair in zip(*pieces, strict=True)))

    def _combined(self, series: TimeSeries, origins: IntArray, horizon: int) -> Combination:
        """The combination at N origins."""
        known = series.head(int(origins.max(initial=1)))
        _, found = self._run(known, self._members_on(known, max(horizon, self.horizon)))
        return Combination(*(part[origins - 1, :horizon] for part in found))

    def _members_now(self, history: TimeSeries, horizon: int) -> Members:
        """Forecasts of the members that follow a history they have taken in; networks and trees share features."""
        now = np.array([len(history)])
        seen = describe(layout_of(history, self.horizon), history, now, horizon)
        quantiles = self._gru().log_quantiles_now(seen)
        found = []
        for name, member in self._members.items():
            if name == "gru":
                found.append(quantiles[0, :, MEDIAN])
            elif isinstance(member, TreesForecaster):
                found.append(np.log1p(member.from_features(seen, history, now)[0]))
            else:
                found.append(np.log1p(member._predict(horizon, np.empty(0)).point[0]))
        return Members(np.stack(found)[None], quantiles)

    def _update(self, new: TimeSeries) -> None:
        history = self._observed()
        known = len(history) - len(new)
        for place in range(len(new)):
            one = new.head(place + 1).tail(1)
            for member in self._members.values():
                member.take_in(one)
            members = self._members_now(history.head(known + place + 1), self.horizon)
            self._now = self._fitted_state().combine(one.values, members, self._usual, True)

    def _look_back_on(self, history: TimeSeries) -> None:
        super()._look_back_on(history)
        for member in self._members.values():
            member._look_back_on(history)

    def _fitted_state(self) -> Learnt:
        if self._learnt is None:
            raise ForecastError(f"{self.kind}: nothing fitted yet, call fit first")
        return self._learnt

    def _predict(self, horizon: int, levels: FloatArray) -> Batch:
        found = self._now
        if found is None or horizon > self.horizon:
            members = self._members_now(self._observed(), horizon)
            found = self._fitted_state().combine(np.zeros(1), members, self._usual, False)
        return Batch(found.point[:, :horizon], found.mean[:, :horizon], at_levels(found.bounds[:, :horizon], levels))

    def _state(self) -> State:
        assert self._now is not None
        points, start = self._fitted
        values = {"points": points, "start": start, "usual": self._usual, "variance": self._variance}
        state = State(values | {"whole": self._whole})
        for name, member in self._members.items():
            state.nested(f"member.{name}", member.state())
        pool, decision = self._fitted_state()
        for prefix, group in (("pool", pool), ("decision", decision), ("now", self._now)):
            state.arrays.update({f"{prefix}.{name}": array for name, array in group._asdict().items()})
        return state

    def _restore(self, state: State) -> None:
        start = state.number("start", -LATEST_SECONDS, LATEST_SECONDS)
        self._fitted = (state.integer("points", 1, MOST_POINTS), start)
        self._usual = state.number("usual", 0, LARGEST_COUNT)
        self._variance = state.number("variance", 0, LARGEST_COUNT**2)
        self._whole = state.values["whole"] is True
        self._members = {
            name: forecaster_class(part.kind).from_state(state.part(f"member.{name}"), name)
            for name, part in PARTS.items()
        }
        blank, steps = self._blank(), np.zeros((1, self.horizon))
        # What does not change is not taken from a file.
        pool = state.arrays_like("pool", blank.pool)._replace(
            **{name: getattr(blank.pool, name) for name in ("prior", "corrected", "sides", "tails", "variance")}
        )
        decision = state.arrays_like("decision", blank.decision)
        self._learnt = Learnt(pool, decision._replace(whole=blank.decision.whole, prior=blank.decision.prior))
        np.linalg.cholesky(pool.gram)  # refuses what cannot be solved
        bounds, weights = np.zeros((1, self.horizon, len(QUANTILES))), np.zeros((1, self.horizon, len(LABELS)))
        self._now = state.arrays_like("now", Combination(steps, steps, bounds, weights))
