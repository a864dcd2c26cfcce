"""Settings of forecasts. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from rlpto.forecasting.series import ForecastError, seconds
from rlpto.io.paths import ConfigPath
from rlpto.io.settings import Settings

SHORTEST_STEP_S, LONGEST_STEP_S = 1.0, 366 * 86_400.0
"""Of a forecast."""


def _yaml_word(value: object) -> object:
    """YAML reads on and off as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class ReserveSettings(Settings):
    """GPUs held back for the jobs of class high that are expected next, under every policy."""

    share: float = Field(0.0, ge=0, le=1)
    """Hold back at most this share of the cluster's GPUs, and no more than the jobs of class high that are forecast
    for the present step would ask for, from jobs of lower classes: these keep what they hold, and may start with
    their min_gpus, but do not grow; 0: hold back nothing."""


class ForecastSettings(Settings):
    """What is known of the jobs that will arrive."""

    mode: Annotated[Literal["off", "on"], BeforeValidator(_yaml_word)] = "off"
    """off: nothing; on: a forecast from the arrivals so far."""
    model: ConfigPath | None = None
    """on: file that `rlpto forecast fit` has written, which implies mode on; null: exponential smoothing, which needs
    no fit."""
    every: str = "10min"
    """Length of a step, such as 10min or 1h; that of the model, if there is one."""
    horizon: int = Field(6, ge=1, le=1000)
    """Steps ahead."""
    reserve: ReserveSettings = ReserveSettings()
    """GPUs held back for the jobs of class high that are expected next."""

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

    @model_validator(mode="after")
    def _reserve_has_a_forecast(self) -> ForecastSettings:
        if self.mode == "off" and self.reserve.share > 0:
            raise ValueError("reserve.share: nothing is forecast in mode off, expected 0, or mode on")
        return self

    @property
    def step(self) -> float:
        """Length of a step [s]."""
        return seconds(self.every)
