from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("project")


def test_the_report_shows_forecast_against_actual(rlpto, project: Path) -> None:
    forecast = ("--set", "forecast.every=3min", "--set", "forecast.horizon=4")
    for mode in ("on", "perfect"):
        answer = rlpto("evaluate", "exp.yaml", "-q", "--set", f"forecast.mode={mode}", *forecast, "--run-dir", mode)
        assert answer.code == 0, answer.err
        report = (project / mode / "report.html").read_text()
        drawn = {path.name for path in (project / mode / "plots").glob("forecast*.png")}
        assert "Arrivals, forecast and actual" in report
        assert "Error of the forecast by distance" in report
        assert drawn == {"forecast.png", "forecast_error.png"}
        assert ("The forecast is perfect, an oracle." in report) == (mode == "perfect")
