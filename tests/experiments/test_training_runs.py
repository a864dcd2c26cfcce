"""Which experiments agents are trained on."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlpto.experiments import tune
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.run_folder import members, read_run_config
from rlpto.experiments.sweep import open_sweep
from rlpto.experiments.training_runs import begin_training, provenance
from rlpto.io.errors import ConfigError
from rlpto.provisioning.registry import spec_of

from ..small import SMALL


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # Windows that the start heuristic did not finish all had the largest loss: rankings were noise.
        ({"simulator.max_hours": 6}, "simulator.max_hours: 6, but with agent.learns: windows the start heuristic has"),
        # Every loss was the smallest or the largest.
        ({"reward.time": 0}, "reward.time and reward.shortfall: both 0, but with agent.learns: windows losses"),
        # The last two loads were never played.
        (
            {"agent.loads": [0.5, 0.7, 0.9, 1.1], "agent.whole_windows.rollout": 4},
            "agent.loads: 4 loads, but agent.whole_windows.rollout plays 2 pairs of windows in an update",
        ),
    ],
)
def test_windows_that_teach_nothing_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        begin_training(load_config(SMALL, changes), tmp_path / "run", 1, fresh=False)
    assert str(error.value).startswith(said)
    begin_training(load_config(SMALL, changes | {"agent.learns": "decisions"}), tmp_path / "other", 1, fresh=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seeds", [1, 2])
def test_seeds_that_never_began_are_not_trained_later_with_their_old_configuration(tmp_path: Path, seeds: int) -> None:
    begin_training(load_config(SMALL), tmp_path, 3, fresh=False)  # and Ctrl-C before the first checkpoint
    (tmp_path / "seed-1" / "baselines").mkdir()
    (tmp_path / "seed-1" / "events.out.tfevents.1.host").touch()
    begin_training(load_config(SMALL, {"agent.envs": 9}), tmp_path, seeds, fresh=False)
    runs = members(tmp_path)
    assert len(runs) == seeds
    assert [read_run_config(run).agent.envs for run in runs] == [9] * seeds


def test_the_origin_of_an_agent_names_no_folders_of_its_machine(tmp_path: Path) -> None:
    files = {"provision": f"agent:file={tmp_path / 'nodes.safetensors'}", "forecast.demand": str(tmp_path / "demand")}
    origin = provenance(load_config("rented", files))
    assert origin["config"]["provision"] == "agent:file=nodes.safetensors"
    assert str(tmp_path) not in json.dumps(origin)


def test_a_provisioner_that_a_training_cannot_follow_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = load_config("rented", {"agent.learns": "windows", "simulator.max_hours": None, "provision": "reactive"})
    begin_training(config, tmp_path / "planned", 1, fresh=False)
    monkeypatch.setattr(Experiment, "provisioner", lambda *_: SimpleNamespace(name="mine"))
    with pytest.raises(ConfigError, match=r"^provision mine: .* derived from PlannedProvisioner$"):
        begin_training(config, tmp_path / "run", 1, fresh=False)
    assert not (tmp_path / "run").exists()


def test_a_provisioner_that_is_named_twice_is_tuned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "nodes_setup", lambda *_: None)
    monkeypatch.setattr(tune, "_tried", lambda _, provisioner: tune.Tried(spec_of(provisioner), 0.0, 0.0, 0.0))
    tried = tune.tune(load_config("rented"), ["spare", "spare"], lambda *_: None)["spare"]
    assert len(tried) == len({one.spec for one in tried}) > 1


def test_a_sweep_of_such_trainings_is_refused_too(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    config, space = tmp_path / "config.yaml", tmp_path / "space.yaml"
    config.write_text("simulator: {max_hours: 6}\n")
    space.write_text("agent.whole_windows.learning_rate: [0.1, 0.2]\n")
    with pytest.raises(ConfigError, match=r"^simulator\.max_hours: 6"):
        open_sweep(tmp_path / "sweep", config, [], space, lambda _: None, resume=False)
