import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from rlpto.cli.main import run
from rlpto.workloads.trace import make_trace, write_trace


class Answer(NamedTuple):
    """How the command ended, and what it wrote to stdout and stderr."""

    code: int
    out: str
    err: str

    def assert_refused(self, *parts: str) -> None:
        """Exit code 2, nothing on stdout, one line on stderr that holds all `parts`."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.startswith("rlpto: error: ")
        assert self.err.count("\n") == 1
        for part in parts:
            assert part in self.err


Command = Callable[..., Answer]


@pytest.fixture
def rlpto(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, run in this process from the present folder."""

    def command(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["rlpto", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run()
        captured = capsys.readouterr()
        code = ended.value.code
        return Answer(code if isinstance(code, int) else 0, captured.out, captured.err)

    return command


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace of 60 jobs in 10 h and an experiment on it: 7 windows train, 1 validation, 2 test."""
    rng = np.random.default_rng(5)
    trace = make_trace(
        {
            "submit_time": np.sort(rng.uniform(0, 36_000, 60)),
            "duration": rng.lognormal(6.5, 1.0, 60),
            "gpus": rng.choice([1, 1, 2, 4], 60),
        },
        source="sixty jobs",
    )
    write_trace(trace, tmp_path / "jobs.parquet")
    (tmp_path / "exp.yaml").write_text(
        "name: small\n"
        "cluster:\n  nodes:\n  - {count: 2, gpus: 4}\n"
        "workload:\n  source: trace\n  path: jobs.parquet\n  windows: {hours: 0.95}\n"
        "policies: [fifo, las]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    return tmp_path
