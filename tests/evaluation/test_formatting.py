"""How figures are shown."""

from __future__ import annotations

import pytest

from rlpto.evaluation.formatting import NOTHING, heading, scale_for
from rlpto.evaluation.metrics import METRIC

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "values", "value", "text"),
    [
        ("jct_mean", [30.0, 500.0], 30.0, "30.0 s"),
        ("jct_mean", [30.0, 3600.0], 1800.0, "30.0 min"),
        ("jct_mean", [7200.0, 36_000.0], 7200.0, "2.0 h"),
        ("latency_p99", [0.0021], 0.0021, "2.10 ms"),
        ("utilisation", [0.5, 0.91], 0.5, "50.0 %"),
        ("reward", [-12345.6, NAN], -12345.6, "-12,346"),
        ("reward", [5.0], -0.001, "0.00"),
        ("unfinished", [3.0], 3.0, "3 jobs"),
        ("jct_mean", [NAN], NAN, f"{NOTHING} ms"),
    ],
)
def test_figures_have_the_unit_of_their_column(name: str, values: list[float], value: float, text: str) -> None:
    scale = scale_for(METRIC[name], values)
    assert f"{scale.number(value)} {scale.unit}".rstrip() == text


def test_differences_carry_their_sign() -> None:
    scale = scale_for(METRIC["jct_mean"], [100.0])
    assert [scale.signed(value) for value in (12.0, -12.0, 0.0, NAN)] == ["+12.0", "-12.0", "0.0", NOTHING]


def test_headings_name_the_unit_shown() -> None:
    assert heading(METRIC["jct_mean"], scale_for(METRIC["jct_mean"], [1e5])) == "JCT mean [h]"
    assert heading(METRIC["reward"], scale_for(METRIC["reward"], [1.0])) == "reward"
    assert heading(METRIC["gpu_hours"], scale_for(METRIC["gpu_hours"], [1.0])) == "GPU-hours"
