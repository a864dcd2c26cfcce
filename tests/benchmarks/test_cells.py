"""The studies of `make results`, with tuned indices in the place of trained agents."""

import sys
from pathlib import Path

import numpy as np
import pytest

from rlpto.experiments.experiment import Experiment
from rlpto.io.errors import ConfigError

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import _studies  # noqa: E402
import _study_agents as agents  # noqa: E402

SMALL = """
name: small
cluster: {nodes: [{count: 4, gpus: 4}]}
workload:
  days: 4
  load: 0.9
  windows: {hours: 4, train: 0.5, validation: 0, test: 0.5}
  mapping: {oversized: skip}
policies: [fifo, equal_share, "index:label=tuned_index,weights=%s"]
evaluation: {reference: fifo}
"""
MEMBERS = {"agent-0", "agent-1"}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _studies.Plan:
    """A small workload; agents of two seeds are the two-parameter index and one with other weights."""
    config = tmp_path / "small.yaml"
    weights = ROOT / "configs" / "tuned" / "quickstart.yaml"
    config.write_text(SMALL % weights)
    monkeypatch.setattr(_studies, "config_file", lambda _: config)

    specs = ["index:label=agent-0", f"index:label=agent-1,weights={weights}"]
    monkeypatch.setattr(agents, "agents", lambda *_: specs)
    return _studies.Plan(
        folder=tmp_path,
        cells=tmp_path / "cells",
        workloads=("synthetic",),
        loads=(0.5, 0.9),
        seeds=2,
        draws=2,
        windows=3,
    )


@pytest.mark.slow
def test_rewards_compare_the_mean_agent_and_no_cell_runs_twice(plan: _studies.Plan, monkeypatch) -> None:
    found = agents.rewards(plan)
    assert [row["load"] for row in found.rows] == [0.5, 0.9]
    above = 0
    for row in found.rows:
        cells = agents.cells_at(plan, "synthetic", row["load"])
        assert set(cells["policy"]) == {"fifo", "equal_share", "tuned_index", "lower bound", "agent", *MEMBERS}
        here = cells.pivot_table(index="window", columns="policy", values="reward")
        np.testing.assert_allclose(here["agent"], (here["agent-0"] + here["agent-1"]) / 2)
        second = here[["fifo", "equal_share", "tuned_index"]].mean().idxmax()
        ahead = _studies.difference(cells, "agent", second)
        above += ahead.low > 0
        assert row["runner-up"].startswith(f"{second} ")
        assert ahead.estimate == pytest.approx((here["agent"] - here[second]).mean())
        assert row["agent - runner-up"] == _studies.shown(ahead, "+.2f")
        assert row["windows x draws"] == "3 x 2"
        assert (here["lower bound"] >= here["agent"]).all()
    assert found.figures["cells where the agent's total reward is above every other policy's"] == above

    def never(*_: object) -> None:
        raise AssertionError("a finished cell was run again")

    monkeypatch.setattr(Experiment, "run_policy", never)
    assert agents.rewards(plan) == found
    means = {row["policy"]: row for row in agents.by_policy(plan).rows}
    assert means.keys() == {"fifo", "equal_share", "tuned_index", "lower bound", "agent"}
    assert float(means["lower bound"]["synthetic 0.9"]) >= float(means["agent"]["synthetic 0.9"])


@pytest.mark.slow
def test_other_sizes_of_cluster_are_compared_with_that_of_the_training(plan: _studies.Plan, monkeypatch) -> None:
    monkeypatch.setattr(agents, "SIZES", {4: 2, 8: 1})
    monkeypatch.setattr(agents, "HOME_NODES", 4)
    monkeypatch.setattr(agents, "decision_latency", lambda _: 7.0)
    found = agents.scale(plan)
    assert [row["GPUs"] for row in found.rows] == [16, 32]
    home, other = (float(row["normalised"]) for row in found.rows)
    furthest = found.figures["reward at other sizes, normalised: furthest from that at 64 GPUs"]
    assert furthest == pytest.approx(abs(home - other), abs=2e-3)


def test_a_training_is_run_once_and_another_one_in_its_place_is_refused(plan: _studies.Plan, monkeypatch) -> None:
    commands: list[list[str]] = []

    def process(words: list[object]) -> int:
        commands.append([*map(str, words)])
        run = plan.folder / "training" / "synthetic-main-1"
        run.mkdir(parents=True, exist_ok=True)
        (run / "last.safetensors").write_text("a checkpoint")
        return 1 if len(commands) == 1 else 0

    monkeypatch.setattr(_studies, "exit_code", process)
    short = plan.model_copy(update={"training": 1000})
    with pytest.raises(ConfigError, match="synthetic-main-1: training ended with exit code 1"):
        _studies.trained(short, "synthetic", _studies.MAIN, (), 1)
    run = _studies.trained(short, "synthetic", _studies.MAIN, (), 1)
    assert _studies.trained(short, "synthetic", _studies.MAIN, (), 1) == run
    assert len(commands) == 2
    for command in commands:  # one that is resumed is refused if it has other settings
        assert {"agent.loads=[0.5,0.9]", "agent.whole_windows.windows=1000", "--seed"} <= set(command)
    assert "--resume" in commands[1]
    with pytest.raises(ConfigError, match="a training with other settings is there"):
        _studies.trained(plan, "synthetic", _studies.MAIN, (), 1)


def test_a_command_ends_by_itself_after_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        """The first Ctrl-C comes while it runs; it then ends in its own time."""

        returncode, waits = None, 0

        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> "Process":
            return self

        def __exit__(self, *_: object) -> None: ...

        def poll(self) -> int | None:
            return self.returncode

        def wait(self) -> None:
            Process.waits += 1
            if self.waits == 1:
                raise KeyboardInterrupt
            self.returncode = 130

    monkeypatch.setattr(_studies.subprocess, "Popen", Process)
    with pytest.raises(KeyboardInterrupt):
        _studies.exit_code(["train"])
    assert Process.waits == 2
