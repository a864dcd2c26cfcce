"""The plot of throughput per GPU by number of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.evaluation.profile_plots import throughput_panels
from rlpto.performance.profiles import load_folder, shipped_folder


def test_a_panel_shows_a_models_throughput_per_gpu_by_kind() -> None:
    profiles = load_folder(shipped_folder(Path("llm")))
    figure = throughput_panels({name: profiles[name] for name in ("mpt-30b", "rubick-t5")})
    mpt, rubick = figure.axes
    assert (mpt.get_title(), rubick.get_title()) == ("mpt-30b", "rubick-t5")
    for line, law in zip(mpt.lines, profiles["mpt-30b"].tables().values(), strict=True):
        assert tuple(line.get_xdata()) == law.sizes
        step = float(law.step_time(1, law.sizes[0], 1))
        assert line.get_ydata()[0] == pytest.approx(profiles["mpt-30b"].batch.base / step / law.sizes[0])
    assert [text.get_text() for text in figure.legends[0].texts] == ["a100", "h100", "a800"]
