"""Forecasts of arrivals and intervals of predictions, by the scheduler process on a real local Ray cluster."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest

from rlpto.service.books.database import Books
from rlpto.service.books.status import heartbeat, predictions, volume
from tests.service.scheduler import test_real
from tests.service.scheduler.test_real import Service

pytestmark = pytest.mark.cluster
STEP_S = 2.0


@pytest.mark.xdist_group("service-forecast")
def test_arrivals_are_forecast_and_bound_what_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    forecast = f"forecast: {{mode: on, every: {STEP_S:g}s, horizon: 5}}\n"
    monkeypatch.setattr(test_real, "EXPERIMENT", test_real.EXPERIMENT + forecast)
    service = Service(tmp_path)
    try:
        service.until(lambda: heartbeat(service.books) is not None)
        jobs = [service.submit(60.0, 2) for _ in range(4)]
        began = time.time()
        while time.time() < began + 14 * STEP_S:  # ten steps that are over are needed
            jobs.append(service.submit(1.0))
            time.sleep(STEP_S)
        service.until(lambda: bounded(service.books, jobs))
        rows = volume(service.books, 0.0)
        steps = np.diff([row.at for row in rows])
        assert np.allclose(steps, STEP_S), "every step once, and none left out"
        assert sum(row.seen is not None for row in rows) >= 10
        assert [row.seen for row in rows[-5:]] == [None] * 5
        assert all(row.low <= row.forecast <= row.high for row in rows[-5:])  # type: ignore[operator]
    finally:
        service.end(signal.SIGINT)
        service.books.close()


def bounded(books: Books, jobs: list[str]) -> bool:
    """Whether an interval is told of some job that waits."""
    told = [row for job, row in predictions(books).items() if job in jobs]
    return any(row.finish_low is not None and row.finish_low <= (row.finish_high or 0.0) for row in told)
