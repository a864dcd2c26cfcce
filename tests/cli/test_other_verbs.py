import os
from pathlib import Path

import pytest

from rlpto.cli.common import make_console, make_table
from rlpto.workloads.trace import read_trace

pytestmark = pytest.mark.usefixtures("project")
LINES = (
    "timestamp,duration,num_gpus,gpu_time,cluster",
    "2017-10-03 10:00:00,60,1,60,a",
    "2017-10-03 10:01:00,120,2,240,b",
)


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_import_writes_a_trace_and_says_what_was_left_out(rlpto, project: Path) -> None:
    write_lines(project / "philly.csv", *LINES, "2017-10-03 10:02:00,a while,1,60,a")
    rlpto("trace", "import", "philly", "philly.csv", "-o", "t/p.parquet").assert_refused("philly.csv:4:", "duration")
    assert not (project / "t").exists()
    answer = rlpto("trace", "import", "philly", "philly.csv", "-o", "t/p.parquet", "--skip-bad-lines")
    assert answer.code == 0
    assert "t/p.parquet: 2 jobs" in answer.out
    assert "left out: 1 x" in answer.out
    assert len(read_trace(project / "t/p.parquet")) == 2
    write_lines(project / "x.csv", *LINES)
    assert rlpto("trace", "import", "auto", "x.csv", "-o", "p.parquet").code == 0
    rlpto("trace", "import", "phily", "x.csv", "-o", "q.parquet").assert_refused("did you mean philly")
    write_lines(project / "log.json", '{"jobs": []}')
    rlpto("trace", "import", "philly", "log.json", "-o", "q.parquet").assert_refused(
        "log.json:1", "expected a JSON list"
    )


@pytest.mark.parametrize("verb", [("trace", "import", "auto"), ("trace", "calibrate"), ("forecast", "fit")])
def test_no_command_replaces_the_file_that_it_reads(rlpto, project: Path, verb: tuple[str, ...]) -> None:
    write_lines(project / "mine.csv", *LINES)
    (project / "link.csv").symlink_to("mine.csv")
    before = (project / "mine.csv").read_text()
    rlpto("trace", "generate", "--like", "mine.csv", "-o", "link.csv").assert_refused("this command reads it")
    rlpto(*verb, "mine.csv", "-o", "link.csv").assert_refused("--out link.csv: this command reads it")
    assert (project / "mine.csv").read_text() == before


def test_describe_shows_figures(rlpto) -> None:
    answer = rlpto("trace", "describe", "jobs.parquet", "--gpus", 8)
    assert answer.code == 0
    assert "60" in answer.out
    assert "load on 8 GPUs" in answer.out
    rlpto("trace", "describe", "exp.yaml").assert_refused("exp.yaml: no known trace format")
    answer = rlpto("trace", "describe", "jobs.parquet", "--gpus", "9" * 400)
    assert (answer.code, "--gpus" in answer.err) == (2, True)
    answer = rlpto("trace", "describe", "microsoft/cluster10", "jobs.parquet", "--gpus", 8)
    rows = [line.split()[:2] for line in answer.out.splitlines()[1:]]
    assert rows == [["microsoft/cluster10", "260"], ["jobs.parquet", "60"]]


LONG = "a" * 5000
"""No file system has names of that length."""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("trace", "describe", LONG), "no such trace"),
        (("trace", "import", "philly_csv", "x.csv", "-o", ""), "expected the name of a file"),
        (("trace", "generate", "--like", LONG, "-o", "x.parquet"), "unknown calibration"),
        (("configs", "show", LONG), "no such file"),
        (("export", LONG, "-o", "agent.safetensors"), "expected a folder"),
        (("evaluate", "exp.yaml", "--profiles", LONG), "no such folder"),
        (("evaluate", "exp.yaml", "--run-dir", LONG), "file name too long"),
        (("profiles", "fit", LONG, "-o", "out"), "no sub-folder holds"),
        (("profiles", "show", "--folder", LONG), "no profiles there"),
    ],
)
def test_paths_that_cannot_be_are_refused(rlpto, project: Path, words: tuple[str, ...], expected: str) -> None:
    write_lines(project / "x.csv", *LINES)
    rlpto(*words).assert_refused(expected)


def test_generate_and_calibrate_go_round(rlpto, project: Path) -> None:
    assert rlpto("trace", "generate", "--like", "philly", "--days", 8, "-o", "s.parquet", "--rate", 0.1).code == 0
    assert rlpto("trace", "calibrate", "s.parquet", "-o", "mine.yaml", "-q").out == ""
    assert rlpto("trace", "generate", "--like", "mine.yaml", "--days", 1, "-o", "t.parquet").code == 0
    again = rlpto("trace", "generate", "--like", "mine.yaml", "--days", 1, "-o", "u.parquet")
    assert read_trace(project / "t.parquet").jobs.equals(read_trace(project / "u.parquet").jobs)
    assert "u.parquet" in again.out
    rlpto("trace", "generate", "--like", "filly", "-o", "v.parquet").assert_refused("filly", "philly")


def test_policies_are_listed_with_source_and_options(rlpto) -> None:
    answer = rlpto("policies", "--options")
    assert "Gu et al., NSDI 2019" in answer.out
    assert "lower bound" in answer.out
    assert "fifo:backfill=false" in answer.out


def test_profiles_are_shown_with_the_errors_of_their_fit(rlpto, project: Path) -> None:
    answer = rlpto("profiles", "show")
    assert "ResNet-18 on CIFAR-10" in answer.out
    assert "%" in answer.out
    os.mkdir("empty")
    rlpto("profiles", "show", "--folder", "empty").assert_refused("empty: no profiles there")
    rlpto("profiles", "fit", "empty", "-o", "out").assert_refused("empty")
    assert not (project / "out").exists()


