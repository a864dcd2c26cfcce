"""Predictions and forecasts of a service, in virtual time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlpto.core.cluster import Forecast
from rlpto.store.status import PredictionRow, predictions, volume
from tests.service.scheduler.virtual import Act, VirtualService, config

HOUR, STEP = 3600.0, 600.0


def arriving(began: float, hours: float, rate: float, seed: int) -> list[Act]:
    """Jobs of two GPUs that train for an hour, at random times, so many an hour."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0.0, hours * HOUR, rng.poisson(rate * hours)))
    return [(began + at, lambda service: service.submit(epochs=1.0, gpus=2, max_gpus=2)) for at in times.tolist()]


def until_told(service: VirtualService, *jobs: str) -> dict[str, PredictionRow]:
    """Serve until of all jobs something was predicted after now."""
    now = service.now()

    def told() -> bool:
        rows = predictions(service.store)
        return all(job in rows and rows[job].as_of > now for job in jobs)

    service.run(told)
    return predictions(service.store)


def test_without_a_past_starts_and_finishes_are_told_without_an_interval(tmp_path: Path) -> None:
    service = VirtualService(tmp_path, rate=0.5 / HOUR, look_ahead=True, poll=30.0)
    jobs = [service.submit(epochs=1.0, gpus=4, max_gpus=4) for _ in range(3)]
    service.run(lambda: service.row(jobs[0]).progress > 0.1)
    rows = until_told(service, *jobs)
    assert {(row.policy, row.finish_low, row.finish_high) for row in rows.values()} == {("fifo", None, None)}


def forecast_now(service: VirtualService) -> Forecast | None:
    """The present forecast."""
    decisions = service.loop.decisions
    assert decisions.volume is not None
    return decisions.volume(decisions.loop.state().time)


@pytest.mark.slow
def test_forecasts_are_told_step_by_step_bound_what_is_predicted_and_outlive_a_restart(tmp_path: Path) -> None:
    """Two nodes of two GPUs, on which an epoch takes half an hour of one."""
    setup, hours = config(forecast={"mode": "on"}), 6.0
    service = VirtualService(tmp_path, setup, rate=0.5 / HOUR, look_ahead=True, poll=30.0)
    service.backend.acts = arriving(service.began, hours, 2.0, seed=1)
    service.run(lambda: service.now() >= service.began + hours * HOUR)
    before, forecast = volume(service.store, service.began), forecast_now(service)
    service.downtime = 1.0
    service.restart()
    assert forecast_now(service).mean == pytest.approx(forecast.mean)  # type: ignore[union-attr]
    job = service.submit(epochs=1.0, gpus=2, max_gpus=2)
    row = until_told(service, job)[job]
    assert row.finish is not None
    assert row.finish_low <= row.finish_high  # type: ignore[operator]
    steps = volume(service.store, service.began)
    assert steps[: len(before) - 6] == before[:-6]
    over = [step for step in steps if step.seen is not None]
    assert np.allclose(np.diff([step.at for step in steps]), STEP), "every step once"
    assert len(over) == int((service.now() - service.began) / STEP)
    assert sum(step.seen or 0.0 for step in over) > 0
    ahead = [step for step in steps if step.seen is None]
    assert len(ahead) == 6
    assert all(step.low <= step.forecast <= step.high for step in ahead)  # type: ignore[operator]
