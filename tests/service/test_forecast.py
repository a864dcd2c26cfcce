"""Forecasts of arrivals and intervals of predictions, by a whole service on a real local Ray cluster."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from rlpto.store.status import volume
from tests.service import served as module
from tests.service.served import Served, served

pytestmark = pytest.mark.cluster
STEP_S = 2.0


def test_arrivals_are_forecast_and_bound_what_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forecast = {"mode": "on", "every": f"{STEP_S:g}s", "horizon": 5}
    monkeypatch.setattr(module, "EXPERIMENT", module.EXPERIMENT | {"forecast": forecast})
    with served(tmp_path, nodes=1) as service:
        jobs = [service.submit(80.0, 2) for _ in range(3)]
        until = time.time() + 14 * STEP_S  # ten steps that are over are needed
        while time.time() < until:
            jobs.append(service.submit(1.0))
            time.sleep(STEP_S)
        service.until(lambda: bounded(service, jobs))
        rows = volume(service.store, 0.0)
        assert np.allclose(np.diff([row.at for row in rows]), STEP_S), "every step once, and none left out"
        assert sum(row.seen is not None for row in rows) >= 10
        ahead = [row for row in rows if row.seen is None]
        assert len(ahead) >= 5
        assert all(row.low <= row.forecast <= row.high for row in ahead[-5:])  # type: ignore[operator]


def bounded(service: Served, jobs: list[str]) -> bool:
    """Whether an interval is told of some job that is not over, by REST."""
    told = [service.client.job(job).get("prediction") for job in jobs]
    return any(one and one["finish_low"] is not None and one["finish_low"] <= one["finish_high"] for one in told)
