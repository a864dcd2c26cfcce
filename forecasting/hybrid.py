"""The default forecaster: an online-weighted combination of ARIMAs, a GRU, trees and the daily mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rlpto.forecasting.base import NO_LEVELS, SPREAD_HORIZON, SPREAD_LEVELS, Batch, Forecaster
from rlpto.forecasting.combine import (
    FEATURES,
    FIXED,
    LEAST_RIDGE,
    CombinationRules,
    CombinationState,
    Combined,
    combine,
    new_state,
)
from rlpto.forecasting.features import VALIDATION
from rlpto.forecasting.gru import MEDIAN, QUANTILES, GruForecaster, at_levels, mean_of, spread_of
from rlpto.forecasting.registry import make_forecaster
from rlpto.forecasting.series import LARGEST_COUNT, LATEST_SECONDS, MOST_POINTS, TimeSeries
from rlpto.forecasting.storage import State
from rlpto.io.arrays import FloatArray, IntArray

WEAK, STRONG = ("mean_24h", "arima_raw"), ("arima_log", "arima_fourier", "trees", "gru")
"""Members of the combination. The mean of the strong members is a candidate, too."""

NAMES = (*WEAK, *STRONG)
"""[K] members in the order of the combination."""

RULES = CombinationRules()

CONSTANT = 1e-9
"""Assumed variance of a constant series relative to its squared mean. At 0 the regression for the mean has no
solution."""


class Members(NamedTuple):
    """Forecasts of the members at N origins, in log1p: points [N, K, H], and the GRU's quantiles [N, H, Q]."""

    points: FloatArray
    quantiles: FloatArray


def run(state: CombinationState, values: FloatArray, members: Members, usual: float, learning: bool) -> Combined:
    """Combine the members at N origins. Without `learning`, the state is unchanged afterwards.

    values: [N] newest count known at each origin. usual: mean count of the fitted series.
    """
    points, quantiles = members
    features = np.zeros((*quantiles.shape[:2], FEATURES))  # the first column is filled in by the combination
    features[..., 1] = mean_of(quantiles)
    features[..., 2] = np.expm1(points[:, NAMES.index("arima_raw")])
    features[..., 3] = np.expm1(points[:, NAMES.index("mean_24h")])
    features[..., 4] = usual
    return combine(state, RULES, values, points, spread_of(quantiles), features, learning)


