"""Forecasters by name; a class is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.series import ForecastError
from rlpto.forecasting.storage import read_state

KINDS = {
    "naive": "rlpto.forecasting.naive:Naive",
    "moving_average": "rlpto.forecasting.naive:MovingAverage",
    "smoothing": "rlpto.forecasting.naive:ExponentialSmoothing",
    "seasonal_naive": "rlpto.forecasting.naive:SeasonalNaive",
    "arima_raw": "rlpto.forecasting.arima:RawArima",
    "arima_log": "rlpto.forecasting.arima:LogArima",
    "arima_fourier": "rlpto.forecasting.arima:FourierArima",
    "trees": "rlpto.forecasting.trees:TreesForecaster",
    "gru": "rlpto.forecasting.gru:GruForecaster",
    "hybrid": "rlpto.forecasting.hybrid:HybridForecaster",
}
"""Module and class of every kind of forecaster."""

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "naive": ("naive", {}),
    "mean_24h": ("moving_average", {"hours": 24.0}),
    "smoothing": ("smoothing", {}),
    "season_24h": ("seasonal_naive", {"hours": 24.0}),
    "season_168h": ("seasonal_naive", {"hours": 168.0}),
    **{kind: (kind, {}) for kind in ("arima_raw", "arima_log", "arima_fourier", "trees", "gru", "hybrid")},
}
"""Kind and settings of the forecasters to compare, by their name in tables, simple ones first."""


def forecaster_class(kind: str, source: str = "") -> type[Forecaster]:
    """The class of a kind. Raises ForecastError, prefixed with `source`, if there is none."""
    if kind not in KINDS:
        raise ForecastError(f"{source}forecaster {kind!r}: expected one of {', '.join(KINDS)}")
    module, name = KINDS[kind].split(":")
    found = getattr(import_module(module), name)
    if not (isinstance(found, type) and issubclass(found, Forecaster)):
        raise TypeError(f"{KINDS[kind]} is no forecaster")
    return found


def load(path: str | Path) -> Forecaster:
    """Read a forecaster of any kind. Raises ForecastError if the file is broken or foreign."""
    kind, state = read_state(Path(path))
    return forecaster_class(kind, f"{path}: ").from_state(state, str(path))


def make_forecaster(kind: str, **settings: Any) -> Forecaster:
    """A forecaster by name, such as make_forecaster("seasonal_naive", hours=24)."""
    return forecaster_class(kind)(**settings)


def make_method(name: str, seed: int = 0) -> Forecaster:
    """A forecaster by its name in tables; `seed` goes to those that draw. Raises ForecastError if there is none."""
    if name not in METHODS:
        raise ForecastError(f"method {name!r}: expected one of {', '.join(METHODS)}")
    kind, settings = METHODS[name]
    found = forecaster_class(kind)
    drawn = {"seed": seed} if "seed" in signature(found).parameters else {}
    return found(**settings, **drawn)
