"""`rlpto train`, `export`, and what `evaluate` makes of agents."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlpto.agents.archive import CHECKPOINT, NOT_TRAINED
from rlpto.agents.training_loop import TrainingResult
from rlpto.experiments.config import load_config
from rlpto.experiments.sweep import read_space
from rlpto.io.archive import read_archive
from rlpto.io.errors import ConfigError, TrainingError
from rlpto.workloads.trace import make_trace, write_trace

pytestmark = pytest.mark.usefixtures("small_agent")

AGENT = """
env: {max_jobs: 6, horizon: 2, episode: {min_hours: 0.3, max_hours: 1}}
agent:
  learns: decisions
  steps: 192
  envs: 4
  evaluate_every: 128
  ppo: {rollout: 16, batch_size: 32, epochs: 2}
  network: {width: 8}
  device: cpu
"""
FAST = ("--set", "agent.steps=64")


@pytest.fixture
def small_agent(project: Path) -> None:
    """The small experiment, with an agent that is trained in a moment."""
    with (project / "exp.yaml").open("a") as file:
        file.write(AGENT)


def steps(folder: Path) -> int:
    """Steps that the last checkpoint of a run holds."""
    return int(read_archive(folder / "last.safetensors", (CHECKPOINT,)).manifest["steps"])


def read_cells(path: Path) -> pd.DataFrame:
    """A table of cells, in which agents that validation left at their start go by their plain labels."""
    table = pd.read_csv(path)
    return table.assign(policy=table["policy"].str.removesuffix(f" ({NOT_TRAINED})"))


def test_from_training_to_an_exported_agent_that_is_evaluated(rlpto, project: Path) -> None:
    answer = rlpto("train", "exp.yaml", "--seed", 3)
    assert answer.code == 0, answer.err
    assert "192 steps, best validation reward per job" in answer.out
    run = project / "runs/small"
    names = {path.name for path in run.iterdir()}
    assert {"best.safetensors", "last.safetensors", "baselines", "validation.csv", "config.resolved.yaml"} <= names
    history = pd.read_csv(run / "validation.csv")
    assert history["steps"].tolist() == [0, 128, 192]
    assert {"reward_per_job", "jct_p99"} <= set(history.columns)

    answer = rlpto("export", "runs/small", "-o", "small.safetensors")
    assert answer.code == 0, answer.err
    assert (project / "small.safetensors").stat().st_size < 2_000_000

    answer = rlpto("evaluate", "--run", "runs/small", "--policies", "all", "--no-report")
    assert answer.code == 0, answer.err
    table = read_cells(run / "evaluation/cells.csv")
    assert set(table["policy"]) == {"agent", "fifo", "las", "lower bound"}
    agent = table[table["policy"] == "agent"].set_index("window")["reward"]

    answer = rlpto(
        "evaluate", "exp.yaml", "--policies", "agent:file=small.safetensors,fifo", "--no-report", "--run-dir", "e"
    )
    assert answer.code == 0, answer.err
    again = read_cells(project / "e/cells.csv")
    exported = again[again["policy"] == "agent:file=small.safetensors"].set_index("window")["reward"]
    assert exported.to_dict() == agent.to_dict()


@pytest.mark.slow
def test_an_agent_that_learns_from_windows_is_evaluated_and_planned_with(rlpto, project: Path) -> None:
    windows = ("--set", "agent.learns=windows", "--set", "agent.whole_windows={windows: 64, rollout: 16}")
    answer = rlpto("train", "exp.yaml", *windows)
    assert answer.code == 0, answer.err
    assert "64 windows, best validation gain over the start" in answer.out
    assert "note:" not in answer.out
    rlpto("train", "exp.yaml", *windows).assert_refused("holds a training")
    assert rlpto("train", "--resume", "runs/small").code == 0
    policies = "index:weights=runs/small/agent.yaml,planner:base=runs/small/agent.yaml,perturbations=2"
    answer = rlpto("evaluate", "--run", "runs/small", "--policies", policies, "--no-report")
    assert answer.code == 0, answer.err
    rewards = read_cells(project / "runs/small/evaluation/cells.csv").pivot(index="window", columns="policy")["reward"]
    assert len(rewards.columns) == 4  # the bound is one
    np.testing.assert_array_equal(rewards["agent"], rewards["index:weights=runs/small/agent.yaml"])
    assert rlpto("train", "exp.yaml", *windows, "--fresh", "-q").code == 0


@pytest.mark.slow
def test_an_agent_is_evaluated_next_to_policies_by_label_and_on_any_other_trace(rlpto, project: Path) -> None:
    rlpto("train", "exp.yaml", "-q", *FAST, "--set", 'policies=[fifo,"index:label=mine"]')
    answer = rlpto("evaluate", "--run", "runs/small", "--policies", "agent,mine", "--no-report")
    assert answer.code == 0, answer.err
    assert set(read_cells(project / "runs/small/evaluation/cells.csv")["policy"]) == {"agent", "mine", "lower bound"}
    rlpto("evaluate", "--run", "runs/small", "--policies", "agent,yours").assert_refused("yours")
    other = {"submit_time": 60.0 * np.arange(90), "duration": 300.0 + 10 * np.arange(90), "gpus": 1 + np.arange(90) % 4}
    write_trace(make_trace(other, source="ninety jobs"), project / "other.parquet")
    answer = rlpto("evaluate", "--run", "runs/small", "--trace", "other.parquet", "--windows", "all", "--no-report")
    assert answer.code == 0, answer.err
    table = read_cells(project / "runs/small/evaluation-other/cells.csv")
    assert set(table["policy"]) == {"agent", "fifo", "mine", "lower bound"}
    assert (table["jobs"] > 0).all()
    rlpto("evaluate", "--run", "runs/small", "--windows", "all").assert_refused("--windows all", "--trace FILE")


@pytest.mark.slow
def test_seeds_are_trained_side_by_side_as_each_alone_and_evaluated_together(rlpto, project: Path) -> None:
    for options in (("--seeds", 2, "--jobs", 2), ("--seed", 1, "--run-dir", "alone")):
        answer = rlpto("train", "exp.yaml", *options, *FAST)
        assert answer.code == 0, answer.err
    first, second = (read_archive(project / f"runs/small/seed-{k}/last.safetensors", (CHECKPOINT,)) for k in (0, 1))
    alone = read_archive(project / "alone/last.safetensors", (CHECKPOINT,)).group("policy")
    for name, array in second.group("policy").items():
        np.testing.assert_array_equal(array, alone[name])
    assert [first.manifest["seed"], second.manifest["seed"]] == [0, 1]
    assert first.manifest["digest"] == second.manifest["digest"]
    assert any((array != second.arrays[name]).any() for name, array in first.arrays.items() if "policy" in name)
    answer = rlpto("evaluate", "--run", "runs/small", "--policies", "fifo", "--no-report", "--limit", 1)
    assert answer.code == 0, answer.err
    table = read_cells(project / "runs/small/evaluation/cells.csv")
    assert set(table["policy"]) == {"agent-0", "agent-1", "fifo", "lower bound"}
    rlpto("train", "--resume", "runs/small", "--seeds", 1).assert_refused("--seeds 1: expected 2, the number of seeds")


@pytest.mark.slow  # a Ray cluster
def test_a_sweep_ranks_its_trials_and_goes_on_where_one_is_missing(rlpto, project: Path) -> None:
    pytest.importorskip("optuna")
    space = "agent.ppo.learning_rate: {low: 1e-4, high: 1e-2, log: true}\nagent.loads: [null]\n"
    space += "cluster.nodes: [[{count: 2, gpus: 4, rented: null}]]\n"
    (project / "space.yaml").write_text(space)
    fast = (*FAST, "--run-dir", "sweep", "-q")
    answer = rlpto("sweep", "exp.yaml", "--space", "space.yaml", "--trials", 2, *fast)
    assert answer.code == 0, answer.err
    table = pd.read_csv("sweep/sweep.csv")
    assert len(table) == 2
    assert table["reward"].is_monotonic_decreasing
    assert table["agent.ppo.learning_rate"].between(1e-4, 1e-2).all()
    assert {path.name for path in Path("sweep/trials").iterdir()} == {"0", "1"}
    assert all(steps(Path("sweep/trials") / str(trial)) == 64 for trial in table["trial"])
    again = rlpto("sweep", "exp.yaml", "--space", "space.yaml", "--trials", 3, "--jobs", 1, "--resume", *fast)
    assert again.code == 0, again.err
    longer = pd.read_csv("sweep/sweep.csv")
    assert longer["reward"].is_monotonic_decreasing
    pd.testing.assert_frame_equal(longer[longer["trial"] < 2].reset_index(drop=True), table)
    assert longer["agent.ppo.learning_rate"].nunique() == 3
    rlpto("sweep", "exp.yaml", "--space", "space.yaml", *fast).assert_refused("holds a sweep", "--resume")


def test_every_seed_that_fails_is_named(rlpto, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(runs: list[Path], _: object) -> Iterator[tuple[Path, TrainingError]]:
        yield from ((run, TrainingError(f"{run}: broken")) for run in runs)

    monkeypatch.setattr("rlpto.experiments.parallel.one_by_one", lambda *_: False)
    monkeypatch.setattr("rlpto.experiments.parallel.train_all", fail)
    answer = rlpto("train", "exp.yaml", "--seeds", 3, "--jobs", 1)
    assert answer.code == 2
    said = [line for line in answer.err.splitlines() if line.startswith("rlpto: error: ")]
    assert sorted(said) == [f"rlpto: error: runs/small/seed-{seed}: broken" for seed in range(3)]


def test_the_best_of_a_sweep_is_said_as_options_and_it_resumes_only_as_it_began(
    rlpto, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")

    def train_all(runs: list[Path], _: object) -> Iterator[tuple[Path, TrainingResult]]:
        """A later trial is better; the list grows meanwhile."""
        for run in runs:
            yield run, TrainingResult(64, True, float(run.name))

    monkeypatch.setattr("rlpto.experiments.parallel.train_all", train_all)
    space = "agent.seed: [null, 7]\ncluster.nodes: [[{count: 2, gpus: 4, rented: null}]]\n"
    (project / "space.yaml").write_text(space)
    sweep = ("sweep", "exp.yaml", "--space", "space.yaml", "--trials", 6, "--jobs", 1)
    answer = rlpto(*sweep)
    assert answer.code == 0, answer.err
    seed = load_config("runs/small-sweep/trials/5/config.resolved.yaml").agent.seed
    options = f"--set agent.seed={'null' if seed is None else seed} --set 'cluster.nodes=[{{count: 2, gpus: 4, rented"
    assert f"best validation reward per job +5.0000 with {options}: null}}]'\n" in answer.out
    shorter = rlpto(*sweep, "--resume", "--set", "agent.steps=64")
    shorter.assert_refused("runs/small-sweep: a sweep with agent.steps = 192, now it is 64")


def test_what_cannot_be_trained_or_resumed_is_refused_in_one_line(rlpto, project: Path) -> None:
    rlpto("train").assert_refused("expected an experiment file", "--resume RUN")
    rlpto("train", "--resume", "runs/none").assert_refused("runs/none", "config.resolved.yaml")
    rlpto("export", "runs/none", "-o", "x.safetensors").assert_refused("runs/none", "rlpto train")
    rlpto("evaluate", "--run", "runs/none").assert_refused("runs/none")
    rlpto("train", "exp.yaml", "--workers", "head..local:6379").assert_refused("head..local is no name of a host")
    far = ("train", "exp.yaml", "--workers", "127.0.0.1:1")
    rlpto(*far, "--jobs", 2).assert_refused("--jobs 2", "without --workers")
    rlpto(*far, "--cluster", "ray").assert_refused("--workers", "--cluster sim")
    rlpto(*far).assert_refused("no Ray cluster at 127.0.0.1:1")
    assert not (project / "runs").exists()
    rlpto("train", "exp.yaml", "-q", *FAST)
    rlpto("train", "exp.yaml").assert_refused("holds a training", "--resume runs/small", "--fresh")
    rlpto("train", "--resume", "runs/small", "--set", "agent.ppo.clip=0.3").assert_refused(
        "agent.ppo.clip = 0.2", "0.3", "--run-dir"
    )
    rlpto("train", "exp.yaml", "--resume", "runs/small").assert_refused("agent.steps = 64", "now it is 192")
    rlpto("train", "--resume", "runs/small", "--seeds", 3).assert_refused("--seeds 3: expected 1, the number of seeds")
    rlpto("train", "--resume", "runs/small", "--fresh").assert_refused("--fresh: removes a training")
    best = project / "runs/small/best.safetensors"
    best.write_bytes(best.read_bytes()[:2000])
    rlpto("evaluate", "--run", "runs/small").assert_refused("best.safetensors", "truncated")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("provision=forcast", "no provisioner 'forcast'; did you mean forecast?"),
        ("provision=forecast:level=0.7", "option level: 0.7: expected mean"),
        ("forecast.demand=none.safetensors", "none.safetensors: cannot read the file"),
        ("env.start=none.yaml", "none.yaml: cannot read the file"),
    ],
)
def test_a_training_on_rented_nodes_that_cannot_begin_leaves_no_folder(rlpto, project: Path, change, said) -> None:
    rlpto("train", "rented", "--set", change).assert_refused(said)
    assert not (project / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint_to_go_on_from(project: Path, number: signal.Signals) -> None:
    run = project / "runs/small"
    long = (*FAST, "--set", "agent.steps=100000", "--set", "workload.windows.validation=0")
    command = [sys.executable, "-m", "rlpto.cli.main", "train", "exp.yaml", *long]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not ((run / "last.safetensors").exists() and steps(run) > 0):
            time.sleep(0.05)
        process.send_signal(number)
        said = process.stderr.read()
    assert process.returncode == 130, said
    assert "go on with: rlpto train --resume runs/small" in said
    assert "Traceback" not in said


@pytest.mark.slow  # a Ray cluster
def test_a_signal_ends_seeds_that_are_trained_side_by_side(project: Path) -> None:
    long = [
        "--set",
        "agent.learns=windows",
        "--set",
        "agent.whole_windows.evaluate_every=16",
        "--seeds",
        "2",
        "--jobs",
        "2",
    ]
    command = [sys.executable, "-m", "rlpto.cli.main", "train", "exp.yaml", *long]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        while process.poll() is None and not (project / "runs/small/seed-0/last.safetensors").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate()
    assert process.returncode == 130, said
    assert "go on with: rlpto train --resume runs/small" in said
    assert "note: agent.steps counts where agent.learns is decisions" in out


@pytest.mark.parametrize(
    "wrong", ["3", "[]", "{low: 2}", "{low: 3, high: 2}", "{low: 0, high: 1, log: true}", "{low: a, high: b}"]
)
def test_a_space_that_is_none_is_refused_with_its_line(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "space.yaml").write_text(f"agent.ppo.epochs: [1, 2]\nagent.ppo.clip: {wrong}\n")
    with pytest.raises(ConfigError, match=r"space\.yaml:2: agent\.ppo\.clip.*low below high"):
        read_space(tmp_path / "space.yaml")


def test_what_cannot_be_swept_is_refused_and_what_it_waits_for_said(rlpto, project: Path) -> None:
    pytest.importorskip("optuna")
    sweep = ("sweep", "exp.yaml", "--space", "space.yaml")
    (project / "space.yaml").write_text("agent.ppo.clib: [0.1, 0.2]\n")
    rlpto(*sweep).assert_refused("space.yaml: agent.ppo.clib", "agent.ppo.clip")
    (project / "space.yaml").write_text("agent.ppo.clip: [0.1, 0.2]\n")
    rlpto(*sweep, "--resume").assert_refused("runs/small-sweep")
    waited, refused = rlpto(*sweep, "--set", "workload.windows.validation=0").err.splitlines()
    assert waited == "rlpto: checking that trials can be compared on validation windows"
    assert refused.startswith("rlpto: error: exp.yaml: no validation windows")
    assert not (project / "runs").exists()


def test_a_quiet_tuning_prints_nothing(rlpto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlpto.experiments.tune.tune", lambda *_: {})
    assert rlpto("tune", "rented", "-q") == (0, "", "")
