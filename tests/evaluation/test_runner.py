"""Running cells, keeping them and their records on disk, going on after an interruption."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.metrics import measure
from rlpto.evaluation.runner import (
    Cell,
    FinishedCell,
    cells_of_earlier_runs,
    evaluate,
    load_cells,
)
from rlpto.io.errors import CheckpointError, ConfigError
from rlpto.io.interrupts import Interrupted
from rlpto.io.workers import LocalWorkers

from .helpers import toy_record

CELLS = [Cell(policy, "w0", seed) for policy in ("fifo", "share") for seed in range(3)]
CONFIG = {"interval": 60.0, "queue": {"inside": "fifo"}}


class NotedRuns:
    """Runs toy records and notes which; raises `error` instead of its `at`-th run."""

    def __init__(self, at: int = -1, error: BaseException | None = None) -> None:
        self.ran: list[Cell] = []
        self.at, self.error = at, error

    def __call__(self, cell: Cell) -> RunRecord:
        if len(self.ran) == self.at and self.error is not None:
            raise self.error
        self.ran.append(cell)
        return toy_record(cell, jobs=8)


def run(out: Path, run_cell: Callable[[Cell], RunRecord], **options: object) -> list[FinishedCell]:
    arguments = {"cells": CELLS, "progress": False, "config": CONFIG, **options}
    return evaluate(run_cell=run_cell, out=out, **arguments)


def test_every_cell_is_run_measured_and_kept_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(tmp_path, NotedRuns(), weights=RewardWeights(), progress=True)
    said = capsys.readouterr()
    assert said.out == ""
    assert "6/6" in said.err
    assert [finished.cell for finished in done] == CELLS
    for finished in done:
        record = toy_record(finished.cell, jobs=8)
        assert finished.metrics["jct_mean"] == measure(record)["jct_mean"]
        assert finished.bound["reward"] > finished.metrics["reward"]
        np.testing.assert_array_equal(finished.record().jobs.finish_time, record.jobs.finish_time)
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_folder_shows_the_cells_of_its_last_evaluation(tmp_path: Path) -> None:
    run(tmp_path, NotedRuns())
    second = run(tmp_path, NotedRuns(), cells=CELLS[3:])
    assert repr(load_cells(tmp_path)) == repr(second)
    assert cells_of_earlier_runs(tmp_path, second) == 3
    with pytest.raises(Interrupted):
        run(tmp_path, NotedRuns(at=0, error=KeyboardInterrupt()), cells=[*CELLS, Cell("new", "w0", 0)])
    with pytest.raises(CheckpointError, match=r"cell new · w0 · seed 0 is not finished"):
        load_cells(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (None, r"expected a cell; use another run folder, or --fresh"),
        ({"fingerprint": 3}, r"expected a cell .*use another run folder, or --fresh"),
        ({"metrics": {"speed": 1.0}}, "holds other metrics"),
        ({"record": "rlpto record 1"}, "another configuration or version"),
        ({"cell": {"policy": "x", "window": "w0", "seed": 0}}, "holds cell x"),
    ],
)
def test_a_damaged_or_foreign_cell_names_its_file(
    tmp_path: Path, changes: dict[str, object] | None, reason: str
) -> None:
    run(tmp_path, NotedRuns())
    path = tmp_path / "cells" / f"{CELLS[1].key}.json"
    path.write_text("" if changes is None else json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=rf"{path.name}: .*{reason}"):
        run(tmp_path, NotedRuns())
    lost = tmp_path / "cells" / f"{CELLS[0].key}.safetensors"
    lost.unlink()
    with pytest.raises(CheckpointError, match=f"{lost.name}: missing, expected a run record"):
        run(tmp_path, NotedRuns())


def test_undefined_metrics_survive_the_file(tmp_path: Path) -> None:
    def cut_short(cell: Cell) -> RunRecord:
        return toy_record(cell, jobs=8, max_hours=0.2)

    run(tmp_path, cut_short)
    finished = run(tmp_path, NotedRuns(at=0, error=AssertionError("must not run")))[0]
    assert finished.metrics["unfinished"] > 0
    assert np.isnan(finished.metrics["makespan"])
    assert np.isnan(finished.bound["reward"])


def die(cell: Cell) -> RunRecord:
    """Ends its process, as a lack of memory would."""
    del cell
    os._exit(1)


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes find this package under the name pytest gave it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[__name__.count(".")]))


@pytest.mark.usefixtures("importable")
def test_a_worker_that_dies_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a worker process died.*fewer than 2 jobs"):
        evaluate(CELLS, die, tmp_path, False, LocalWorkers(2), config=CONFIG)


def test_a_folder_without_an_evaluation_and_an_unwritable_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no cells\.json"):
        load_cells(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write"):
        run(tmp_path / "file", NotedRuns())
