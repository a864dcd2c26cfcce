import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from rlpto.cli.main import make_app, verbs
from rlpto.io.interrupts import interrupts_kept

HEAVY = {"numpy", "pandas", "scipy", "numba", "pyarrow", "matplotlib", "pydantic", "yaml", "torch", "ray"}
HEAVY |= {"rich", "sqlite3", "rlpto.io.files"}


def start(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlpto", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def test_the_command_line_starts_and_prints_its_help_without_importing_anything_heavy() -> None:
    code = "import sys\nfrom rlpto.cli.main import run\ntry: run()\nfinally: print(*sys.modules)"
    command = [sys.executable, "-c", code, "--help"]
    shown, _, modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rpartition("\nsys ")
    groups = [line for line in shown.splitlines() if line.endswith(":")]
    assert groups == ["Options:", "Research:", "Benchmark:", "Traces, forecasts and models:", "Real clusters:",
                      "Job service:"]  # fmt: skip
    assert "..." not in shown.replace("[ARGS]...", ""), "summaries are whole"
    assert "rlpto.cli.evaluate" in modules
    assert not HEAVY & set(modules.split())


def test_version_and_help_end_well(rlpto) -> None:
    version, helped, verb = rlpto("--version"), rlpto("--help"), rlpto("evaluate", "--help")
    assert (version.code, version.out.startswith("rlpto 0.")) == (0, True)
    assert (helped.code, [name for name, _ in verbs() if name not in helped.out]) == (0, [])
    assert (verb.code, "Example: rlpto evaluate" in verb.out) == (0, True)


def test_help_shows_no_types_of_flags_no_doubled_brackets_and_an_example_for_every_group(rlpto) -> None:
    for name, _ in verbs():
        shown = rlpto(name, "--help").out
        assert not re.search(r"<bool>|\[\[|\{\{|\.\.\.\]|\.\.\.\}", shown), name
        assert "Example: rlpto" in shown, name


@pytest.mark.parametrize(
    "words",
    [
        ("forecast", "backtest", "jobs.parquet", "--test", "nan"),
        ("bench", "verify", "submissions/fifo", "--share", "nan"),
        ("cluster", "drain", "5f0c", "--in", "inf"),
        ("profile", "ray", "-o", "here.yaml", "--seconds", "inf"),
        ("profile", "ray", "-o", "here.yaml", "--learning", "nan"),
    ],
)
def test_numbers_that_are_not_finite_are_refused(rlpto, words: tuple[str, ...], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = rlpto(*words)
    assert answer.code == 2
    (option,) = (word for word in words if word.startswith("--"))
    assert f"Invalid value for '{option}': Input should be" in answer.err


WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None  # as if it were not installed
sys.argv[:] = ["rlpto", *sys.argv[2:]]
try:
    from rlpto.cli.main import run
    exec(sys.argv[2]) if sys.argv[1] == "-c" else run()
except ImportError as missing:
    print(f"library: {missing}", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        pytest.param(
            *("ray", "ray", ("evaluate", "ray_smoke", "--cluster", "ray", "--policies", "fifo")),
            marks=pytest.mark.slow,
        ),
        pytest.param("optuna", "ray", ("sweep", "quickstart", "--space", "space.yaml"), marks=pytest.mark.slow),
        ("httpx2", "service", ("jobs",)),
        ("httpx2", "service", ("serve", "service")),
        pytest.param(
            "minari", "examples", ("bench", "dataset", "microsoft04-0.9", "--policy", "index"), marks=pytest.mark.slow
        ),
        pytest.param("greenlet", "ray", ("-c", "import rlpto.elastic"), marks=pytest.mark.slow),
        pytest.param("transformers", "huggingface", ("-c", "import rlpto.elastic.huggingface"), marks=pytest.mark.slow),
        pytest.param("lightning", "lightning", ("-c", "import rlpto.elastic.lightning"), marks=pytest.mark.slow),
    ],
)
def test_a_missing_extra_is_one_line_in_one_wording(
    package: str, extra: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "space.yaml").write_text("agent.seed: [1, 2]\n")
    command = [sys.executable, "-c", WITHOUT, package, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    wording = f"{package} is not installed; expected the extra {extra}: pip install 'rlpto[{extra}]' "
    line = f"{wording}(in a clone: pip install -e '.[{extra}]')\n"
    if arguments[0] == "-c":
        assert ended.stderr == f"library: {line}"
    else:
        assert (ended.returncode, ended.stderr.rpartition("rlpto: error: ")[2]) == (2, line)
        assert "Traceback" not in ended.stderr


def test_a_verb_is_made_ready_alone_and_any_other_word_meets_all() -> None:
    alone, every = (get_command(make_app(word)) for word in ("jobs", "jbos"))
    assert isinstance(alone, TyperGroup)
    assert isinstance(every, TyperGroup)
    assert list(alone.commands) == ["jobs"]
    assert {"jobs", "evaluate", "train"} < every.commands.keys()


def test_bad_input_ends_with_exit_code_2_and_one_line(project: Path) -> None:
    (project / "exp.yaml").write_text("queue:\n  insde: fifo\n")
    answer = start("evaluate", "exp.yaml", folder=project)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr == "rlpto: error: exp.yaml:2: queue.insde: unknown key, did you mean queue.inside?\n"
    assert sorted(os.listdir(project)) == ["exp.yaml", "jobs.parquet"]


def test_a_thread_that_never_ends_does_not_hold_an_interrupted_command() -> None:
    program = (
        "import threading; from rlpto.cli.main import exit_if_threads_hang\n"
        "exit_if_threads_hang(9.0); threading.Thread(target=threading.Event().wait).start(); exit_if_threads_hang(0.1)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "")


WAIT_S = 30.0


class Interrupted:
    """Ctrl-C comes while Python takes an object apart, which passes no exception on."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@interrupts_kept()
def drop_and_go_on() -> None:
    doomed = Interrupted()
    del doomed
    time.sleep(WAIT_S)


def test_an_interrupt_that_is_raised_where_nobody_can_catch_it_comes_again() -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        drop_and_go_on()
    assert time.monotonic() - began < WAIT_S, "it does not end a wait"


def test_other_exceptions_there_are_printed_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: printed.append(lost.exc_type))

    class Broken:
        def __del__(self) -> None:
            raise ZeroDivisionError

    with interrupts_kept():
        broken = Broken()
        del broken
    assert printed == [ZeroDivisionError]
