"""Forecasters by name; a class is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.series import ForecastError
from rlpto.forecasting.storage import read_state

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "naive": ("naive:Naive", {}),
    "mean_24h": ("naive:MovingAverage", {"hours": 24.0}),
    "smoothing": ("naive:ExponentialSmoothing", {}),
    "season_24h": ("naive:SeasonalNaive", {"hours": 24.0}),
    "season_168h": ("naive:SeasonalNaive", {"hours": 168.0}),
    "arima_raw": ("arima:RawArima", {}),
    "arima_log": ("arima:LogArima", {}),
    "arima_fourier": ("arima:FourierArima", {}),
    "trees": ("trees:TreesForecaster", {}),
    "gru": ("gru:GruForecaster", {}),
    "hybrid": ("hybrid:HybridForecaster", {}),
}
"""Module and class, and settings, of the forecasters by their name in tables, simple ones first."""


def make_forecaster(name: str, seed: int = 0, **settings: Any) -> Forecaster:
    """Make a forecaster by its name in tables, with additional settings; `seed` is passed if the forecaster has a seed.
    Raises ForecastError for an unknown name."""
    if name not in METHODS:
        raise ForecastError(f"method {name!r}: expected one of {', '.join(METHODS)}")
    place, own = METHODS[name]
    found = _imported(place)
    drawn = {"seed": seed} if "seed" in signature(found).parameters else {}
    return found(**own, **drawn, **settings)


def load(path: str | Path) -> Forecaster:
    """Read a forecaster of any class. Raises ForecastError if the file is broken or foreign."""
    name, state = read_state(Path(path))
    places = {place.split(":")[1]: place for place, _ in METHODS.values()}
    if name not in places:
        raise ForecastError(f"{path}: forecaster {name!r}: expected one of {', '.join(places)}")
    return _imported(places[name]).from_state(state, str(path))


def _imported(place: str) -> type[Forecaster]:
    """Return a class of this package. place: MODULE:CLASS, as in METHODS."""
    module, name = place.split(":")
    found: type[Forecaster] = getattr(import_module(f"rlpto.forecasting.{module}"), name)
    return found
