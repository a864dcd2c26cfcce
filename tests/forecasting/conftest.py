import pytest

from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.series import TimeSeries

from .builders import MAKERS, days


@pytest.fixture(scope="session")
def whole() -> TimeSeries:
    return days(25)


@pytest.fixture(scope="session")
def fitted(whole: TimeSeries) -> dict[str, Forecaster]:
    """Every kind, fitted on all but the last five days; tests leave them as they are."""
    return {name: make().fit(whole.head(480)) for name, make in MAKERS.items()}
