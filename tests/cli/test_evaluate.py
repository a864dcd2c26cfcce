import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from rlpto.cli.evaluate import comparison_table
from rlpto.evaluation.metrics import METRIC
from rlpto.evaluation.runner import Cell, FinishedCell
from rlpto.experiments.config import Config, load_config, resolved_yaml
from rlpto.experiments.evaluate import FinishedRun, differences
from rlpto.experiments.experiment import Experiment
from rlpto.policies.index_weights import IndexWeights, save_index_weights
from rlpto.policies.registry import available, own_policies, plugin_files
from tests.plugins import SHOCKWAVE, install, policies_of

pytestmark = pytest.mark.usefixtures("project")


def untimed(folder: str) -> pd.DataFrame:
    """The table of cells without what the machine's clock says."""
    return pd.read_csv(f"{folder}/cells.csv").drop(columns=["latency_p50", "latency_p99", "wall_seconds"])


def test_a_run_folder_holds_everything_about_a_run(rlpto, project: Path) -> None:
    answer = rlpto("evaluate", "exp.yaml", "--policies", "fifo,las", "--seeds", 2)
    assert answer.code == 0, answer.err
    assert "report: runs/small/report.html" in answer.out
    folder = project / "runs/small"
    assert {path.name for path in folder.iterdir()} == {
        *("config.resolved.yaml", "versions.json", "cells", "plots", "report.html"),
        *("cells.json", "cells.csv", "summary.csv", "paired.csv"),
    }
    frame = pd.read_csv(folder / "cells.csv")
    counts = frame.groupby("policy").size()
    assert counts.to_dict() == {"fifo": 4, "las": 4, "lower bound": 4}
    assert frame.groupby(["window", "seed"])["jobs"].nunique().eq(1).all(), "the same jobs for every policy"
    versions = json.loads((folder / "versions.json").read_text())
    assert versions["command"] == "rlpto evaluate exp.yaml --policies fifo,las --seeds 2"
    assert {"rlpto", "python", "numpy", "commit"} <= versions.keys()
    again = load_config(folder / "config.resolved.yaml")
    assert again.evaluation.seeds == 2
    assert resolved_yaml(again) == (folder / "config.resolved.yaml").read_text()
    assert list((folder / "plots").glob("*.png"))


@pytest.mark.slow
def test_the_folder_alone_reproduces_the_run_in_any_number_of_processes(rlpto) -> None:
    assert rlpto("evaluate", "exp.yaml", "--no-report", "--quiet") == (0, "", "")
    rlpto("evaluate", "runs/small/config.resolved.yaml", "--no-report", "-q", "--run-dir", "again", "--jobs", 2)
    pd.testing.assert_frame_equal(untimed("runs/small"), untimed("again"))


def test_windows_policies_labels_and_seed_choose_what_is_run(rlpto) -> None:
    name = "fifo>600:equal_share>1000000:las"
    chosen = ("--windows", "train", "--limit", 3, "--seed", 7, "--policies", f"fifo,las:label=short,{name}:label=s")
    answer = rlpto("evaluate", "exp.yaml", "--no-report", *chosen, "--set", "evaluation.reference=short")
    assert answer.code == 0, answer.err
    assert "Paired differences from short" in answer.out
    frame = pd.read_csv("runs/small/cells.csv")
    assert (frame["window"].nunique(), set(frame["seed"])) == (3, {7})
    assert frame["window"].str.startswith("train-").all()
    switched = f"{name.rpartition(':')[0]}:s"
    assert set(frame["policy"]) == {"fifo", "short", switched, "lower bound"}
    mean = frame.groupby("policy")["jct_mean"].mean()
    assert mean[switched] < mean["fifo"]
    assert "only fifo, equal_share took decisions before the run ended" in answer.out


