"""Forecasts of statsforecast's automatic models, for `benchmarks/forecasting.py` to compare with.

A program of its own, since statsforecast wants an older pandas than this project: it may run in another Python, and
imports nothing of ours. `python _forecasting_rivals.py IN.npz OUT.npz`; IN holds y [T] counts, test (first origin),
day [steps] and horizon; OUT holds [T - test, horizon] forecasts by model. Each is fitted once, on the 28 days before
the test part; then, at every origin, its parameters are applied to the 28 days before that.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from statsforecast.models import AutoARIMA, AutoETS, AutoTheta

DAYS = 28
LONGEST_SEASON = 24
"""Longest season that AutoETS and AutoARIMA take on [steps]; beyond it they are without season."""


def main(source: str, destination: str) -> None:
    with np.load(source) as given:
        y, test, day, horizon = given["y"], int(given["test"]), int(given["day"]), int(given["horizon"])
    season = day if day <= LONGEST_SEASON else 1
    models = {
        "AutoARIMA": AutoARIMA(season_length=season, approximation=True),
        "AutoETS": AutoETS(season_length=season),
        "AutoTheta": AutoTheta(season_length=day),
    }
    np.savez(destination, **{name: rolled(model, y, test, DAYS * day, horizon) for name, model in models.items()})


def rolled(model: Any, y: npt.NDArray[np.float64], test: int, window: int, horizon: int) -> npt.NDArray[np.float64]:
    model.fit(y[max(0, test - window) : test])
    found = [model.forward(y=y[max(0, origin - window) : origin], h=horizon)["mean"] for origin in range(test, len(y))]
    return np.maximum(np.stack(found), 0.0)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
