"""The report shows rented nodes where there are some."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlpto.core.records import NodeRecords, RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.node_plots import nodes_over_time, nodes_plots, typical_cell
from rlpto.evaluation.plots import png
from rlpto.evaluation.runner import Cell, FinishedCell, evaluate
from rlpto.evaluation.tables import results

from .helpers import empty_record, tiny_record, toy_record

MINUTES = 120
WINDOWS = ("a", "b", "c")


def rented(spare: float, minutes: int = MINUTES) -> NodeRecords:
    """4 GPUs that are held, `spare` idle ones, and 8 that boot in the first minute."""
    whole, none = np.ones(minutes), np.zeros(minutes)
    booting = 8.0 * (np.arange(minutes) == 0)
    ready, idle = (4 + spare) * whole, spare * whole
    return NodeRecords(60 * whole.cumsum(), ready + booting, ready, booting, 4 * whole, idle, none, whole, idle)


def renting_run(cell: Cell) -> RunRecord:
    return replace(toy_record(cell), rented=rented(8.0 if cell.policy == "fifo@spare" else 0.0))


def finished_cells(folder: Path, policies: Sequence[str]) -> list[FinishedCell]:
    cells = [Cell(policy, window, 0) for policy in policies for window in WINDOWS]
    return evaluate(cells, renting_run, folder, progress=False, config={}, weights=RewardWeights())


@pytest.mark.parametrize("policies", [("fifo@reactive", "fifo@spare"), ("fifo@reactive",)])
def test_the_report_shows_rented_nodes_of_the_best_and_of_the_reference(tmp_path: Path, policies: list[str]) -> None:
    finished = finished_cells(tmp_path, policies)
    found = results(finished, "exact", "fifo@reactive")
    (plot,) = nodes_plots(found, finished)
    assert png(plot.figure) == png(nodes_plots(found, finished)[0].figure), "the same again from what is stored"
    window, seed = typical_cell(found)
    assert f"(window {window}, seed {seed}: the median by reward)" in plot.caption
    assert re.search(
        r"nder fifo@reactive nodes take 8\.1\d? GPU-h, 0\.00? GPU-h of it idle, and jobs wait ", plot.caption
    )
    assert ("fifo@spare nodes take 24.1 GPU-h, 16.0 GPU-h of it idle" in plot.caption) == (len(policies) == 2)
    rewards = found.cells[found.cells.policy.isin(policies)].pivot(index="window", columns="policy", values="reward")
    value = rewards["fifo@spare"] - rewards["fifo@reactive"] if len(policies) == 2 else rewards["fifo@reactive"]
    assert value[window] == value.median()


def test_what_is_drawn_is_what_was_recorded() -> None:
    runs = {name: replace(tiny_record(), rented=rented(spare)) for name, spare in (("a", 8.0), ("b", 0.0))}
    above, below, above_b, _ = nodes_over_time(runs).axes
    assert [axes.get_title(loc="left") for axes in (above, above_b)] == ["a", "b"]
    (wanted,), (spare,) = above.get_lines(), below.get_lines()
    assert np.asarray(wanted.get_ydata()).tolist() == [20.0] + [12.0] * (MINUTES - 1)
    assert set(np.asarray(spare.get_ydata()).tolist()) == {8.0}
    assert above.get_xlim() == (0, (MINUTES - 1) / 60)
    assert above.get_ylim() == above_b.get_ylim(), "on one scale"


def test_there_is_no_such_picture_without_rented_nodes(toy_results, finished) -> None:
    assert nodes_plots(toy_results, finished) == []


def test_a_run_of_one_minute_is_drawn() -> None:
    assert png(nodes_over_time({"a": replace(empty_record(), rented=rented(0.0, 1))})).startswith(b"\x89PNG")
