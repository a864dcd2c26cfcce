"""The trained agent as a policy: the same decisions as in the environments it has learned in."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from rlpto.agents.archive import AGENT, CHECKPOINT, FORMATS, INDEX_WEIGHTS, NOT_TRAINED, TRAINED, state_of
from rlpto.agents.checkpoint import export_agent
from rlpto.agents.policy import Agent, AgentOptions, shown_label
from rlpto.agents.ppo import JobSetPolicy
from rlpto.agents.trained import TrainedAgent, agent_of
from rlpto.agents.validation import validate
from rlpto.core.cluster import ClusterShape, ClusterState
from rlpto.envs.episodes import EnvSetup, action_space, observation_space
from rlpto.envs.features import JOB_FEATURES
from rlpto.envs.observation import Observation
from rlpto.envs.sb3 import SB3ClusterEnv
from rlpto.envs.settings import EnvSettings
from rlpto.experiments.training_runs import summary
from rlpto.io import paths
from rlpto.io.archive import read_archive, write_archive
from rlpto.io.errors import CheckpointError, ConfigError, PolicyError
from rlpto.io.paths import example_config, example_names
from rlpto.policies.registry import is_complete, make_policy, own_policies
from tests.agents.helpers import SIMULATOR, make_settings, make_setup, schedule, train_small, workload
from tests.builders import make_cluster


def make(settings: EnvSettings, trained: bool = True) -> JobSetPolicy:
    """A network; `trained`: with weights that are not zero anywhere."""
    torch.manual_seed(0)
    network = JobSetPolicy(observation_space(settings), action_space(), lambda _: 1e-3, width=16)
    if trained:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def random_agent(setup: EnvSetup) -> TrainedAgent:
    """An agent that has learned nothing but does something else in every state."""
    return TrainedAgent(setup.settings, setup.start, make(setup.settings))


def test_acts_as_the_network_does_in_the_environments() -> None:
    setup = make_setup()
    trained = random_agent(setup)
    env = SB3ClusterEnv(setup, 3, 0)
    seen = env.reset()
    for _ in range(20):
        theirs, _ = trained.network.predict(seen, deterministic=True)
        ours = trained.act(Observation(**seen))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        seen, *_ = env.step(ours)


def test_an_agent_that_learnt_from_decisions_can_be_copied_and_pickled() -> None:
    agent, jobs = Agent(trained=random_agent(make_setup())), workload(8).jobs
    finished = schedule(agent, jobs).jobs.finish_time
    for other in (copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
        np.testing.assert_array_equal(schedule(other, jobs).jobs.finish_time, finished)


@pytest.mark.parametrize("hold", [0.0, 400.0])
def test_a_schedule_earns_what_the_fleet_says(hold: float) -> None:
    setup = make_setup((1,), hold=hold)
    trained = random_agent(setup)
    agent = Agent(trained=trained)
    record, again = (schedule(agent, workload(1).jobs, seed=1) for _ in range(2))
    np.testing.assert_array_equal(record.jobs.finish_time, again.jobs.finish_time)  # a reset forgets what is held
    found = validate(setup, trained)
    np.testing.assert_allclose(found.parts[0], record.decisions.reward.sum(axis=0), rtol=1e-9)
    jct = record.jobs.finish_time - record.jobs.submit_time
    assert found.metrics["jct_mean"] == pytest.approx(jct.mean())
    assert found.metrics["rescales_per_job"] == pytest.approx(record.jobs.rescales.mean())
    assert found.metrics["makespan"] == pytest.approx(record.jobs.finish_time.max() - record.jobs.submit_time.min())


def test_exported_agents_hold_no_more_than_needed_and_a_run_without_a_best_is_used_from_its_last(
    decided: Path, tmp_path: Path
) -> None:
    export_agent(decided / "best.safetensors", tmp_path / "agent.safetensors")
    archive = read_archive(tmp_path / "agent.safetensors", (AGENT,))
    assert all(name.startswith("policy/") for name in archive.arrays)
    assert archive.manifest["provenance"] == {"config": "a test"}
    (tmp_path / "last.safetensors").write_bytes((decided / "last.safetensors").read_bytes())
    given = (f"agent:run={tmp_path}", f"agent:file={decided}/last.safetensors")
    mine, its = (schedule(make_policy(spec), workload(9).jobs) for spec in given)
    np.testing.assert_array_equal(mine.jobs.finish_time, its.jobs.finish_time)


def test_pretrained_agents_go_by_their_name(decided: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pretrained").mkdir()
    export_agent(decided / "best.safetensors", tmp_path / "pretrained" / "small.safetensors")
    monkeypatch.setattr(paths, "EXAMPLES", tmp_path)
    assert make_policy("pretrained:small").name == "pretrained:small"
    assert make_policy("pretrained:agent=small").name == "pretrained:agent=small"
    with pytest.raises(ConfigError, match="no pretrained agent 'large': expected one of small"):
        make_policy("pretrained:large")
    listed = own_policies()
    assert not is_complete(listed["agent"])
    assert not is_complete(listed["pretrained"])


@pytest.mark.parametrize("name", example_names("pretrained", ".safetensors"))
def test_an_agent_that_ships_as_trained_is_trained_and_can_be_used(name: str) -> None:
    path = example_config(name) or Path()
    archive = read_archive(path, FORMATS)
    if INDEX_WEIGHTS not in archive.manifest:
        assert agent_of(archive, path).env.max_jobs == archive.manifest["env"]["max_jobs"]
    Agent(AgentOptions(file=path))
    assert state_of(archive.manifest, archive.arrays) == TRAINED
    assert archive.manifest["steps"] > 0


def test_a_best_checkpoint_from_before_the_first_step_says_so(tmp_path: Path) -> None:
    # Steps so small that no later checkpoint is better.
    outcome = train_small(tmp_path / "run", settings=make_settings(ppo={"learning_rate": 1e-12}))
    assert outcome.best_steps == 0
    assert f"holds the {NOT_TRAINED}" in summary(tmp_path / "run", outcome)
    for name, state in (("best.safetensors", NOT_TRAINED), ("last.safetensors", TRAINED)):
        assert read_archive(tmp_path / "run" / name, FORMATS).manifest["state"] == state
    _, exported = export_agent(tmp_path / "run" / "best.safetensors", tmp_path / "agent.safetensors")
    assert exported == read_archive(tmp_path / "agent.safetensors", FORMATS).manifest["state"] == NOT_TRAINED
    spec = f"agent:label=mine,run={tmp_path / 'run'}"
    assert shown_label(spec) == f"mine ({NOT_TRAINED})"
    assert shown_label(f"fifo>3600:{spec}") == f"fifo>3600:mine ({NOT_TRAINED})"
    assert shown_label(f"agent:label=mine,file={tmp_path / 'run' / 'last.safetensors'}") == "mine"
    assert shown_label("agent:label=mine,file=gone.safetensors") == "mine"


def _rewrite(path: Path, **changes: object) -> None:
    """Change entries of a file's manifest, and of what its numbers mean."""
    archive = read_archive(path, (CHECKPOINT, AGENT))
    manifest = {**archive.manifest, "network": changes.pop("network", archive.manifest["network"])}
    manifest["meaning"] = {**archive.manifest["meaning"], **changes}
    write_archive(path, manifest, archive.arrays, "a test")


