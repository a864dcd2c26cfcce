"""Settings of forecasts. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from rlpto.forecasting.series import ForecastError, seconds
from rlpto.io.paths import ConfigPath
from rlpto.io.settings import Settings

SHORTEST_STEP_S, LONGEST_STEP_S = 1.0, 366 * 86_400.0
"""Bounds of the step of a forecast."""


def _yaml_word(value: object) -> object:
    """YAML reads on and off as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class ForecastSettings(Settings):
    """Knowledge of the jobs that will arrive."""

    mode: Annotated[Literal["off", "on"], BeforeValidator(_yaml_word)] = "off"
    """off: no forecast; on: a forecast from the arrivals so far."""
    model: ConfigPath | None = None
    """on: file that `rlpto forecast fit` has written, which implies mode on. Default: exponential smoothing, which
    needs no fit."""
    demand: ConfigPath | None = None
    """Only with rented nodes: file that `rlpto forecast fit --demand` has written. Default: forecasts of demand by the
    minute are fitted on the part of the trace before the validation windows."""
    every: str = "10min"
    """Length of a step, such as 10min or 1h; it must equal the model's, if there is one."""
    horizon: int = Field(6, ge=1, le=1000)
    """Number of steps ahead."""

    @model_validator(mode="before")
    @classmethod
    def _model_means_on(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("model") is not None and "mode" not in given:
            return {**given, "mode": "on"}
        return given

    @field_validator("every")
    @classmethod
    def _is_a_time(cls, every: str) -> str:
        try:
            step = seconds(every)
        except ForecastError:
            raise ValueError(f"{every!r}: expected a time such as 10min or 1h") from None
        if not SHORTEST_STEP_S <= step <= LONGEST_STEP_S:
            raise ValueError(f"{every!r}: expected {SHORTEST_STEP_S:g} s to {LONGEST_STEP_S / 86400:g} days")
        return every

    @property
    def step(self) -> float:
        """Length of a step [s]."""
        return seconds(self.every)