@pytest.mark.slow
def test_jobs_that_are_repeated_to_reach_a_load_are_said_to_be(rlpto, project: Path) -> None:
    answer = rlpto("evaluate", "exp.yaml", "--policies", "fifo", "--set", "workload.load=4")
    assert answer.code == 0, answer.err
    sentence = "made of 60 recorded ones: each stands in it"
    assert sentence in " ".join(answer.out.split())
    report = (project / "runs/small/report.html").read_text()
    assert sentence in report
    assert "One policy on 2 windows and 1 seed" in report
    assert "Paired differences from" not in report
    workload = json.loads((project / "runs/small/versions.json").read_text())["workload"]
    assert workload["recorded"] == 60
    assert workload["taken"] > 120


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--policies", "fifo,,las"], ["--policies fifo,,las", "separated by commas"]),
        (["--set", "evaluation.reference=srtf"], ["evaluation.reference: srtf is not evaluated", "one of: fifo, las"]),
        (["--policies", "fifo:label=a,las:label=a"], ["policies: two are called a, expected a label of its own"]),
        (
            ["--set", "workload.source=follow"],
            ["workload.source: expected 'synthetic', 'trace', 'files', 'jobs' or 'frozen'"],
        ),
        (["--policies", "fifo>a:las"], ["--policies: policies.0: policy switch 'a:las'", "expected SECONDS:POLICY"]),
        (["--policies", "fifo>600:lass"], ["no policy 'lass'", "did you mean las?"]),
        (["--policies", "fifo:backfil=1"], ["backfil", "did you mean backfill?"]),
        (["--policies", "index:weights=exp.yaml"], ["exp.yaml", "no index weights"]),
        (["--set", "workload.path=no.parquet"], ["no.parquet: no such trace", "rlpto trace import"]),
        (["--set", "cluster.nodes=[{count: 1, gpus: 2}]"], ["wants 4 GPUs", "at most the 2 the cluster has"]),
        (["--set", "workload.windows.hours=20"], ["windows of 20 h do not fit", "expected a smaller windows.hours"]),
        (["--windows", "validation", "--set", "workload.windows.validation=0"], ["no validation windows"]),
        (["--set", "workload.skip_days=3"], ["workload.skip_days: 3, but the trace has"]),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(rlpto, project: Path, arguments, parts) -> None:
    rlpto("evaluate", "exp.yaml", *arguments).assert_refused(*parts)
    assert sorted(os.listdir(project)) == ["exp.yaml", "jobs.parquet"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_finished_cells_and_says_how_to_go_on(project: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "rlpto.cli.main", "evaluate", "exp.yaml", "--seeds", "2000", "--no-report"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not list((project / "runs/small/cells").glob("*.json")):
            time.sleep(0.05)
        process.send_signal(number)
        said = process.stderr.read()
    assert process.returncode == 130, said
    assert "cells are finished and kept in runs/small/cells" in said
    assert "Traceback" not in said


def test_a_folder_of_another_configuration_or_trace_is_refused_and_left_alone(rlpto, project: Path) -> None:
    rlpto("evaluate", "exp.yaml", "--no-report", "-q")
    before = {path: path.read_bytes() for path in (project / "runs/small").rglob("*") if path.is_file()}
    answer = rlpto("evaluate", "exp.yaml", "--set", "simulator.interval=30")
    answer.assert_refused("runs/small: holds a run with simulator.interval = 60.0, now it is 30.0", "--fresh")
    for change, said in (
        ("cluster.nodes.0.gpus=2", "cluster.nodes.0.gpus = 4, now it is 2"),
        ("cluster.nodes=[{count: 2, gpus: 2}, {gpus: 1}]", 'now it is {"count":2,"gpus":2}, {"gpus":1};'),
    ):
        rlpto("evaluate", "exp.yaml", "--set", change).assert_refused("runs/small: holds a run with", said)
    rlpto("trace", "generate", "--days", "1", "--rate", "0.2", "-o", "jobs.parquet", "-q")
    clipped = ("--set", "workload.mapping.oversized=clip", "--no-report", "-q")
    rlpto("evaluate", "exp.yaml", *clipped).assert_refused("runs/small")
    rlpto("train", "exp.yaml", *clipped[:2]).assert_refused("runs/small: holds a run with workload.mapping.oversized")
    assert before == {path: path.read_bytes() for path in (project / "runs/small").rglob("*") if path.is_file()}
    assert rlpto("evaluate", "exp.yaml", *clipped, "--fresh").code == 0
    Path("runs/small/last.safetensors").touch()  # a training, whose configuration must stay for it to be resumed
    there = ("--fresh", "--run-dir", "runs/small")
    rlpto("evaluate", "exp.yaml", *there).assert_refused("oversized = clip, now it is error; use another --run-dir")
    answer = rlpto("evaluate", "exp.yaml", "--no-report")
    assert "tables: runs/small/evaluation" in answer.out, "beside the training, not into its folder"


def written(folder: str = "runs/small") -> dict[str, int]:
    """When each finished cell of a run was written."""
    return {path.name: path.stat().st_mtime_ns for path in Path(folder, "cells").glob("*.json")}


@pytest.mark.slow
def test_cells_of_weights_that_have_changed_are_run_again_and_no_others(rlpto) -> None:
    save_index_weights(IndexWeights().array(), Path("w.yaml"))
    arguments = ("evaluate", "exp.yaml", "--no-report", "-q", "--policies", "fifo,index:weights=w.yaml")
    assert rlpto(*arguments).code == 0
    before = written()
    assert rlpto(*arguments).code == 0
    assert written() == before
    save_index_weights(IndexWeights(held=3.25).array(), Path("w.yaml"))
    assert rlpto(*arguments).code == 0
    assert {name: written()[name] for name in before} == before
    assert len(written()) == len(before) + 2, "two windows of the index"


OWN = """
from rlpto.core.cluster import Allocation
from rlpto.core.policy import BasePolicy

class Own(BasePolicy):
    summary, source = "what is asked for", "a test"

    def __call__(self, state):
        return Allocation(state.jobs.requested_gpus * 1)
"""


@pytest.mark.slow
def test_a_policy_whose_module_was_edited_is_run_again_and_said(rlpto, project: Path) -> None:
    (project / "share.py").write_text("from deeper.more import FIELD\n")
    (project / "deeper").mkdir()
    (project / "deeper" / "more.py").write_text("FIELD = 'requested_gpus'\n")
    (project / "own.py").write_text(
        OWN.replace("import BasePolicy", "import BasePolicy\nfrom share import FIELD").replace(
            "state.jobs.requested_gpus", "getattr(state.jobs, FIELD)"
        )
    )
    arguments = ("evaluate", "exp.yaml", "--no-report", "-q", "--policies", "fifo,own.py:Own")
    assert rlpto(*arguments) == (0, "", "")
    first, before = untimed("runs/small").set_index("policy").loc["own.py:Own"], written()
    assert rlpto(*arguments) == (0, "", "")
    assert written() == before
    (project / "deeper" / "more.py").write_text("FIELD = 'min_gpus'\n")
    said = f"rlpto: policy {project / 'own.py'}:Own: its files have changed; it runs again\n"
    assert said in rlpto(*[one for one in arguments if one != "-q"]).err
    assert len(written()) == len(before) + 2
    assert not untimed("runs/small").set_index("policy").loc["own.py:Own"].equals(first)


@pytest.mark.slow
def test_a_policy_in_a_file_needs_no_package_and_an_edit_is_run_anew(rlpto, project: Path, monkeypatch) -> None:
    (project / "own.py").write_text(OWN)
    arguments = ("evaluate", "exp.yaml", "--no-report", "-q", "--policies", "fifo,own.py:Own", "--jobs", 2)
    assert rlpto(*arguments) == (0, "", "")
    first = untimed("runs/small").set_index("policy").loc["own.py:Own"]
    before = written()
    (project / "sub").mkdir()
    monkeypatch.chdir(project / "sub")
    elsewhere = ("evaluate", "../exp.yaml", "--no-report", "-q", "--policies", "fifo,../own.py:Own")
    assert rlpto(*elsewhere, "--run-dir", "../runs/small").code == 0
    monkeypatch.chdir(project)
    assert written() == before, "the same file from another folder"
    (project / "own.py").write_text(OWN.replace("requested_gpus * 1", "min_gpus"))
    assert rlpto(*arguments).code == 0
    assert not untimed("runs/small").set_index("policy").loc["own.py:Own"].equals(first)
    assert len(written()) == len(before) + 2
    assert rlpto("evaluate", "runs/small/config.resolved.yaml", "-q", "--no-report", "--run-dir", "again").code == 0
    pd.testing.assert_frame_equal(untimed("runs/small"), untimed("again"))
    (project / "listed.yaml").write_text((project / "exp.yaml").read_text().replace("las", "'own.py:Own:label=mine'"))
    assert rlpto("evaluate", "listed.yaml", "-q", "--no-report", "--run-dir", "listed", "--policies", "mine").code == 0
    (project / "own.py").write_text(OWN.replace("requested_gpus * 1", "minimal_gpus"))
    line = OWN[: OWN.index("        return")].count("\n") + 1
    rlpto(*arguments).assert_refused(f"policy own.py:Own: {project / 'own.py'}:{line}: AttributeError", "minimal_gpus")
    rlpto("bench", "run", "own.py:Won", "--case", "kinds").assert_refused(
        "policy own.py:Won: no class", "expected one of Own"
    )
    assert not (project / "runs" / "bench" / "Won").exists()


PLUGIN = """
from rlpto.core.policy import NoOptions


class Wrong:
    summary, source, Options = "wrong", "a test", NoOptions

    def __init__(self, options):
        self.name = "wrong"

    def reset(self, seed):
        pass

    def __call__(self, state):
        return -state.jobs.requested_gpus
"""


@pytest.mark.slow
def test_a_package_adds_published_systems_by_name(rlpto, project: Path, monkeypatch) -> None:
    names = policies_of(SHOCKWAVE)
    install(names, SHOCKWAVE, project / "site", monkeypatch)
    assert names.keys() <= available().keys() - own_policies().keys(), "pages and studies look at own policies alone"
    assert SHOCKWAVE / "rlpto_shockwave" / "shockwave.py" in plugin_files("themis"), "an edit has it run again"
    few = ("--set", "workload.windows.limit=1", "--no-report", "-q")
    assert rlpto("evaluate", "exp.yaml", "--policies", ",".join(names), *few).code == 0
    cells = pd.read_csv("runs/small/cells.csv").set_index("policy")
    assert (cells.loc[[*names], "unfinished"] == 0).all()


def test_a_plug_in_that_returns_nonsense_is_named(rlpto, project: Path, monkeypatch) -> None:
    (project / "wrong_policy.py").write_text(PLUGIN)
    install({"wrong": "wrong_policy:Wrong"}, project, project / "site", monkeypatch)
    assert "wrong" in rlpto("policies").out
    rlpto("evaluate", "exp.yaml", "--policies", "wrong", "-q").assert_refused("policy wrong", "expected an Allocation")
    assert not (project / "runs/small/cells").exists(), "no cell is kept"
    assert not list(project.rglob("*.tmp"))


def test_ctrl_c_says_how_to_go_on_and_keeps_what_is_finished(rlpto, project: Path, monkeypatch) -> None:
    whole = Experiment.run_cell
    calls = 0

    def interrupted_later(self, cell, **options):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return whole(self, cell, **options)

    monkeypatch.setattr(Experiment, "run_cell", interrupted_later)
    answer = rlpto("evaluate", "exp.yaml", "--no-report")
    assert answer.code == 130
    assert "2 of 4 cells are finished" in answer.err
    assert "run the same command" in answer.err
    assert len(list((project / "runs/small/cells").glob("*.json"))) == 2
    assert rlpto("evaluate", "exp.yaml", "--no-report", "-q").code == 0
    assert calls == 3 + 2


def test_a_second_call_runs_only_what_is_missing(rlpto) -> None:
    rlpto("evaluate", "exp.yaml", "--no-report", "-q")
    before = written()
    rlpto("evaluate", "exp.yaml", "--no-report", "-q", "--policies", "fifo,las,srtf", "--seeds", 2)
    after = written()
    assert (len(before), len(after)) == (2 * 2, 3 * 2 * 2)
    assert all(after[name] == at for name, at in before.items())
    answer = rlpto("evaluate", "exp.yaml", "--no-report")
    assert "8 cells of earlier commands are kept in runs/small/cells and not shown" in answer.out
    assert set(pd.read_csv("runs/small/cells.csv")["policy"]) == {"fifo", "las", "lower bound"}
    rlpto("evaluate", "exp.yaml", "--no-report", "-q", "--fresh")
    assert all(at > before[name] for name, at in written().items())


def test_the_bound_holds_for_policies_that_choose_batch_sizes(rlpto, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("batches.yaml").write_text(
        "cluster: {nodes: [{count: 1, gpus: 8}]}\n"
        "workload: {source: jobs, jobs: [{model: yolov3, epochs: 5, gpus: 1, max_gpus: 8, batch_size: 8}]}\n"
        "policies: [fifo, 'max_throughput:label=chooses,choose_batch_size=true']\n"
    )
    assert rlpto("evaluate", "batches.yaml", "--no-report", "-q").code == 0
    found = pd.read_csv(next(Path("runs").rglob("cells.csv"))).set_index("policy")["jct_mean"]
    assert found["lower bound"] <= found["chooses"] < found["fifo"]


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        ({"A": "fifo,las", "B": "las", "C": "fifo"}, "differences from A, cell by cell"),
        (
            {"A": "fifo", "B": "las", "C": "fifo,las"},
            "differences from the first run that has the policy, cell by cell",
        ),
        ({"A": "fifo", "B": "las", "C": "las"}, "differences from B, cell by cell"),
    ],
)
def test_a_comparison_says_from_which_run_its_differences_are(shared: dict[str, str], said: str) -> None:
    figures = dict.fromkeys(METRIC, 1.0)
    runs = [
        FinishedRun(name, Path(name), Config(), [
            FinishedCell(Cell(policy, "w0", 0), figures, {}, Path("none")) for policy in policies.split(",")
        ])
        for name, policies in shared.items()
    ]  # fmt: skip
    assert said in str(comparison_table(runs).caption)


def test_a_section_that_one_of_three_runs_lacks_has_no_values_there() -> None:
    scales = ({"most_gpus": 8}, {"most_gpus": 16}, None)
    configs = [Config.model_validate({"ray": {"autoscale": scale}}) for scale in scales]
    runs = [FinishedRun(str(number), Path(), config, []) for number, config in enumerate(configs)]
    assert differences(runs)["ray.autoscale.most_gpus"] == ["8", "16", "None"]
