"""Programs of `make bench`, as one calls them."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


class Ended(NamedTuple):
    """How a program ended."""

    code: object
    out: str
    err: str


Call = Callable[..., Ended]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a program in this process, which has imported what it needs."""

    def run(program: str, *words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", [program, *map(str, words)])
        monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(BENCHMARKS / program), run_name="__main__")
        return Ended(ended.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize("program", sorted(path.name for path in BENCHMARKS.glob("[!_]*.py")))
def test_every_program_explains_itself_and_refuses_nonsense_in_one_line(program: str, call: Call) -> None:
    assert call(program, "--help").out.startswith("usage: ")
    refused = call(program, "--nonsense")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["speed.py", "--repeats", "0"], "expected 1 or more"),
        (["forecasting.py", "--seeds", "0", "-1"], "'-1', expected 0 or more"),
        (["study.py", "speed"], "there is no study 'speed'"),
        (["study.py", "classes", "--set", "limit=3"], "--set limit: expected one of workloads, loads"),
        (["study.py", "classes", "--set", "windows=many"], "--set windows: Input should be a valid integer"),
        (["study.py", "classes", "--set", "loads=[0.5"], "--set loads=[0.5: not valid YAML"),
        (["study.py", "classes", "--set", "loads=[]"], "--set loads: Tuple should have at least 1 item"),
    ],
)
def test_wrong_words_are_refused_in_one_line(words: list[str], complaint: str, call: Call) -> None:
    refused = call(*words)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert complaint in refused.err