def _nan(path: Path) -> None:
    archive = read_archive(path, (CHECKPOINT, AGENT))
    arrays = {**archive.arrays, "policy/action_net.weight": archive.arrays["policy/action_net.weight"] * np.nan}
    write_archive(path, archive.manifest, arrays, "a test")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_nan, "action_net.weight holds NaN"),
        (partial(_rewrite, observation=0), "where observation meant something else"),
        (partial(_rewrite, job_features=["colour", *JOB_FEATURES[1:]]), "where job_features meant something else"),
        (partial(_rewrite, network={"width": 16}), "do not fit the network"),
    ],
)
def test_broken_files_are_refused_with_the_reason(
    decided: Path, tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "agent.safetensors"
    export_agent(decided / "best.safetensors", path)
    Agent(AgentOptions(file=path))
    damage(path)
    with pytest.raises(CheckpointError, match=reason) as refused:
        Agent(AgentOptions(file=path))
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_cluster_without_gpus_is_refused() -> None:
    setup = make_setup()
    agent = Agent(trained=random_agent(setup))
    cluster = make_cluster(workload(1).jobs, setup.tables, interval=SIMULATOR.interval)
    cluster.advance()
    state: ClusterState = replace(cluster.state(), shape=ClusterShape())
    with pytest.raises(PolicyError, match="the cluster has no GPUs"):
        agent(state)
    waiting = replace(cluster.state(), shape=cluster.state().shape.with_up([False] * len(cluster.state().shape)))
    assert agent(waiting).gpus.tolist() == [0] * len(waiting.jobs), "all nodes down: wait for one"


def see(network: JobSetPolicy, present: int) -> dict[str, torch.Tensor]:
    """An observation with `present` jobs."""
    rng = np.random.default_rng(0)
    space = network.observation_space
    seen = {name: rng.normal(size=(1, *(part.shape or ()))).astype(np.float32) for name, part in space.items()}
    seen["mask"][:] = 0.0
    seen["mask"][:, :present] = 1.0
    seen["jobs"][:, present:] = 0.0
    return {name: torch.as_tensor(part) for name, part in seen.items()}


def out(network: JobSetPolicy, seen: dict[str, torch.Tensor]) -> tuple[np.ndarray, float]:
    """What the action head says , and the value."""
    with torch.no_grad():
        features = network.extract_features(seen)
        head = network.action_net(network.mlp_extractor.forward_actor(features))[0].numpy()
        value = float(network.predict_values(seen)[0, 0])
    return head, value


def test_the_same_weights_serve_any_number_of_jobs_in_any_order() -> None:
    small, large = make(EnvSettings(max_jobs=8)), make(EnvSettings(max_jobs=256), trained=False)
    large.load_state_dict(small.state_dict())
    seen, wide = see(small, 5), see(large, 5)
    order = torch.as_tensor([3, 0, 4, 1, 2, 5, 6, 7])
    wide["jobs"][:, :8], wide["cluster"], wide["forecast"] = seen["jobs"][:, order], seen["cluster"], seen["forecast"]
    (head, value), (wide_head, wide_value) = out(small, seen), out(large, wide)
    assert wide_value == pytest.approx(value, abs=1e-5)
    np.testing.assert_allclose(wide_head, head, atol=1e-5)