def test_brackets_of_paths_are_no_markup(rlpto, project: Path) -> None:
    answer = rlpto("trace", "generate", "--days", 1, "-o", "a[/b]c.parquet")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("a[/b]c.parquet: ")
    assert (project / "a[" / "b]c.parquet").exists()
    answer = rlpto("trace", "describe", "a[/b]c.parquet", "jobs.parquet")
    assert (answer.code, answer.out.count("a[/b]c.parquet")) == (0, 1)
    answer = rlpto("evaluate", "exp.yaml", "--policies", "fifo", "--limit", 1, "--run-dir", "[/r]", "--no-report")
    assert answer.code == 0
    assert "tables: [/r]" in answer.out


def test_texts_of_a_console_are_markup_only_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    console = make_console()
    console.print("[bold]a[/b]", "c")
    console.print("[bold]d[/]", markup=True)
    console.print(make_table("[bold]e[/]", "wide", title="f[/g]"))
    assert capsys.readouterr().out.split() == ["[bold]a[/b]", "c", "d", "f[/g]", "e", "wide"]


def test_trainings_are_previewed_by_metric(rlpto) -> None:
    answer = rlpto("profiles", "preview", "cifar10", "--gpus", "1..16", "--metric", "all")
    assert (answer.code, answer.out.count("GPU-hours")) == (0, 3)
    rows = [line.split() for line in answer.out.splitlines()]
    assert [row[0] for row in rows if row and row[0].isdecimal()] == [str(gpus) for gpus in range(1, 17)]
    band = ("--min-util", "0.2", "--max-util", "0.3")
    shown = rlpto("profiles", "preview", "bert", "--gpus", "4,8", "--metric", "throughput", *band).out
    (eight,) = (line.split() for line in shown.splitlines() if line.startswith("   8"))
    assert float(eight[2]) == pytest.approx(8 * float(eight[1]), abs=0.1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("cifar10", "--gpus", "8..1"), "expected numbers from 1 to 4,096 and ascending ranges"),
        (("cifar1",), "no profile of model 'cifar1'; known: bert, cifar10"),
        (("cifar10", "--min-util", "0.9", "--max-util", "0.6"), "expected 0 < min_util < max_util <= 1, got 0.9"),
        (("cifar10", "--max-util", "0.6"), "expected both or none"),
    ],
)
def test_what_cannot_be_previewed_is_refused(rlpto, words: tuple[str, ...], expected: str) -> None:
    rlpto("profiles", "preview", *words).assert_refused(expected)


def test_configs_are_listed_and_shown(rlpto, project: Path) -> None:
    assert "quickstart" in rlpto("configs", "list").out
    shown = rlpto("configs", "show", "exp.yaml", "--set", "seed=5")
    assert "seed: 5" in shown.out
    assert "# Seconds between regular decisions." in shown.out
    (project / "copy.yaml").write_text(shown.out)
    assert rlpto("configs", "show", "copy.yaml").out == shown.out


@pytest.mark.slow
def test_runs_on_the_same_windows_are_compared_policy_by_policy(rlpto) -> None:
    common = ("evaluate", "exp.yaml", "--no-report", "-q", "--policies", "fifo,srtf", "--run-dir")
    rlpto(*common, "exact")
    rlpto(*common, "noisy", "--set", "knowledge.mode=noisy")
    rlpto(*common, "shorter", "--set", "workload.windows.hours=0.5")
    rlpto(*common, "twice", "--seeds", 2)
    answer = rlpto("compare", "exact", "noisy")
    assert answer.code == 0, answer.err
    assert "knowledge.mode" in answer.out
    assert "srtf" in answer.out
    same = [line for line in answer.out.splitlines() if "+0.0 %" in line and "noisy" in line]
    assert same, "fifo knows no durations: noise changes nothing"
    rlpto("compare", "exact", "shorter").assert_refused(
        "shorter: other windows than exact: workload.windows.hours is 0.5, not 0.95"
    )
    rlpto("compare", "exact", "twice").assert_refused("exact: no cells of window", "seed 1")
    rlpto("compare", "exact", "./exact", "noisy").assert_refused("exact: expected different run folders")
    rlpto("compare", "exact").assert_refused("one run has nothing to be compared with")
    rlpto("compare", "exact", ".").assert_refused("no config.resolved.yaml there")
    Path("trained").mkdir()
    Path("noisy").rename("trained/evaluation")
    assert rlpto("compare", "exact", "trained").code == 0, "the evaluation that is kept with a training"
    rlpto("compare", "trained", "trained/evaluation").assert_refused("evaluation: expected different run folders")


def test_profiles_by_tables_are_listed_with_sizes_source_and_error(rlpto, project: Path) -> None:
    answer = rlpto("profiles", "list")
    assert "256, 512, 1024, 1536, 2048, 2496" in answer.out
    assert "VIA-Research/vTrain, MIT" in answer.out
    assert "all: 126 sizes held out, error 5.2%, 33.3%" in answer.out, "docs/performance.md states it"
    rlpto("profiles", "list", "--folder", str(project / "none")).assert_refused("no such folder")


@pytest.mark.slow
def test_profiles_by_tables_are_drawn(rlpto, project: Path) -> None:
    assert "2 profiles: new/sizes.png" in rlpto("profiles", "plot", "mpt-7b", "vtrain-18.4b", "-o", "new/sizes.png").out
    assert (project / "new" / "sizes.png").read_bytes().startswith(b"\x89PNG")
    rlpto("profiles", "plot", "mpt-8b", "-o", "a.png").assert_refused("mpt-8b: no profile with a table in llm")
    rlpto("profiles", "plot", "mpt-7b", "-o", "a.pdf").assert_refused("--out a.pdf: expected a file that ends in .png")