class HybridForecaster(Forecaster):
    """ARIMA, GRU, trees and the daily mean, weighted by their recent errors.

    The point forecast is a weighted median of candidates: the members, their mean and their median, each shifted a
    little and, for whole counts, rounded (`combine.py`). The weights learn on the last 15 % of the fitted series and
    continue with new counts; a forecast enters them once its target is observed. The intervals are the GRU's quantiles
    under adaptive conformal calibration; `SeriesForecast.mean` is a regression for squared error on the point and some
    members.

    In batched methods, weights are learnt from the held-out part on if the series starts when the fitted series did.
    Origins before this part, and the first origins of other series, are combined with the starting weights.

    seed: seed of the GRU and the trees. horizon: steps ahead that are learnt; later steps are weighted like the last.
    hidden, updates: size and training of the GRU.
    """

    _learnt: CombinationState
    _now: Combined

    def __init__(self, seed: int = 0, horizon: int = 12, hidden: int = 24, updates: int = 400) -> None:
        super().__init__()
        network = {"horizon": horizon, "hidden": hidden, "updates": updates}
        own = {"trees": {"horizon": horizon}, "gru": network}
        self._members = {name: make_forecaster(name, seed, **own.get(name, {})) for name in NAMES}  # checks them
        self.seed, self.horizon, self.hidden, self.updates = map(int, (seed, horizon, hidden, updates))
        self._fitted = (0, 0.0)  # points, and start, of the fitted series
        self._usual, self._variance, self._whole = 0.0, 0.0, True

    def _fit(self, series: TimeSeries) -> None:
        self._fitted = (len(series), series.start)
        self._usual = float(series.values.mean())
        self._variance = max(float(series.values.var()), CONSTANT * self._usual**2)
        self._whole = bool((series.values == np.floor(series.values)).all())
        for member in self._members.values():
            member.fit(series)
        self._learnt, found = self._run(series, self._members_on(series, self.horizon))
        self._now = Combined(*(part[-1:] for part in found))

    def parts(self, series: TimeSeries, origins: IntArray, horizon: int) -> dict[str, FloatArray]:
        """Return point forecasts [N, H] of every member by name. `batch` explains the arguments."""
        points, _ = self._members_on(series.head(int(origins.max())), horizon)
        return {name: np.expm1(points[origins - 1, place]) for place, name in enumerate(NAMES)}

    def _batch(self, series: TimeSeries, origins: IntArray, horizon: int, levels: FloatArray) -> Batch:
        known = series.head(int(origins.max()))
        _, every = self._run(known, self._members_on(known, max(horizon, self.horizon)))
        point, mean, bounds = (part[origins - 1, :horizon] for part in every)
        return Batch(point, mean, at_levels(bounds, levels))

    def _measure_spread(self, series: TimeSeries) -> FloatArray:  # noqa: ARG002
        # The combination computes its own intervals.
        return np.zeros((len(SPREAD_LEVELS), SPREAD_HORIZON))

    def _members_on(self, series: TimeSeries, horizon: int) -> Members:
        """Return the forecasts of the members at all origins, 1 to T, of a series."""
        every = np.arange(1, len(series) + 1)
        quantiles = self._gru().log_quantiles(series, every, horizon)
        return self._joined(quantiles, lambda member: member._points(series, every, horizon))

    def _members_now(self, horizon: int) -> Members:
        """Return the forecasts of the members at the end of their history."""
        quantiles = self._gru().log_quantiles_now(horizon)
        return self._joined(quantiles, lambda member: member._predict(horizon, NO_LEVELS).point)

    def _joined(self, quantiles: FloatArray, points_of: Callable[[Forecaster], FloatArray]) -> Members:
        """Combine the quantiles of the GRU with the counts forecast by all other members."""
        found = [
            quantiles[..., MEDIAN] if name == "gru" else np.log1p(points_of(member))
            for name, member in self._members.items()
        ]
        return Members(np.stack(found, axis=1), quantiles)

    def _gru(self) -> GruForecaster:
        gru = self._members["gru"]
        assert isinstance(gru, GruForecaster)
        return gru

    def _blank(self) -> CombinationState:
        levels, strong = np.array(QUANTILES), list(map(NAMES.index, STRONG))
        return new_state(self.horizon, len(NAMES), strong, levels, self._variance, self._whole, RULES)

    def _run(self, series: TimeSeries, members: Members) -> tuple[CombinationState, Combined]:
        """Return the state after the last of N origins of a series, and the combination at each, `horizon` steps or
        more. Weights are learnt from the start of the part on which no member was trained."""
        values = series.values[: len(members.points)]
        learnt, (points, start) = self._blank(), self._fitted
        first = max(1, points - round(VALIDATION * points)) if series.start == start else 1
        warm = min(first - 1, len(values))
        learnt.top[0] = np.log1p(values[: max(warm, 1)].max())
        pieces = [
            run(learnt, values[some], Members(*(part[some] for part in members)), self._usual, learning)
            for some, learning in ((slice(warm), False), (slice(warm, None), True))
        ]
        return learnt, Combined(*(np.concatenate(pair) for pair in zip(*pieces, strict=True)))

    def _update(self, new: TimeSeries) -> None:
        for place in range(len(new)):
            one = new.head(place + 1).tail(1)
            for member in self._members.values():
                member.take_in(one)
            self._now = run(self._learnt, one.values, self._members_now(self.horizon), self._usual, True)

    def _look_back_on(self, history: TimeSeries) -> None:
        super()._look_back_on(history)
        for member in self._members.values():
            member._look_back_on(history)

    def _predict(self, horizon: int, levels: FloatArray) -> Batch:
        found = self._now
        if horizon > self.horizon:
            found = run(self._learnt, np.zeros(1), self._members_now(horizon), self._usual, False)
        return Batch(found.point[:, :horizon], found.mean[:, :horizon], at_levels(found.bounds[:, :horizon], levels))

    def _state(self) -> State:
        points, start = self._fitted
        values = {"points": points, "start": start, "usual": self._usual, "variance": self._variance}
        state = State(values | {"whole": self._whole})
        for name, member in self._members.items():
            state.nested(f"member.{name}", member.state())
        for prefix, group in (("combined", self._learnt), ("now", self._now)):
            state.arrays.update({f"{prefix}.{name}": array for name, array in group._asdict().items()})
        return state

    def _restore(self, state: State) -> None:
        start = state.number("start", -LATEST_SECONDS, LATEST_SECONDS)
        self._fitted = (state.integer("points", 1, MOST_POINTS), start)
        self._usual = state.number("usual", 0, LARGEST_COUNT)
        self._variance = state.number("variance", 0, LARGEST_COUNT**2)
        self._whole = state.values["whole"] is True
        self._members = {
            name: type(member).from_state(state.part(f"member.{name}"), name) for name, member in self._members.items()
        }
        blank, steps = self._blank(), np.zeros((1, self.horizon))
        learnt = state.arrays_like("combined", blank)
        # Constants are not taken from a file.
        self._learnt = learnt._replace(**{name: getattr(blank, name) for name in FIXED})
        largest = np.maximum(np.abs(learnt.gram).max(axis=(1, 2), keepdims=True), 1.0)
        np.linalg.cholesky(learnt.gram + LEAST_RIDGE * largest * np.eye(FEATURES))  # an error if it cannot be solved
        self._now = state.arrays_like("now", Combined(steps, steps, np.zeros((1, self.horizon, len(QUANTILES)))))
