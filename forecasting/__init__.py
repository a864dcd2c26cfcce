"""Forecasts of counts per interval: ARIMA, GRU, and a combination that is never far from its best part.

Knows nothing of jobs and clusters; of rlpto it imports only arrays, errors, files and reading.
`import rlpto.forecasting` is quick: what is named here is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlpto.forecasting.errors import ForecastError

if TYPE_CHECKING:
    from rlpto.forecasting.base import Forecaster, SeriesForecast
    from rlpto.forecasting.hybrid import HybridForecaster
    from rlpto.forecasting.registry import load, make_forecaster
    from rlpto.forecasting.series import TimeSeries, as_series

_PLACES = {
    "SeriesForecast": "base",
    "Forecaster": "base",
    "HybridForecaster": "hybrid",
    "load": "registry",
    "make_forecaster": "registry",
    "TimeSeries": "series",
    "as_series": "series",
}

__all__ = [
    "ForecastError",
    "Forecaster",
    "HybridForecaster",
    "SeriesForecast",
    "TimeSeries",
    "as_series",
    "load",
    "make_forecaster",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'rlpto.forecasting' has no attribute {name!r}")
    return getattr(import_module(f"rlpto.forecasting.{_PLACES[name]}"), name)
