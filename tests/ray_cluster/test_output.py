"""What a job prints, and how its training goes, in its log."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.worker.training import MOST_LINES, PrintedLines
from rlpto.store.logs import LOG
from tests.ray_cluster.running import Running, make_spec


def test_printed_lines_are_kept_and_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    lines = PrintedLines()
    lines.install()
    print("one\ntwo", end="")
    print(" and more")
    print("bar 1\rbar 2\rdone", file=sys.stderr)
    assert [text for _, text in lines.take()] == ["one", "two and more", "done"]
    assert lines.take() == ()
    for number in range(MOST_LINES + 5):
        print(number)
    taken = lines.take()
    assert taken[0][1] == "(5 lines are left out)"
    assert len(taken) == MOST_LINES + 1
    assert capsys.readouterr().out.startswith("one\ntwo and more\n0\n")


def test_a_job_that_trains_is_followed_line_by_line(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    spec = make_spec(
        tmp_path, id="logged", training="tests.ray_cluster.programs:Talking", epochs=3.0, logs=True, options={}
    )
    with Running(ray_cluster, spec) as job:
        job.command([ray_cluster.node_ids[0]])
        job.until(lambda report: report.ended)
    texts = [json.loads(line)["text"] for line in (tmp_path / LOG).read_text().splitlines()]
    assert "training on 1 GPU of 1 node" in texts
    assert "a batch of 16" in texts
    assert texts[-1] == "finished after 3 epochs"
    assert any(text.startswith("epoch 3 of 3: loss") for text in texts)
