"""The runner of studies, and the figures of docs/classes.md."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.policies.registry import make_policy

from ..builders import job, linear_tables, make_cluster

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import _study_classes as classes
import study
from _common import Check


def test_how_late_a_job_may_come_and_still_start_before_another() -> None:
    jobs = [job(i, at, epochs=100.0) for i, at in enumerate([0.0, 10.0, 50.0, 90.0])]
    records = run(make_cluster(jobs, linear_tables()), make_policy("fifo"), QueueSettings(), RewardWeights()).jobs
    for starts, latest in (([0, 10, 50, 90], 0.0), ([0, 60, 50, 90], 40.0), ([100, 60, 50, 90], 90.0)):
        assert classes.overtaken_by(replace(records, start_time=np.array(starts, dtype=float))) == latest


def test_a_table_takes_its_place_in_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{study.BEGIN}\nold\n{study.END}\nAfter.\n")
    study.write_block(page, "\n".join(study.table([{"a": 0.123456, "b": "x"}, {"a": 7}])))
    assert page.read_text() == (
        f"Before.\n{study.BEGIN}\n| a | b |\n| --- | --- |\n| 0.1235 | x |\n| 7 |  |\n{study.END}\nAfter.\n"
    )
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="2"):
        study.write_block(page, "text")
    assert "expected one line" in capsys.readouterr().err
    assert page.read_text() == "no marks"


@pytest.mark.parametrize("name", study.STUDIES)
def test_every_study_has_a_page_with_its_marks_and_its_command(name: str) -> None:
    page = (study.PAGES / study.STUDIES[name].path).read_text(encoding="utf-8")
    measured = page.partition(study.BEGIN)[2].partition(study.END)[0]
    assert f"`python benchmarks/study.py {name}` wrote what follows" in measured
    assert callable(importlib.import_module(f"_study_{name}").measure)


def test_a_measurement_is_kept_until_a_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def measure(data: Path | None, windows: int = 3) -> tuple[list[Check], dict[str, list[dict[str, object]]]]:  # noqa: ARG001
        calls.append(windows)
        checks = [Check("jobs", float(windows), "", 4.0, True), Check("time", 9.0, "s", 5.0, False)]
        return checks, {"Rows": [{"windows": windows}]}

    module = SimpleNamespace(measure=measure, MISSED=("time",))
    monkeypatch.setitem(sys.modules, "_study_sia", module)
    monkeypatch.setattr(study, "KEPT", tmp_path)
    monkeypatch.setattr(study._common, "sources_digest", lambda _: "digest")
    found = study.measured("sia", [], fresh=False)
    assert study.measured("sia", [], fresh=False) == found
    assert study.measured("sia", ["windows=5"], fresh=False)["tables"] == {"Rows": [{"windows": 5}]}
    study.measured("sia", [], fresh=True)
    monkeypatch.setattr(study._common, "sources_digest", lambda _: "another")
    study.measured("sia", [], fresh=False)
    assert calls == [3, 5, 3, 3]
    text = study.block("sia", found)
    assert "| jobs | 3 | at least 4 | **no** |" in text
    assert "| time | 9 s | at most 5 | **missed** |" in text
    assert "Rows:\n\n| windows |\n| --- |\n| 3 |" in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["speed"], "there is no study 'speed'"),
        (["classes", "--set", "limit=3"], "--set limit: expected one of windows"),
        (["classes", "--set", "windows=many"], "--set windows=many: expected a value like 16"),
        (["classes", "--set", "windows=0"], "--set windows: expected at least 1"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["study.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        study.main()
    assert complaint in capsys.readouterr().err


def test_a_claim_that_fails_is_seen() -> None:
    rows = [
        classes.Row("synthetic", 0.9, policy, rule, 10.0, (1.0, 2.0, 3.0), 99.0, 91.0 if rule == "weighted" else 0.0)
        for policy in classes.POLICIES
        for rule in classes.RULES
    ]
    failed = {check.name.split(":")[0] for check in classes.checks_of(rows) if not check.passed}
    assert failed == {"fifo, weighted", "index, each tuned for its rule", "srtf", "fifo"}
