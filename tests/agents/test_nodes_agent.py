"""Training of an agent that rents nodes, and the agent as a provisioner."""

from pathlib import Path

import numpy as np
import pytest

from rlpto.agents.archive import CHECKPOINT
from rlpto.agents.card import card_of
from rlpto.agents.checkpoint import Identity, export_agent
from rlpto.agents.settings import AgentSettings
from rlpto.agents.training import train
from rlpto.bench.leaderboard import agent_file
from rlpto.core.renting import LOOK, NodesState
from rlpto.envs.nodes import NodesSetup, play_windows
from rlpto.experiments.config import load_config, with_policies
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.nodes_environments import nodes_setup
from rlpto.forecasting import demand_network
from rlpto.forecasting.minute_averages import HALF_LIVES
from rlpto.io.archive import read_archive, write_archive
from rlpto.io.errors import CheckpointError, PolicyError
from rlpto.policies.registry import make_policy
from rlpto.policies.spec import parse_spec
from rlpto.provisioning.registry import make_provisioner
from tests.agents.test_training import stop_after
from tests.experiments.test_window_demand import of_trace

CHANGES = ["workload.windows.hours=6", "workload.windows.limit=2", "simulator.max_hours=6"]
IDENTITY = Identity("digest", 4, {})
SETTINGS = AgentSettings.model_validate(
    {
        "learns": "nodes", "steps": 512, "envs": 4, "evaluate_every": 256, "network": {"width": 8},
        "ppo": {"rollout": 32, "batch_size": 64, "epochs": 2, "learning_rate": 1e-2},
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def setup() -> NodesSetup:
    return nodes_setup(Experiment(load_config("rented", [*CHANGES, "provision=spare:gpus=4"])), "train")


@pytest.fixture(scope="module")
def trained(setup: NodesSetup, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nodes")
    train(setup, SETTINGS, folder, IDENTITY, setup)
    return folder


def agent(file: Path) -> object:
    return make_provisioner(parse_spec(f"agent:file={file}"))


def test_a_stopped_training_goes_on_as_if_it_never_had(setup, trained, tmp_path):
    train(setup, SETTINGS, tmp_path, IDENTITY, setup, stop=stop_after(2))
    assert train(setup, SETTINGS, tmp_path, IDENTITY, setup, resume=True).finished
    assert (tmp_path / "last.safetensors").read_bytes() == (trained / "last.safetensors").read_bytes()


def test_a_submission_finds_the_agent_that_rents_nodes(trained):
    file = trained / "last.safetensors"
    assert agent_file(f"fifo@agent:file={file}") == file
    assert agent_file("fifo@average") is None


def test_the_agent_of_a_file_decides_as_it_did_under_training(setup, trained, tmp_path):
    own = play_windows(setup, agent(trained / "last.safetensors"))
    export_agent(trained / "last.safetensors", tmp_path / "mine.safetensors")
    assert np.array_equal(own, play_windows(setup, agent(tmp_path / "mine.safetensors")))
    assert not np.array_equal(own, play_windows(setup, setup.heuristic))


@pytest.mark.slow
def test_an_agent_that_learnt_from_forecasts_gets_them_in_an_evaluation(tmp_path, monkeypatch):
    monkeypatch.setattr(demand_network, "MOST_UPDATES", 20)  # that there are forecasts counts here, not how good
    experiment = of_trace(tmp_path, "jobs.parquet", {}, *CHANGES)
    short = SETTINGS.model_copy(update={"steps": 128})
    train(nodes_setup(experiment, "train"), short, tmp_path / "run", IDENTITY)
    spec, window = f"fifo@agent:file={tmp_path / 'run' / 'last.safetensors'}", experiment.windows("test")[0]
    record = experiment.run_policy(experiment.policy(spec), window, 0, spec=spec)
    assert len(record.rented.time) > 60


def test_an_agent_for_other_nodes_is_refused(trained):
    decides = agent(trained / "last.safetensors")
    seen = {name: np.zeros(1) for name in LOOK.names}
    averages = np.zeros((1, 2, len(HALF_LIVES)))
    for size, boot, said in ((8.0, 300.0, "4 GPUs, but these have 8"), (4.0, 600.0, "300 s of boot time")):
        fixed = {"size": np.array([size]), "boot": np.array([boot]), "most": np.array([80.0])}
        state = NodesState(np.zeros(1), np.zeros(1), averages=averages, forecast=np.zeros((1, 0)), **fixed, **seen)
        with pytest.raises(PolicyError, match=said):
            decides(state)
    spec = f"fifo@agent:file={trained / 'last.safetensors'}"
    other = with_policies(load_config("rented", [*CHANGES, "cluster.nodes.0.rented.boot=600"]), [spec])
    with pytest.raises(PolicyError, match=r"last\.safetensors: agent for rented nodes of 300 s of boot time"):
        Experiment(other).check()


def test_an_agent_whose_heuristic_is_not_installed_is_named(trained, tmp_path):
    archive = read_archive(trained / "last.safetensors", (CHECKPOINT,))
    manifest = archive.manifest | {"nodes": archive.manifest["nodes"] | {"heuristic": "theirs:gpus=4"}}
    write_archive(tmp_path / "theirs.safetensors", manifest, archive.arrays, "a test")
    with pytest.raises(CheckpointError, match=r"theirs\.safetensors: its manifest .* \(no provisioner 'theirs'"):
        agent(tmp_path / "theirs.safetensors")


def test_an_agent_that_rents_nodes_says_so_in_its_card_and_where_it_allocates_gpus(trained, tmp_path):
    file = tmp_path / "mine.safetensors"
    export_agent(trained / "last.safetensors", file)
    card = card_of(file)
    assert "it decides how many nodes are rented, in a cluster" in card
    assert "more or fewer GPUs than the heuristic" in card
    assert "rlpto evaluate rented --policies fifo@agent:file=agent.safetensors,fifo@reactive\n" in card
    with pytest.raises(CheckpointError, match=r"an agent that rents nodes, .* used as POLICY@agent:file=.*mine"):
        make_policy(f"agent:file={file}")


def test_an_agent_that_allocates_gpus_rents_no_nodes():
    with pytest.raises(CheckpointError, match="expected one that rents nodes"):
        make_provisioner(parse_spec("pretrained:synthetic"))
