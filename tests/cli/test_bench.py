"""`rlpto bench`."""

import csv
from pathlib import Path

import pytest

from rlpto.bench.submissions import RESULTS
from rlpto.bench.suite import FOLDER, case_ids

SMALL = "microsoft04-1.1-exact"


@pytest.mark.slow
def test_the_command_runs_in_an_empty_folder(rlpto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = rlpto("bench", "run", "fifo", "--case", SMALL)
    assert answer.code == 0, answer.err
    assert "0.0" in answer.out
    with (tmp_path / "runs" / "bench" / "fifo" / RESULTS).open() as file:
        assert {row["case"] for row in csv.DictReader(file)} == {SMALL}
    assert "verified" in rlpto("bench", "verify", "runs/bench/fifo").out
    assert all(case in rlpto("bench", "list").out for case in case_ids())
    answer = rlpto("bench", "verify", "nowhere", "runs/bench/fifo")
    assert answer.code == 2
    assert "nowhere/card.yaml" in answer.out
    assert "runs/bench/fifo: verified" in answer.out, "the others are checked all the same"
    Path("mine.yaml").write_text(rlpto("bench", "config", SMALL).out)
    assert (
        rlpto("evaluate", "mine.yaml", "--policies", "fifo", "--windows", "validation", "--no-report", "-q").code == 0
    )
    rlpto("bench", "run", "fifo", "--case", SMALL, "--name", "a b").assert_refused("name: ", "a b")
    rlpto("bench", "run", "fifo", "fifo", "--case", SMALL, "--name", "twice").assert_refused("policies: ", "twice")
    assert not (tmp_path / "runs" / "bench" / "twice").exists()
    rlpto("bench", "run", "fifo", "--case", "nothing").assert_refused("no such case", "expected one of microsoft03-0.7")
    rlpto("bench", "run", "fifo", "--case", "microsoft4").assert_refused("did you mean microsoft04-")
    rlpto("bench", "run", "fifo", "--case", "philly-0.9").assert_refused("rlpto bench build philly-0.9")
    Path("runs/bench/fifo", RESULTS).write_text("")
    answer = rlpto("bench", "table", "runs/bench", "-o", "board.md")
    assert (answer.code, "no submission can be ranked" in answer.err) == (2, True)
    assert not Path("board.md").exists()


def test_a_policy_is_recorded_under_a_name_of_the_case(rlpto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    answer = rlpto("bench", "dataset", SMALL, "--policy", "index", "--episodes", "1")
    assert answer.code == 0, answer.err
    name = "rlpto/microsoft04-1_1-exact-index-v1"
    assert answer.out.startswith(f"{name}: 1 episodes, "), answer.out
    assert minari.load_dataset(name).total_episodes == 1
    rlpto("bench", "dataset", SMALL, "--policy", "index").assert_refused(f"{name} is there already")


@pytest.mark.slow
def test_a_demand_model_fitted_again_is_the_shipped_one(rlpto, tmp_path: Path) -> None:
    """By the command of docs/bench.md."""
    out = tmp_path / "model.safetensors"
    assert rlpto("forecast", "fit", "microsoft/cluster03", "--demand", "--end", "train", "-o", out).code == 0
    assert out.read_bytes() == (FOLDER / "demand" / "microsoft03.safetensors").read_bytes()
