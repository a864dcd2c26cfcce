"""The default forecaster: an online-weighted combination of ARIMAs, networks and simple members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from rlpto.forecasting.base import SPREAD_HORIZON, SPREAD_LEVELS, Batch, Forecaster
from rlpto.forecasting.decision import Criteria, DecisionState, decide, new_decision
from rlpto.forecasting.errors import ForecastError
from rlpto.forecasting.features import Features, describe, layout_of
from rlpto.forecasting.intervals import at_levels, pooled_mean, pooled_spread, with_median
from rlpto.forecasting.linear import VALIDATION, LinearForecaster
from rlpto.forecasting.network import MEDIAN, QUANTILES, NetworkSettings
from rlpto.forecasting.pool import FEATURES, PoolState, Rules, advance, new_state
from rlpto.forecasting.recurrent import Recurrent, one_step_errors
from rlpto.forecasting.registry import forecaster_class, make_forecaster
from rlpto.forecasting.series import FloatArray, IntArray, TimeSeries
from rlpto.forecasting.storage import State
from rlpto.forecasting.trees import TreesForecaster


@dataclass(frozen=True)
class Part:
    """A member of the combination. kind, settings: the forecaster. strong: whether it starts with a full weight, and
    also stands in the pool corrected by its recent errors; the others start with SIMPLE_WEIGHT. shared: settings that
    it takes over from the combination."""

    kind: str
    settings: Mapping[str, Any]
    strong: bool
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Body:
    """A network of the combination. around: names of the parts whose forecasts it works on; innovations: whether it
    reads the one-step errors of the first of them."""

    around: tuple[str, ...]
    innovations: bool


PARTS: Mapping[str, Part] = {
    "naive": Part("naive", {}, False),
    "mean_3h": Part("moving_average", {"hours": 3.0}, False),
    "mean_24h": Part("moving_average", {"hours": 24.0}, False),
    "season_24h": Part("seasonal_naive", {"hours": 24.0}, False),
    "season_168h": Part("seasonal_naive", {"hours": 168.0}, False),
    "smoothing": Part("smoothing", {}, False),
    "arima_raw": Part("arima_raw", {}, False),
    "arima_log": Part("arima_log", {}, True),
    "arima_fourier": Part("arima_fourier", {}, True),
    "linear": Part("linear", {}, True),
    "trees": Part("trees", {}, True, ("seed", "horizon")),
}

BODIES: Mapping[str, Body] = {
    "gru": Body((), False),
    "residual_hybrid": Body(("arima_fourier",), True),
    "gated_gru": Body(
        ("naive", "mean_3h", "mean_24h", "season_24h", "season_168h", "arima_log", "arima_fourier", "linear"), False
    ),
}

NAMES = (*PARTS, *BODIES)
"""[K] parts in the order of the pool."""

STRONG = [place for place, name in enumerate(NAMES) if name in BODIES or PARTS[name].strong]

SIMPLE_WEIGHT = 0.15
CORRECTED_WEIGHT = 0.5
"""Starting weights relative to that of a strong part."""

LABELS = (*NAMES, *(f"{NAMES[place]}, corrected" for place in STRONG), "regression on all")
"""[E] experts in the order of the weights."""

RULES = Rules()
CRITERIA = Criteria()


class Said(NamedTuple):
    """At N origins: point and mean [N, H] in counts, bounds [N, H, Q] in log1p, the pool's weights [N, H, E]."""

    point: FloatArray
    mean: FloatArray
    bounds: FloatArray
    weights: FloatArray


class Learnt(NamedTuple):
    """What goes on learning after the fit: the pool, and the decision on a count."""

    pool: PoolState
    decision: DecisionState

    def say(
        self, values: FloatArray, log_parts: FloatArray, quantiles: FloatArray, features: FloatArray, on: bool
    ) -> Said:
        """Go through N origins; on: False remembers nothing.

        values: [N] count that each is the first to know. log_parts: [N, K, H]; quantiles: [M, N, H, Q] of the
        networks, both in log1p. features: [N, H, FEATURES] for the mean.
        """
        spread = pooled_spread(quantiles)
        found = advance(self.pool, RULES, np.log1p(values), log_parts, spread, features, on)
        point = decide(self.decision, CRITERIA, values, found.point, found.mixes, log_parts, on)
        return Said(point, found.mean, with_median(found.bounds, np.log1p(point)), found.weights)


