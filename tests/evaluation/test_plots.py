"""Plots show what the records and profiles say."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from rlpto.core.records import RunRecord
from rlpto.evaluation.metrics import LOWER_BOUND, completion_times
from rlpto.evaluation.plots import (
    Plot,
    all_plots,
    gantt,
    gpus_against_accuracy,
    jct_cdf,
    png,
    records_by_policy,
    reward_bars,
    throughput_panels,
    utilisation_over_time,
    write_plots,
)
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.tables import Results
from rlpto.performance.profiles import large_profiles

from .helpers import empty_record, tiny_record


@pytest.fixture(scope="module")
def records(finished: list[FinishedCell]) -> dict[str, list[RunRecord]]:
    return records_by_policy(finished)


def test_cdf_reaches_the_share_that_finished() -> None:
    record = tiny_record(finish=(100.0, 200.0, np.nan))
    lines = {str(line.get_label()): line for line in jct_cdf({"p": [record]}).axes[0].get_lines()}
    x, y = np.asarray(lines["p"].get_xdata()), np.asarray(lines["p"].get_ydata())
    assert x.tolist() == np.sort(completion_times(record.jobs))[:2].tolist()
    assert y == pytest.approx([1 / 3, 2 / 3])
    assert np.asarray(lines[LOWER_BOUND].get_ydata())[-1] == 1.0


def test_reward_bars_add_up_to_the_total(toy_results: Results) -> None:
    axes = reward_bars(toy_results.summaries).axes[0]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == [summary.policy for summary in toy_results.summaries]
    for row, summary in enumerate(toy_results.summaries):
        widths = [bar.get_width() for bar in axes.patches if round(bar.get_y() + bar.get_height() / 2) == row]
        assert sum(widths) == pytest.approx(summary.mean["reward"].estimate)


@pytest.mark.parametrize(("finish", "span", "unit"), [(350.0, 600.0, 60.0), (np.nan, 7200.0, 3600.0)])
def test_gantt_has_a_bar_for_every_stretch_with_gpus(finish: float, span: float, unit: float) -> None:
    axes = gantt(tiny_record(finish=(100.0, 200.0, finish)), span).axes[0]
    (bars,) = (found for found in axes.collections if isinstance(found, PolyCollection))
    boxes = [path.get_extents().bounds for path in bars.get_paths()]
    seconds = [(round(y + height / 2), x * unit, width * unit) for x, y, width, height in boxes]
    assert seconds == [pytest.approx(bar) for bar in [(0, 0, 100), (1, 0, 200), (2, 200, 150)]]
    colours = [tuple(colour) for colour in bars.get_facecolor()]
    assert colours[0] == colours[1] != colours[2], "2, 2 and 4 GPUs"
    assert axes.get_xlim() == (0, span / unit)
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "the first job is on top"


def test_utilisation_line_averages_to_the_metric(toy_results: Results, records: dict[str, list[RunRecord]]) -> None:
    figure = utilisation_over_time({policy: runs[0] for policy, runs in records.items()})
    cells = toy_results.cells.set_index(["policy", "window", "seed"])["utilisation"]
    for line in figure.axes[0].get_lines():
        values = np.asarray(line.get_ydata(), dtype=float)[:-1]
        assert values.mean() == pytest.approx(cells[str(line.get_label()), "w0", 0])


def test_plots_survive_runs_in_which_nothing_happens() -> None:
    runs = {"a": [empty_record()], "b": [empty_record()]}
    still = utilisation_over_time({"a": empty_record()})
    figures = (jct_cdf(runs), gpus_against_accuracy(runs), gantt(empty_record()), still)
    for figure in figures:
        assert png(figure).startswith(b"\x89PNG")


def test_plots_are_written_and_reproducible(
    toy_plots: list[Plot], toy_results: Results, finished: list[FinishedCell], tmp_path: Path
) -> None:
    write_plots(toy_plots, tmp_path / "a")
    write_plots(all_plots(toy_results, finished), tmp_path / "b")
    first, again = ({path.stem: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "ab")
    assert first.keys() == {"reward", "jct_cdf", "utilisation", "gantt", "gpus_by_accuracy"}
    assert again == first


def test_a_panel_shows_a_models_throughput_per_gpu_by_kind() -> None:
    profiles = large_profiles()
    figure = throughput_panels({name: profiles[name] for name in ("mpt-30b", "rubick-t5")})
    mpt, rubick = figure.axes
    assert (mpt.get_title(), rubick.get_title()) == ("mpt-30b", "rubick-t5")
    for line, law in zip(mpt.lines, profiles["mpt-30b"].tables().values(), strict=True):
        assert tuple(line.get_xdata()) == law.sizes
        step = float(law.step_time(1, law.sizes[0], 1))
        assert line.get_ydata()[0] == pytest.approx(profiles["mpt-30b"].batch.base / step / law.sizes[0])
    assert [text.get_text() for text in figure.legends[0].texts] == ["a100", "h100", "a800"]
