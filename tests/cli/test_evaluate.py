import json
import os
import textwrap
from pathlib import Path

import pandas as pd
import pytest

from rlpto.experiments.config import load_config, resolved_yaml

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


def test_the_folder_alone_reproduces_the_run_in_any_number_of_processes(rlpto) -> None:
    assert rlpto("evaluate", "exp.yaml", "--no-report", "--quiet") == (0, "", "")
    rlpto("evaluate", "runs/small/config.resolved.yaml", "--no-report", "-q", "--run-dir", "again", "--jobs", 2)
    pd.testing.assert_frame_equal(untimed("runs/small"), untimed("again"))


def test_tables_and_comparisons_show_what_the_last_command_asked_for(rlpto) -> None:
    rlpto("evaluate", "exp.yaml", "--no-report", "-q", "--policies", "fifo,srtf")
    answer = rlpto("evaluate", "exp.yaml", "--no-report", "--policies", "fifo,las")
    assert "2 cells of earlier commands are kept in runs/small/cells and not shown" in answer.out
    rlpto("evaluate", "exp.yaml", "--no-report", "-q", "--policies", "fifo,las,srtf", "--run-dir", "other")
    assert set(pd.read_csv("runs/small/cells.csv")["policy"]) == {"fifo", "las", "lower bound"}
    compared = rlpto("compare", "runs/small", "other")
    assert "las" in compared.out
    assert "srtf" not in compared.out.partition("Policies by run")[2]


def test_jobs_that_are_repeated_to_reach_a_load_are_said_to_be(rlpto, project: Path) -> None:
    answer = rlpto("evaluate", "exp.yaml", "--policies", "fifo", "--set", "workload.load=4")
    assert answer.code == 0, answer.err
    sentence = "made of 60 recorded ones: each stands in it"
    assert sentence in " ".join(answer.out.split())
    assert sentence in (project / "runs/small/report.html").read_text()
    workload = json.loads((project / "runs/small/versions.json").read_text())["workload"]
    assert workload["recorded"] == 60
    assert workload["taken"] > 120


def test_windows_limit_and_seed_choose_what_is_run(rlpto) -> None:
    rlpto("evaluate", "exp.yaml", "--no-report", "-q", "--windows", "train", "--limit", 3, "--seed", 7)
    frame = pd.read_csv("runs/small/cells.csv")
    assert frame["window"].nunique() == 3
    assert frame["window"].str.startswith("train-").all()
    assert set(frame["seed"]) == {7}


def test_policies_take_over_from_each_other_at_set_times(rlpto) -> None:
    name = "fifo>600:equal_share>1000000:las"
    answer = rlpto("evaluate", "exp.yaml", "--no-report", "--policies", f"fifo,{name}")
    assert answer.code == 0, answer.err
    frame = pd.read_csv("runs/small/cells.csv")
    assert set(frame["policy"]) == {"fifo", name, "lower bound"}
    mean = frame.groupby("policy")["jct_mean"].mean()
    assert mean[name] < mean["fifo"]
    assert answer.out.count("only fifo, equal_share took decisions before the run ended") == 2


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--set", "simulator.intervall=3"], ["--set: simulator.intervall", "did you mean simulator.interval?"]),
        (["--policies", "fifo,lass"], ["lass", "did you mean las?"]),
        (["--policies", "fifo,,las"], ["--policies fifo,,las", "separated by commas"]),
        (["--set", "evaluation.reference=srtf"], ["evaluation.reference: srtf is not evaluated", "one of: fifo, las"]),
        (["--policies", "fifo:label=a,las:label=a"], ["policies: two are called a, expected a label of its own"]),
        (
            ["--set", "workload.source=follow"],
            ["workload.source: expected 'synthetic', 'trace', 'files', 'jobs' or 'frozen'"],
        ),
        (["--policies", "fifo>600:las>lass"], ["switch 'lass': expected SECONDS:POLICY"]),
        (["--policies", "fifo>600:las>500:srtf"], ["switch 500:srtf: expected a time later", "600 s"]),
        (["--policies", "fifo>600:lass"], ["no policy 'lass'; did you mean las?"]),
        (["--policies", "fifo>600:agent"], ["expected one of file=FILE and run=FOLDER"]),
        (["--policies", "fifo:backfil=1"], ["backfil", "did you mean backfill?"]),
        (["--policies", "index:weights=exp.yaml"], ["exp.yaml", "not a file of index weights"]),
        (["--set", "workload.path=no.parquet"], ["no.parquet: no such trace", "rlpto trace import"]),
        (["--set", "cluster.nodes=[{count: 1, gpus: 2}]"], ["wants 4 GPUs", "at most the 2 the cluster has"]),
        (["--set", "profiles.folder=nowhere"], ["nowhere"]),
        (["--set", "workload.windows.hours=20"], ["windows of 20 h do not fit", "expected a smaller windows.hours"]),
        (["--windows", "validation", "--set", "workload.windows.validation=0"], ["no validation windows"]),
        (["--set", "workload.skip_days=3"], ["workload.skip_days: 3, but the trace has"]),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(rlpto, project: Path, arguments, parts) -> None:
    rlpto("evaluate", "exp.yaml", *arguments).assert_refused(*parts)
    assert sorted(os.listdir(project)) == ["exp.yaml", "jobs.parquet"]


