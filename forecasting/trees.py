"""Gradient-boosted regression trees on lags, recent means and the calendar."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rlpto.forecasting.base import Forecaster, targets
from rlpto.forecasting.features import CALENDAR, MOST_LEARNT, RECENT, TARGETS, VALIDATION, Features, describe
from rlpto.forecasting.series import ForecastError, TimeSeries, checked_integer
from rlpto.forecasting.storage import State
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.compiled import njit

COLUMNS = 1 + RECENT + TARGETS + CALENDAR
"""Number of features: the level, and features of the origin, the target and the target's time."""

DECIMALS = 6
"""Features are rounded to this many decimals. Computed for one origin or for a whole series, they differ in their last
bits, and a tree could split between such numbers."""

LEAST_POINTS = 200
"""A series with fewer points grows no trees."""

LEAST_IN_LEAF = (20, 100)
"""Least examples in a leaf of the trees for one step ahead, and of all other trees, which get several examples per
origin."""

MOST_TREES, LEAVES, LEARNING_RATE = 400, 15, 0.03
"""Most trees of a group of steps, leaves of a tree, and share of a tree's correction that is applied."""

STOP_TREES = 20
"""Growing stops after this many trees without a smaller error on the held-out part."""

Examples: TypeAlias = tuple[FloatArray, FloatArray]
"""Inputs [n, columns] and targets [n]."""


class Forest(NamedTuple):
    """A sum of trees for some steps ahead: base [1], and the nodes of all trees one after the other.

    roots [K]: first node of each tree. feature [N], threshold [N]: go `left` [N] if the feature is at most the
    threshold, else `right` [N]. A leaf is its own left node, and adds value [N].
    """

    base: FloatArray
    roots: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    threshold: FloatArray
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    value: FloatArray

    @classmethod
    def bare(cls) -> Forest:
        """Return a forest without trees, which always predicts 0."""
        none = np.empty(0, dtype=np.int32)
        return cls(np.zeros(1), none, none, np.empty(0), none, none, np.empty(0))


