"""Forecasts of counts per interval: ARIMA, GRU, and a combination that is never far from its best part.

The package knows nothing of jobs and clusters; of rlpto it imports only arrays, errors, files and reading.
"""

from typing import TYPE_CHECKING, Any

from rlpto.forecasting.base import Forecaster, SeriesForecast
from rlpto.forecasting.registry import load, make_forecaster
from rlpto.forecasting.series import ForecastError, TimeSeries, as_series

if TYPE_CHECKING:
    from rlpto.forecasting.hybrid import HybridForecaster

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
    """Import the combination when it is first used, because it needs torch."""
    if name != "HybridForecaster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rlpto.forecasting.hybrid import HybridForecaster

    return HybridForecaster
