"""Series and forecasters for tests: small, and quick to fit."""

from collections.abc import Callable

import numpy as np

from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.gru import GruForecaster
from rlpto.forecasting.hybrid import HybridForecaster
from rlpto.forecasting.registry import METHODS, make_forecaster
from rlpto.forecasting.series import TimeSeries
from rlpto.forecasting.trees import TreesForecaster
from rlpto.io.arrays import IntArray

WEDNESDAY = 18353 * 86400.0 + 7 * 3600.0
"""2020-04-01 07:00."""


def days(count: int, seed: int = 0, level: float = 20.0) -> TimeSeries:
    """Hourly counts with a daily pattern, more on some days of the week, from a Wednesday 7:00 on."""
    rng, hour = np.random.default_rng(seed), np.arange(24 * count)
    rate = level * np.exp(0.8 * np.sin(2 * np.pi * hour / 24) + 0.3 * np.sin(2 * np.pi * hour / 168))
    return TimeSeries(rng.poisson(rate).astype(float), 3600.0, WEDNESDAY)


def changed(series: TimeSeries, first: int, counts: float) -> TimeSeries:
    """The same with other counts from a point on."""
    return TimeSeries(np.where(np.arange(len(series)) >= first, counts, series.values), series.step, series.start)


def error(forecaster: Forecaster, series: TimeSeries, origins: IntArray, horizon: int = 1) -> float:
    """Mean absolute error at the last of the steps ahead."""
    said = forecaster.batch(series, origins, horizon).point[:, -1]
    return float(np.abs(said - series.values[origins + horizon - 1]).mean())


MAKERS: dict[str, Callable[[], Forecaster]] = {
    **{name: lambda name=name: make_forecaster(name) for name in METHODS},
    "trees": lambda: TreesForecaster(horizon=6, rows=2000),
    "gru": lambda: GruForecaster(horizon=6, hidden=8, updates=10),
    "hybrid": lambda: HybridForecaster(horizon=6, hidden=8, updates=10),
}
"""One of every kind."""

LEARNT = ("gru", "hybrid")
"""Networks compute in float32."""