class Reading(NamedTuple):
    """Where a network is in a series. read: [1, ...] what its decoder is given now; state: what it goes on from."""

    read: torch.Tensor
    state: torch.Tensor


class HybridForecaster(Forecaster):
    """ARIMA, GRU, trees and simple members under weights that follow how each of them is doing.

    Experts are the parts, the strong parts corrected by their recent errors, and a regression on all parts. They are
    combined in log1p, per step ahead: exponential weights of discounted absolute errors, a share of which always
    stays with the prior (Herbster, Warmuth 1998), so that every part is always included. The point forecast is the
    count that has had the least absolute error: a mix of the parts moved and rounded, or a part. Both learn on the
    last 15 % of the fitted series and go on as counts come in; a forecast enters them once its target is observed.
    The intervals are the networks' pooled quantiles under adaptive conformal calibration; `Forecast.mean` is a
    regression for squared error on the pool and some of its parts. See `pool.py` and `decision.py` for the arithmetic.

    A series given to the batched methods must start where the fitted one did for weights to be warm from the fitted
    part on; origins before that, and other series' first ones, are combined under the starting weights.

    Covariates go to the parts that use them: the linear one and the trees.

    seed: of the networks and the trees. horizon: steps ahead that are learnt; later ones are weighted like the last.
    hidden, updates: size and training of the networks.
    """

    kind: ClassVar[str] = "hybrid"
    uses_covariates: ClassVar[bool] = True

    def __init__(self, seed: int = 0, horizon: int = 12, hidden: int = 24, updates: int = 400) -> None:
        super().__init__()
        for name, value in (("horizon", horizon), ("hidden", hidden), ("updates", updates)):
            if value < 1:
                raise ForecastError(f"{name} {value!r}: expected an integer, 1 or more")
        self.seed, self.horizon, self.hidden, self.updates = seed, horizon, hidden, updates
        self._members: dict[str, Forecaster] = {}
        self._bodies: dict[str, Recurrent] = {}
        self._reading: dict[str, Reading] = {}
        self._expected = 0.0
        self._fitted: tuple[int, float] = (0, 0.0)
        self._moments = (0.0, 0.0)
        self._whole = True
        self._learnt: Learnt | None = None
        self._now: Said | None = None

    def settings(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        return {"seed": self.seed, "horizon": self.horizon, "hidden": self.hidden, "updates": self.updates}

    def _fit(self, series: TimeSeries, covariates: FloatArray | None) -> None:
        self._fitted = (len(series), series.start)
        self._moments = (float(series.values.mean()), float(series.values.var()))
        own = self.settings()
        blank = {
            name: make_forecaster(part.kind, **part.settings, **{shared: own[shared] for shared in part.shared})
            for name, part in PARTS.items()
        }
        self._members = {name: member.fit(series, _for(member, covariates)) for name, member in blank.items()}
        self._whole = bool((series.values == np.floor(series.values)).all())
        known = self._members_log(series, np.arange(1, len(series) + 1), self.horizon, covariates)
        network = NetworkSettings(hidden=self.hidden, updates=self.updates)
        self._bodies = {
            name: Recurrent.fit(
                series, _chosen(known[:-1], body.around), self.horizon, body.innovations, network, self.seed + place
            )
            for place, (name, body) in enumerate(BODIES.items())
        }
        self._learnt, self._now, self._reading = self._run(series, known)
        self._expect(known[-1:])

    @property
    def fallback(self) -> str:
        """What parts did otherwise than planned when they were fitted, and why; empty if none did."""
        notes = ((name, getattr(part, "fallback", "")) for name, part in self._members.items())
        return "; ".join(f"{name}: {note}" for name, note in notes if note)

    def parts(self, y: Any, origins: Any, horizon: int, covariates: Any = None) -> dict[str, FloatArray]:
        """[N, H] point forecasts of every part by name, as `forecasts` of the whole; the arguments are the same."""
        series, checked, steps, given = self._batch(y, origins, horizon, covariates)
        every = np.arange(1, int(checked.max(initial=1)) + 1)
        log_parts, _, _ = self._parts(series, self._members_log(series, every, steps, given))
        return {name: np.expm1(log_parts[checked - 1, place]) for place, name in enumerate(NAMES)}

    def weights(self, y: Any, origins: Any, covariates: Any = None) -> FloatArray:
        """[N, horizon, E] weights at N origins of a series, experts in the order of LABELS."""
        series, checked, _, given = self._batch(y, origins, self.horizon, covariates)
        return self._said(series, checked, self.horizon, given).weights

    def _forecasts(
        self,
        series: TimeSeries,
        origins: IntArray,
        horizon: int,
        covariates: FloatArray | None,
    ) -> FloatArray:
        return self._said(series, origins, horizon, covariates).point

    def _mean_forecasts(
        self,
        series: TimeSeries,
        origins: IntArray,
        horizon: int,
        covariates: FloatArray | None,
    ) -> FloatArray:
        return self._said(series, origins, horizon, covariates).mean

    def _quantile_forecasts(
        self,
        series: TimeSeries,
        origins: IntArray,
        horizon: int,
        levels: FloatArray,
        covariates: FloatArray | None,
    ) -> FloatArray:
        return at_levels(self._said(series, origins, horizon, covariates).bounds, levels)

    def _batch_forecasts(
        self,
        series: TimeSeries,
        origins: IntArray,
        horizon: int,
        levels: FloatArray,
        covariates: FloatArray | None,
    ) -> Batch:
        said = self._said(series, origins, horizon, covariates)
        return Batch(said.point, said.mean, at_levels(said.bounds, levels))

    def _measure_spread(self, series: TimeSeries, covariates: FloatArray | None) -> FloatArray:  # noqa: ARG002
        # Intervals of the pool are its own.
        return np.zeros((len(SPREAD_LEVELS), SPREAD_HORIZON))

    def _members_log(
        self, series: TimeSeries, origins: IntArray, horizon: int, covariates: FloatArray | None
    ) -> FloatArray:
        """[N, H, members] forecasts of the members other than networks in log1p."""
        found = [
            np.log1p(member.forecasts(series, origins, horizon, _for(member, covariates)))
            for member in self._members.values()
        ]
        return np.stack(found, axis=2)

    def _parts(self, series: TimeSeries, known: FloatArray) -> tuple[FloatArray, FloatArray, dict[str, Reading]]:
        """At all origins 1 to N: [N, K, H] parts in log1p, [M, N, H, Q] the networks' quantiles in log1p, and
        where the networks are after the last. known: [N, H, members] as `_members_log` gives them."""
        every = np.arange(1, len(known) + 1)
        seen = describe(layout_of(series, self.horizon), series, every, known.shape[1])
        found, reading = [], {}
        for name, body in BODIES.items():
            around = _chosen(known, body.around)
            errors = one_step_errors(series, every, around)
            read, state = self._bodies[name].read(seen, errors, None)
            reading[name] = Reading(read[-1:], state)
            found.append(self._bodies[name].log_quantiles(read, seen, around))
        quantiles = np.stack(found)
        return _in_order(known, quantiles), quantiles, reading

    def _mean_features(self, log_parts: FloatArray, quantiles: FloatArray) -> FloatArray:
        """[N, H, FEATURES] counts that the mean is regressed on; the first column is the pool's to fill in."""
        features = np.zeros((log_parts.shape[0], log_parts.shape[2], FEATURES))
        features[..., 1] = pooled_mean(quantiles)
        features[..., 2] = np.expm1(log_parts[:, NAMES.index("arima_raw")])
        features[..., 3] = np.expm1(log_parts[:, NAMES.index("mean_24h")])
        features[..., 4] = self._moments[0]
        return features

    def _blank(self) -> Learnt:
        weights = [1.0 if place in STRONG else SIMPLE_WEIGHT for place in range(len(NAMES))]
        prior = np.array(weights + [CORRECTED_WEIGHT] * len(STRONG) + [1.0])
        pool = new_state(self.horizon, prior, len(NAMES), STRONG, np.array(QUANTILES), self._moments[1], RULES)
        return Learnt(pool, new_decision(self.horizon, len(NAMES), self._whole, CRITERIA))

    def _warm_from(self, series: TimeSeries) -> int:
        """The first origin from which weights learn: where the part begins that no network was trained on."""
        points, start = self._fitted
        return max(1, points - round(VALIDATION * points)) if series.start == start else 1

    def _run(self, series: TimeSeries, known: FloatArray) -> tuple[Learnt, Said, dict[str, Reading]]:
        """What is learnt after the last of N origins of a series, what is said at each up to it, and where the
        networks are. known: [N, H, members] as `_members_log` gives them, H at least the horizon."""
        log_parts, quantiles, reading = self._parts(series, known)
        features = self._mean_features(log_parts, quantiles)
        values = series.values[: len(known)]
        learnt = self._blank()
        warm = min(self._warm_from(series) - 1, len(known))
        learnt.pool.top[0] = np.log1p(values[: max(warm, 1)].max())
        cold, found = (
            learnt.say(values[some], log_parts[some], quantiles[:, some], features[some], on)
            for some, on in ((slice(warm), False), (slice(warm, None), True))
        )
        return learnt, Said(*(np.concatenate(pair) for pair in zip(cold, found, strict=True))), reading

    def _said(self, series: TimeSeries, origins: IntArray, horizon: int, covariates: FloatArray | None) -> Said:
        """What is said at N origins."""
        every = np.arange(1, int(origins.max(initial=1)) + 1)
        _, said, _ = self._run(series, self._members_log(series, every, max(horizon, self.horizon), covariates))
        return Said(*(part[origins - 1, :horizon] for part in said))

    def _expect(self, known_now: FloatArray) -> None:
        """Note what the ARIMA under the residual network expects next: its error is read with the next value."""
        first = BODIES["residual_hybrid"].around[0]
        self._expected = float(known_now[0, 0, list(PARTS).index(first)])

    def _step(self, history: TimeSeries, horizon: int, fresh: bool) -> tuple[FloatArray, FloatArray]:
        """[1, K, H] parts and [M, 1, H, Q] quantiles in log1p that follow a history.

        fresh: whether the newest value is still to be read by the networks.
        """
        seen = describe(layout_of(history, self.horizon), history, np.array([len(history)]), horizon)
        found = [np.log1p(self._following_of(name, seen, history, horizon)) for name in self._members]
        known = np.stack(found, axis=1)[None]
        quantiles = []
        for name, body in BODIES.items():
            if fresh:
                error = np.log1p(history.values[-1:]) - self._expected if body.innovations else np.zeros(1)
                self._reading[name] = Reading(*self._bodies[name].read(seen, error, self._reading[name].state))
            around = _chosen(known, body.around)
            quantiles.append(self._bodies[name].log_quantiles(self._reading[name].read, seen, around))
        if fresh:
            self._expect(known)
        stacked = np.stack(quantiles)
        return _in_order(known, stacked), stacked

    def _following_of(self, name: str, seen: Features, history: TimeSeries, horizon: int) -> FloatArray:
        """[H] what a member says follows the history; the linear one and the trees share the networks' features."""
        member, now = self._members[name], np.array([len(history)])
        if isinstance(member, LinearForecaster):
            linear: FloatArray = member.from_features(seen, history.start, now, self._observed()[1])[0]
            return linear
        if isinstance(member, TreesForecaster):
            grown: FloatArray = member.from_features(seen, now, self._observed()[1])[0]
            return grown
        return member.predict(horizon).point

    def _update(self, values: FloatArray, covariates: FloatArray | None) -> None:
        assert self._learnt is not None
        whole, _ = self._observed()
        known = len(whole) - len(values)
        for place in range(known, len(whole)):
            row = None if covariates is None else covariates[place - known : place - known + 1]
            for member in self._members.values():
                member.take_in(whole.values[place : place + 1], _for(member, row))
            log_parts, quantiles = self._step(whole.head(place + 1), self.horizon, True)
            newest, features = whole.values[place : place + 1], self._mean_features(log_parts, quantiles)
            self._now = self._learnt.say(newest, log_parts, quantiles, features, True)

    def _predict(self, horizon: int, levels: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        assert self._learnt is not None
        assert self._now is not None
        found = self._now
        if horizon > self.horizon:
            log_parts, quantiles = self._step(self._observed()[0], horizon, False)
            features = self._mean_features(log_parts, quantiles)
            found = self._learnt.say(np.zeros(1), log_parts, quantiles, features, False)
        return found.point[-1, :horizon], found.mean[-1, :horizon], at_levels(found.bounds[-1, :horizon], levels)

    def _state(self) -> State:
        assert self._learnt is not None
        assert self._now is not None
        state = State({"fitted": list(self._fitted), "moments": list(self._moments), "expected": self._expected})
        state.values["whole"] = self._whole
        for name, member in self._members.items():
            state.nested(f"member.{name}", member.state())
        for name, body in self._bodies.items():
            state.nested(f"body.{name}", body.state())
            for field, tensor in self._reading[name]._asdict().items():
                state.arrays[f"{field}.{name}"] = tensor.numpy()
        state.arrays.update({f"pool.{name}": array for name, array in self._learnt.pool._asdict().items()})
        state.arrays.update({f"decision.{name}": array for name, array in self._learnt.decision._asdict().items()})
        state.arrays.update({f"now.{name}": array[-1:] for name, array in self._now._asdict().items()})
        return state

    def _restore(self, state: State) -> None:
        points, start = state.values["fitted"]
        mean, variance = state.values["moments"]
        self._fitted, self._moments = (int(points), float(start)), (float(mean), float(variance))
        self._expected = float(state.values["expected"])
        self._members = {
            name: forecaster_class(part.kind).from_state(state.part(f"member.{name}"), name)
            for name, part in PARTS.items()
        }
        self._bodies = {name: Recurrent.restored(state.part(f"body.{name}")) for name in BODIES}
        self._reading = {
            name: Reading(*(torch.tensor(state.arrays[f"{field}.{name}"]) for field in Reading._fields))
            for name in BODIES
        }
        self._whole = bool(state.values["whole"])
        self._learnt = Learnt(
            PoolState(**{name: state.arrays[f"pool.{name}"] for name in PoolState._fields}),
            DecisionState(**{name: state.arrays[f"decision.{name}"] for name in DecisionState._fields}),
        )
        self._now = Said(**{name: state.arrays[f"now.{name}"] for name in Said._fields})


def _for(member: Forecaster, covariates: FloatArray | None) -> FloatArray | None:
    """The covariates, if the member uses some."""
    return covariates if member.uses_covariates else None


def _chosen(known: FloatArray, around: tuple[str, ...]) -> FloatArray:
    """[N, H, n] the named members of [N, H, members]."""
    return known[:, :, [list(PARTS).index(name) for name in around]]


def _in_order(known: FloatArray, quantiles: FloatArray) -> FloatArray:
    """[N, K, H] members [N, H, members] and the networks' medians, in the order of NAMES."""
    medians = np.moveaxis(quantiles[..., MEDIAN], 0, 2)
    return np.ascontiguousarray(np.moveaxis(np.concatenate([known, medians], axis=2), 2, 1))
