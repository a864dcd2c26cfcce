"""Frames, summaries and how they look on the terminal."""

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from rlpto.core.records import RunRecord
from rlpto.evaluation.metrics import LOWER_BOUND, METRIC, METRICS, NOTHING, measure, scale_for
from rlpto.evaluation.runner import Cell, FinishedCell, evaluate
from rlpto.evaluation.tables import Results, print_results, results, warnings, write_csv

from .conftest import POLICIES
from .helpers import tiny_record, toy_record


def printed(shown: Results) -> str:
    stream = io.StringIO()
    print_results(shown, Console(file=stream, width=120))
    return stream.getvalue()


@pytest.fixture(scope="module")
def cut_short(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """One window, one seed, jobs left unfinished, exact knowledge."""

    def run(cell: Cell) -> RunRecord:
        return toy_record(cell, jobs=20, max_hours=0.5)

    cells = [Cell(policy, "w0", 0) for policy in ("fifo", "share")]
    return results(evaluate(cells, run, tmp_path_factory.mktemp("cut"), False, config={}), "exact")


def test_the_reference_and_the_forecast_are_named(finished: list[FinishedCell], toy_results: Results) -> None:
    assert toy_results.reference == "fifo"
    other = results(finished, "noisy", reference="share")
    assert {c.policy for c in other.comparisons["reward"]} == set(POLICIES) - {"share"}
    forth = {c.policy: c for c in toy_results.comparisons["reward"]}["share"]
    back = {c.policy: c for c in other.comparisons["reward"]}["fifo"]
    assert back.difference.estimate == pytest.approx(-forth.difference.estimate)
    assert back.wins == 6 - forth.wins - forth.ties
    off, on = (results(finished, "noisy", forecast=mode) for mode in ("off", "on"))
    assert "forecast" not in off.cells.columns
    assert set(on.cells["forecast"]) == {"on"}
    assert on.known == "knowledge: noisy; forecast: on"


def test_terminal_tables_fit_and_name_policies_setting_and_reference(toy_results: Results) -> None:
    text = printed(toy_results)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    for policy in ("fifo", "share", "[optimus]", LOWER_BOUND):
        assert any(line.startswith(policy) for line in lines)
    assert text.count("knowledge: noisy") == 2
    assert "Paired differences from fifo" in text
    for word in ("reward", "makespan", "latency", "rescales", "GPU-hours", "95% interval"):
        assert word in text


def test_warnings_name_unfinished_jobs_few_samples_one_window_and_oracle_knowledge(
    cut_short: Results, toy_results: Results
) -> None:
    assert "JCT and queueing cover only those that finished" in " ".join(printed(cut_short).split())
    assert any("fifo left" in note and "jobs unfinished in 1 of 1 cells" in note for note in warnings(cut_short))
    notes = " ".join(warnings(cut_short))
    assert "only 1 independent sample per policy" in notes
    assert "one window" in notes
    assert "Knowledge is exact" in notes
    calm = " ".join(warnings(toy_results))
    assert "only 2 independent samples" in calm
    assert "one window" not in calm
    assert "exact" not in calm


def test_the_bound_has_no_completion_times_where_a_policy_left_jobs(tmp_path: Path) -> None:
    def run(cell: Cell) -> RunRecord:
        short = cell.policy == "fifo" and cell.window == "w1"
        return toy_record(cell, jobs=20, max_hours=0.5 if short else None)

    cells = [Cell(policy, window, 0) for policy in ("fifo", "share") for window in ("w0", "w1")]
    shown = results(evaluate(cells, run, tmp_path, False, config={}), "exact")
    bound = shown.cells[shown.cells["policy"] == LOWER_BOUND].set_index("window")
    times = ["jct_mean", "jct_median", "jct_p95", "jct_p99"]
    assert bound.loc["w1", times].isna().all(), "the policies' times cover other jobs there"
    assert bound.loc["w0", times].notna().all()
    assert bound["makespan"].notna().all()


def test_csv_files_hold_the_figures(toy_results: Results, tmp_path: Path) -> None:
    write_csv(toy_results, tmp_path)
    cells, summary, paired = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("cells", "summary", "paired"))
    pd.testing.assert_frame_equal(cells, toy_results.cells, check_dtype=False)
    assert list(cells.columns) == ["policy", "knowledge", "window", "seed", *METRIC]
    bound = cells["policy"] == LOWER_BOUND
    assert (bound.sum(), set(cells[bound]["knowledge"]), set(cells[~bound]["knowledge"])) == (6, {"exact"}, {"noisy"})
    assert len(summary) == 4 * len(METRICS)
    assert set(paired["policy"]) == set(POLICIES) - {"fifo"}
    for table in (cells, summary, paired):
        assert "knowledge" in table.columns
    row = paired[(paired["policy"] == "share") & (paired["metric"] == "jct_mean")].iloc[0]
    values = cells.set_index(["policy", "window", "seed"])["jct_mean"]
    assert row["difference"] == pytest.approx((values["share"] - values["fifo"]).mean())


def test_intervals_of_few_cells_stay_possible(finished: list[FinishedCell]) -> None:
    few = results([done for done in finished if done.cell.seed == 0], "noisy")
    summary = few.policies[0]
    assert summary.mean["jct_mean"].samples == 2
    for interval in summary.mean.values():
        assert not interval.high < interval.estimate
        assert not interval.low > interval.estimate
    assert summary.mean["jct_mean"].low >= 0
    assert summary.mean["utilisation"].high <= 1


@pytest.mark.parametrize("name", ["late_hours", "idle_cost", "accuracy_lost"])
def test_intervals_of_figures_that_may_be_negative_are_not_cut_at_zero(name: str) -> None:
    found = [
        FinishedCell(Cell("fifo", f"w{at}", 0), measure(tiny_record()) | {name: -1.0 - at}, {}, Path("none"))
        for at in range(8)
    ]
    interval = results(found, "exact").policies[0].mean[name]
    assert interval.low < interval.estimate < interval.high < 0


def test_what_failures_cost_is_shown_where_nodes_may_fail(toy_results: Results) -> None:
    assert "ETTR" not in printed(toy_results)
    cells = [Cell(policy, "w0", 0) for policy in ("fifo", "share")]
    found = [FinishedCell(cell, measure(tiny_record()), {}, Path("none")) for cell in cells]
    assert "ETTR" in printed(results(found, "exact"))


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
        ("jct_mean", [NAN], NAN, f"{NOTHING} ms"),
    ],
)
def test_figures_have_the_unit_of_their_column(name: str, values: list[float], value: float, text: str) -> None:
    scale = scale_for(METRIC[name], values)
    assert f"{scale.number(value)} {scale.unit}".rstrip() == text
