"""Plots show what the records and profiles say."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from rlpto.evaluation.convergence import convergence
from rlpto.evaluation.metrics import LOWER_BOUND, completion_times
from rlpto.evaluation.plots import (
    MOST_ROWS,
    Plot,
    all_plots,
    gantt,
    gpu_map,
    gpus_against_accuracy,
    jct_cdf,
    line_styles,
    png,
    records_by_policy,
    reward_bars,
    side_by_side,
    throughput_panels,
    write_plots,
)
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.tables import Results
from rlpto.performance.profiles import large_profiles

from .helpers import empty_record, tiny_record


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


def test_every_gpu_shows_the_job_that_holds_it_and_waiting_jobs_are_counted() -> None:
    holder, waiting = gpu_map(tiny_record(), np.array([25.0, 75.0, 150.0, 250.0, 400.0]))
    assert holder.T.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, -1, -1], [2, 2, 2, 2], [-1] * 4]
    assert waiting.tolist() == [0, 1, 1, 0, 0]
    half_free = gpu_map(tiny_record(capacity=2), np.array([25.0]))
    assert half_free[0].T.tolist() == [[0, 0]], "no more than there are"
    many = gpu_map(tiny_record(capacity=100_000), np.array([25.0]))[0]
    assert many.shape == (MOST_ROWS, 1), "the picture does not grow with the cluster"
    assert many[[0, -1], 0].tolist() == [0, -1]


def test_two_policies_stand_side_by_side_with_their_mean_times() -> None:
    runs = {"agent": tiny_record((100.0, 200.0, 290.0)), "fifo": tiny_record(changes=empty_record().changes)}
    upper, lower = np.split(np.array(side_by_side(runs).axes), 2)
    assert [axes.get_title(loc="left") for axes in upper] == ["agent", "fifo"]
    assert [axes.get_title(loc="right") for axes in upper] == ["mean JCT 180.0 s", "mean JCT 200.0 s"]
    assert upper[0].get_xlim() == upper[1].get_xlim()
    assert all(axes.get_ylim()[1] >= 3 for axes in lower), "up to three jobs wait under fifo"
    left, right = (axes.get_images()[0].get_array() for axes in upper)
    assert len(np.unique(left[:, :, 0])) > 2
    assert (right == 1.0).all(), "no job holds a GPU"


def test_among_many_policies_only_the_highlighted_ones_have_a_colour() -> None:
    names = ["a", "b", "c", "d", "e", "f"]
    colours = {name: style["color"] for name, style in line_styles(names, ("e", "b")).items()}
    assert len(set(colours.values())) == 3
    assert colours["a"] == colours["f"] not in (colours["e"], colours["b"])
    assert len({style["color"] for style in line_styles(names[:5], ("e", "b")).values()}) == 5
    figure = jct_cdf({name: [tiny_record()] for name in names}, highlighted=("e", "b"))
    assert {text.get_text() for text in figure.legends[0].texts} == {"e", "b", "4 other policies", LOWER_BOUND}


def test_plots_survive_runs_in_which_nothing_happens() -> None:
    runs = {"a": [empty_record()], "b": [empty_record()]}
    figures = (
        jct_cdf(runs),
        gpus_against_accuracy({name: convergence(run, run, {}) for name, run in runs.items()}),
        gantt(empty_record()),
    )
    for figure in (*figures, side_by_side({"a": empty_record()})):
        assert png(figure).startswith(b"\x89PNG")


def test_a_line_shows_the_gpus_of_each_stage_over_those_of_the_second_and_the_caption_who_pays(
    toy_plots: list[Plot], finished: list[FinishedCell]
) -> None:
    (plot,) = (plot for plot in toy_plots if plot.name == "gpus_by_accuracy")
    records = records_by_policy(finished)
    found = convergence(records["share"], records["fifo"], {})
    axes = plot.figure.axes[0]
    (line,) = (line for line in axes.get_lines() if line.get_label() == "share")
    assert np.asarray(line.get_ydata()) == pytest.approx([stage.estimate for stage in found.held])
    labels = ["0-50%", "50-80%", "80-90%", "90-95%", "95-99%", "99-100%"]
    assert [text.get_text() for text in axes.get_xticklabels()] == labels
    assert "of their accuracy hold fewer at 99 %" in plot.caption


@pytest.mark.slow
def test_plots_are_written_and_reproducible(
    toy_plots: list[Plot], toy_results: Results, finished: list[FinishedCell], tmp_path: Path
) -> None:
    write_plots(toy_plots, tmp_path / "a")
    write_plots(all_plots(toy_results, finished, {}), tmp_path / "b")
    first, again = ({path.stem: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "ab")
    assert first.keys() == {"reward", "side_by_side", "jct_cdf", "gpus_by_accuracy"}
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
