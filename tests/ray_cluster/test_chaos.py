"""A minute of the soak of `benchmarks/ray.py chaos`, as users run it; `--soak 60` for an hour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.cluster
def test_all_promises_are_kept_under_faults(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    minutes = request.config.getoption("--soak") or 1
    command = [sys.executable, "benchmarks/ray.py", "chaos", "--minutes", str(minutes), "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with (tmp_path / "errors").open("w") as errors:
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, check=False
        )
    found = done.stdout[done.stdout.find("{") :]
    assert found, (tmp_path / "errors").read_text()[-2000:]
    outcome = json.loads(found)
    assert [check["name"] for check in outcome["checks"] if not check["passed"]] == [], outcome
    assert sum(outcome["faults"].values()) >= 2 * minutes
