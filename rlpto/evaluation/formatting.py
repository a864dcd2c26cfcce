"""Figures formatted for people: one unit and one number of decimals for a whole column."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rlpto.evaluation.metrics import CellMetric

NOTHING = "–"  # noqa: RUF001
"""Shown in place of an undefined figure."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Format of the values of a metric: `factor` times the value, with `decimals`, in `unit`."""

    unit: str
    factor: float
    decimals: int

    def number(self, value: float) -> str:
        """The figure without its unit."""
        if not math.isfinite(value):
            return NOTHING
        text = f"{value * self.factor:,.{self.decimals}f}"
        # Rounding must not leave a negative zero.
        return text.lstrip("-") if not text.strip("-0.,") else text

    def signed(self, value: float) -> str:
        """The figure with its sign, for differences."""
        text = self.number(value)
        return text if text.startswith("-") or text == NOTHING or not text.strip("0.,") else f"+{text}"


def scale_for(metric: CellMetric, values: Iterable[float]) -> Scale:
    """Unit and decimals for `values` (as stored) of a metric: the largest value gets three or four digits."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    unit, factor = _unit(metric.unit, largest)
    return Scale(unit, factor, _decimals(largest * factor, counted=metric.unit == "jobs"))


def heading(metric: CellMetric, scale: Scale) -> str:
    """Label of a column, with the unit its figures are shown in unless the label says it."""
    in_label = not scale.unit or metric.unit in ("jobs", "GPU-h")
    return metric.label if in_label else f"{metric.label} [{scale.unit}]"


def _unit(unit: str, largest: float) -> tuple[str, float]:
    if unit == "share":
        return "%", 100.0
    if unit != "s":
        return unit, 1.0
    if largest < 1.0:
        return "ms", 1e3
    if largest < 600.0:
        return "s", 1.0
    if largest < 3 * 3600.0:
        return "min", 1 / 60.0
    return "h", 1 / 3600.0


def _decimals(largest: float, counted: bool) -> int:
    if counted or largest >= 1000:
        return 0
    if largest >= 10:
        return 1
    return 2 if largest >= 0.1 or largest == 0 else 3