def test_a_folder_of_another_configuration_or_trace_is_refused_and_left_alone(rlpto, project: Path) -> None:
    rlpto("evaluate", "exp.yaml", "--no-report", "-q")
    before = {path: path.read_bytes() for path in (project / "runs/small").rglob("*") if path.is_file()}
    answer = rlpto("evaluate", "exp.yaml", "--set", "simulator.interval=30")
    answer.assert_refused("runs/small: holds a run with simulator.interval = 60.0, now it is 30.0", "--fresh")
    rlpto("trace", "generate", "--days", "1", "--rate", "0.2", "-o", "jobs.parquet", "-q")
    clipped = ("--set", "workload.mapping.oversized=clip", "--no-report", "-q")
    rlpto("evaluate", "exp.yaml", *clipped).assert_refused("runs/small")
    rlpto("train", "exp.yaml", *clipped[:2]).assert_refused("runs/small: holds a run with workload.mapping.oversized")
    assert before == {path: path.read_bytes() for path in (project / "runs/small").rglob("*") if path.is_file()}
    assert rlpto("evaluate", "exp.yaml", *clipped, "--fresh").code == 0
    Path("runs/small/last.zip").touch()  # a training, whose configuration must stay for it to be resumed
    rlpto("evaluate", "exp.yaml", "--fresh").assert_refused("oversized = clip, now it is error; use another --run-dir")


def test_weights_that_have_changed_do_not_mix_with_old_cells(rlpto) -> None:
    from rlpto.policies.index_weights import IndexWeights, save_weights

    save_weights(IndexWeights().vector(), Path("w.yaml"))
    arguments = ("evaluate", "exp.yaml", "--no-report", "-q", "--policies", "fifo,index:weights=w.yaml")
    assert rlpto(*arguments).code == 0
    assert rlpto(*arguments).code == 0
    save_weights(IndexWeights(held=3.25).vector(), Path("w.yaml"))
    rlpto(*arguments).assert_refused("w.yaml as it was before it changed", "--fresh")


PLUGINS = """
    import numpy as np
    from rlpto.core.cluster import Allocation
    from rlpto.core.policy import NoOptions


    class Wrong:
        summary, source, Options = "wrong", "a test", NoOptions

        def __init__(self, options):
            self.name = "wrong"

        def reset(self, seed):
            pass

        def __call__(self, state):
            return Allocation({wrong})
"""


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("np.full(len(state.jobs), -1)", "-1 GPUs"),
        ("np.full(len(state.jobs), np.nan)", "nan GPUs"),
        ("np.zeros(len(state.jobs) + 1, dtype=int)", "shape"),
        ("np.array(['many'] * len(state.jobs))", "expected whole numbers"),
    ],
)
def test_a_plug_in_that_returns_nonsense_is_named(rlpto, project: Path, monkeypatch, wrong: str, reason: str) -> None:
    site = project / "site"
    (site / "wrong-1.dist-info").mkdir(parents=True)
    (site / "wrong-1.dist-info/METADATA").write_text("Name: wrong\nVersion: 1\n")
    (site / "wrong-1.dist-info/entry_points.txt").write_text("[rlpto.policies]\nwrong = wrong_policy:Wrong\n")
    (site / "wrong_policy.py").write_text(textwrap.dedent(PLUGINS).format(wrong=wrong))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(__import__("sys").modules, "wrong_policy", raising=False)
    assert "wrong" in rlpto("policies").out
    answer = rlpto("evaluate", "exp.yaml", "--policies", "wrong", "-q")
    answer.assert_refused("policy wrong", reason)
    assert not (project / "runs/small/cells").exists(), "no cell is kept"
    assert not list(project.rglob("*.tmp"))


def test_ctrl_c_says_how_to_go_on_and_keeps_what_is_finished(rlpto, project: Path, monkeypatch) -> None:
    from rlpto.experiments.experiment import Experiment

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


def test_a_policy_may_go_by_a_label(rlpto) -> None:
    chosen = ["--policies", "fifo,las:label=short,levels=[60],fifo>600:srtf:label=s"]
    answer = rlpto("evaluate", "exp.yaml", "--no-report", *chosen, "--set", "evaluation.reference=short")
    assert answer.code == 0, answer.err
    assert "Paired differences from short" in answer.out
    assert set(pd.read_csv("runs/small/cells.csv")["policy"]) == {"fifo", "short", "fifo>600:s", "lower bound"}


def test_a_second_call_runs_only_what_is_missing(rlpto, project: Path) -> None:
    def cells() -> dict[str, int]:
        """When each finished cell was written."""
        return {path.name: path.stat().st_mtime_ns for path in (project / "runs/small/cells").glob("*.json")}

    rlpto("evaluate", "exp.yaml", "--no-report", "-q")
    before = cells()
    rlpto("evaluate", "exp.yaml", "--no-report", "-q", "--policies", "fifo,las,srtf", "--seeds", 2)
    after = cells()
    assert (len(before), len(after)) == (2 * 2, 3 * 2 * 2)
    assert all(after[name] == written for name, written in before.items())
    rlpto("evaluate", "exp.yaml", "--no-report", "-q", "--fresh")
    assert all(written > before[name] for name, written in cells().items())


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


def test_jobs_that_cannot_share_are_refused_before_anything_is_written(rlpto, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("share.yaml").write_text(
        "cluster: {nodes: [{count: 2, gpus: 2}]}\nsimulator: {share: 2, decide_on: events}\npolicies: [fifo]\n"
        "workload: {source: jobs, jobs: [{model: cifar10, epochs: 1, gpus: 4}]}\n"
    )
    rlpto("evaluate", "share.yaml").assert_refused("max_gpus 4, expected at most 2")
    assert not Path("runs").exists()
