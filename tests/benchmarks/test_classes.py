"""The program behind docs/classes.md: its figures, and its place in the page."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.policies.registry import make_policy

from ..builders import job, linear_tables, make_cluster

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import classes


def test_how_late_a_job_may_come_and_still_start_before_another() -> None:
    jobs = [job(i, at, epochs=100.0) for i, at in enumerate([0.0, 10.0, 50.0, 90.0])]
    records = run(make_cluster(jobs, linear_tables()), make_policy("fifo"), QueueSettings(), RewardWeights()).jobs
    for starts, latest in (([0, 10, 50, 90], 0.0), ([0, 60, 50, 90], 40.0), ([100, 60, 50, 90], 90.0)):
        assert classes.overtaken_by(replace(records, start_time=np.array(starts, dtype=float))) == latest


def test_the_table_takes_its_place_in_the_page() -> None:
    page = classes.PAGE.read_text(encoding="utf-8")
    assert classes.replaced(classes.replaced(page, "new"), "newer") == classes.replaced(page, "newer")
    assert "\nnew\n" in classes.replaced(page, "new")


def test_a_claim_that_fails_is_seen() -> None:
    rows = [
        classes.Row("synthetic", 0.9, policy, rule, 10.0, (1.0, 2.0, 3.0), 99.0, 91.0 if rule == "weighted" else 0.0)
        for policy in classes.POLICIES
        for rule in classes.RULES
    ]
    failed = {check.name.split(":")[0] for check in classes.checks_of(rows) if not check.passed}
    assert failed == {"fifo, weighted", "index, each tuned for its rule", "srtf", "fifo"}


def test_no_windows_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["classes.py", "--limit", "0"])
    with pytest.raises(SystemExit) as caught:
        classes.main()
    assert caught.value.code == 2
    assert "--limit: expected at least 1" in capsys.readouterr().err