class TreesForecaster(Forecaster):
    """Least absolute deviations by boosted trees (Friedman 2001) on histograms (Ke et al. 2017), from scikit-learn.

    The target is the log1p count relative to a recent level; the features are lags, recent means, the calendar of the
    target's time, the recent level, and the number of steps ahead. The first step ahead has its own trees, later steps
    share theirs. Trees are grown on the first 85 % of a series, on at most `rows` examples (an origin and a step),
    until the error on the last 15 % has not fallen for STOP_TREES trees; the trees up to the smallest error are kept.
    The same seed gives the same forecasts.

    seed: seed of the choice of examples. horizon: steps ahead learnt; later steps are forecast like the last step, at
    their own time. rows: most examples for training; a quarter as many decide when to stop.

    For a constant series, or a series shorter than LEAST_POINTS, no trees are grown: the recent level is the forecast.
    """

    def __init__(self, seed: int = 0, horizon: int = 12, rows: int = 60_000) -> None:
        super().__init__()
        self.seed = checked_integer("seed", seed, 0, 2**32 - 1)
        self.horizon = checked_integer("horizon", horizon, 1, MOST_LEARNT)
        self.rows = checked_integer("rows", rows, 4, 10_000_000)
        self._forests: list[Forest] = []

    def _fit(self, series: TimeSeries) -> None:
        self._forests = [Forest.bare() for _ in _groups(self.horizon)]
        if len(series) < LEAST_POINTS or not np.ptp(series.values):
            return
        origins = np.arange(1, len(series))
        seen = describe(series, origins, self.horizon, self.horizon)
        truth = np.log1p(targets(series.values, origins, self.horizon)) - seen.level[:, None]
        columns = _columns(seen)
        held_out = len(series) - round(VALIDATION * len(series))
        ends = origins[:, None] + np.arange(self.horizon)
        # At the first origins, lags reach back before the series and are meaningless.
        learnt = (ends < held_out) & (origins >= 2 * seen.recent.shape[1])[:, None]
        stopping = (origins >= held_out)[:, None] & (ends < len(series))
        rng = np.random.default_rng(self.seed)
        self._forests = [
            self._grown(
                _drawn(columns[:, steps], truth[:, steps], learnt[:, steps], self.rows, rng),
                _drawn(columns[:, steps], truth[:, steps], stopping[:, steps], self.rows // 4, rng),
                least,
            )
            for steps, least in zip(_groups(self.horizon), LEAST_IN_LEAF, strict=False)
        ]

    def _grown(self, examples: Examples, held_out: Examples, least: int) -> Forest:
        """Grow trees up to the smallest error on held-out examples. least: examples in a leaf."""
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        model = HistGradientBoostingRegressor(
            loss="absolute_error",
            learning_rate=LEARNING_RATE,
            max_iter=MOST_TREES,
            max_leaf_nodes=LEAVES,
            min_samples_leaf=least,
            early_stopping=True,
            n_iter_no_change=STOP_TREES,
            tol=0.0,
            scoring="loss",
            random_state=self.seed,
        )
        # The work is too small to gain from several threads.
        with threadpool_limits(limits=1, user_api="openmp"):
            model.fit(*examples, X_val=held_out[0], y_val=held_out[1])
        return forest_of(model, int(np.argmax(model.validation_score_)))

    def _points(self, series: TimeSeries, origins: IntArray, horizon: int) -> FloatArray:
        seen = describe(series, origins, horizon, self.horizon)
        columns = _columns(seen)
        found = np.empty(columns.shape[:2])
        for place, steps in enumerate(_groups(columns.shape[1])):
            asked, forest = columns[:, steps], self._forests[min(place, len(self._forests) - 1)]
            found[:, steps] = add_up(forest, asked.reshape(-1, asked.shape[2])).reshape(asked.shape[:2])
        return np.expm1(np.maximum(found + seen.level[:, None], 0.0))

    def _state(self) -> State:
        arrays = {
            f"{name}.{place}": array
            for place, forest in enumerate(self._forests)
            for name, array in forest._asdict().items()
        }
        return State(arrays=arrays)

    def _restore(self, state: State) -> None:
        self._forests = [_restored(state, place) for place in range(len(_groups(self.horizon)))]


def forest_of(model: Any, trees: int) -> Forest:
    """Convert the first trees of a fitted HistGradientBoostingRegressor to plain arrays, which can be saved.

    scikit-learn (tested with 1.9.1) documents no way to save boosted trees without pickle, and its own `predict` takes
    a thousand times as long for one origin, most of it in checks.
    """
    base = np.asarray(model._baseline_prediction, dtype=np.float64).reshape(-1)[:1]
    nodes = [grown[0].nodes for grown in model._predictors[:trees]]
    if not nodes:
        return Forest.bare()._replace(base=base)
    sizes = np.array([len(tree) for tree in nodes], dtype=np.int32)
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
    whole, first = np.concatenate(nodes), np.repeat(roots, sizes)
    leaf, itself = whole["is_leaf"] == 1, np.arange(len(whole), dtype=np.int32)
    return Forest(
        base=base,
        roots=roots,
        feature=whole["feature_idx"].astype(np.int32),
        threshold=whole["num_threshold"].astype(np.float64),
        left=np.where(leaf, itself, first + whole["left"].astype(np.int32)).astype(np.int32),
        right=np.where(leaf, itself, first + whole["right"].astype(np.int32)).astype(np.int32),
        value=whole["value"].astype(np.float64),
    )


@njit()
def add_up(forest: Forest, columns: FloatArray) -> FloatArray:
    """Return predictions [N] of the trees for columns [N, features]."""
    said = np.full(len(columns), forest.base[0])
    for root in forest.roots:
        for row in range(len(columns)):
            node = root
            while forest.left[node] != node:
                if columns[row, forest.feature[node]] <= forest.threshold[node]:
                    node = forest.left[node]
                else:
                    node = forest.right[node]
            said[row] += forest.value[node]
    return said


def _restored(state: State, place: int) -> Forest:
    """Read a forest of a state and check that every walk through its trees ends. Raises ForecastError."""
    count = len(state.arrays[f"feature.{place}"])
    sizes = {"base": 1, "roots": None} | dict.fromkeys(("feature", "threshold", "left", "right", "value"), count)
    found = Forest(
        **{
            name: state.array(f"{name}.{place}", (sizes[name],), dtype=blank.dtype)
            for name, blank in Forest.bare()._asdict().items()
        }
    )
    itself = np.arange(count)
    leaf = found.left == itself
    inside = [(array >= 0) & (array < count) for array in (found.left, found.right)]
    further = leaf | ((found.left > itself) & (found.right > itself))
    fine = inside[0] & inside[1] & further & (found.feature >= 0) & (found.feature < COLUMNS)
    if not fine.all() or not ((found.roots >= 0) & (found.roots < count)).all():
        raise ForecastError("trees: expected nodes that lead on to nodes behind them, and features there are")
    return found


def _groups(horizon: int) -> list[slice]:
    """Return the groups of steps ahead that share trees. Steps beyond the learnt ones belong to the last group."""
    return [slice(0, 1), slice(1, horizon)][: min(horizon, 2)]


def _columns(seen: Features) -> FloatArray:
    """Return the inputs [N, H, columns] of the trees."""
    steps = seen.targets.shape[1]
    shared = np.concatenate([seen.level[:, None], seen.recent], axis=1)
    repeated = np.broadcast_to(shared[:, None], (len(shared), steps, shared.shape[1]))
    return np.round(np.concatenate([seen.targets, seen.ahead, repeated], axis=2), DECIMALS)


def _drawn(columns: FloatArray, truth: FloatArray, chosen: BoolArray, most: int, rng: np.random.Generator) -> Examples:
    """Draw at most `most` examples, in their order, from the chosen origins and steps [N, H]."""
    places = np.flatnonzero(chosen)
    if len(places) > most:
        places = np.sort(rng.choice(places, most, replace=False))
    return columns.reshape(-1, columns.shape[2])[places], truth.ravel()[places]
