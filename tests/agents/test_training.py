"""Training from decisions, in simulation and on clusters that come one at a time; those are simulated here, too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlpto.agents.archive import CHECKPOINT
from rlpto.agents.checkpoint import Identity, restore
from rlpto.agents.ppo import TimedPPO, TimedRolloutBuffer, falling
from rlpto.agents.settings import LAST
from rlpto.agents.trained import StartingAgent
from rlpto.agents.training import train
from rlpto.agents.training_loop import TrainingResult
from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.episodes import ExternalSetup, action_space, observation_space
from rlpto.envs.sb3 import SB3ClusterEnv
from rlpto.envs.settings import EnvSettings
from rlpto.io.archive import Archive, read_archive, write_archive
from rlpto.io.errors import CheckpointError, ConfigError, TrainingError
from rlpto.simulator.cluster import SimulatedCluster
from tests.agents.helpers import (
    IDENTITY,
    NODES,
    QUEUE,
    REWARD,
    SIMULATOR,
    TABLES,
    make_settings,
    make_setup,
    train_small,
    workload,
)
from tests.slow import few


def last(folder: Path) -> Archive:
    return read_archive(folder / "last.safetensors", (CHECKPOINT,))


def stop_after(checks: int) -> Callable[[], bool]:
    """Asks to stop once it was looked at that many times."""
    left = [checks]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    return stop


def test_a_resumed_training_is_bit_for_bit_one_that_was_never_stopped(tmp_path: Path) -> None:
    setup = make_setup()
    settings = make_settings()
    whole = train_small(tmp_path / "whole", setup, settings)
    assert whole.finished
    for checks in (2, 1):
        stopped = train_small(tmp_path / "parts", setup, settings, stop=stop_after(checks), resume=checks == 1)
        assert not stopped.finished
    resumed = train_small(tmp_path / "parts", setup, settings, resume=True)
    assert resumed == whole
    assert (tmp_path / "whole/validation.csv").read_bytes() == (tmp_path / "parts/validation.csv").read_bytes()
    one, other = last(tmp_path / "whole"), last(tmp_path / "parts")
    assert one.manifest["random"] == other.manifest["random"]
    assert one.manifest["history"] == other.manifest["history"]
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert array.tobytes() == other.arrays[name].tobytes(), name


def test_checkpoints_that_cannot_be_resumed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.safetensors"

    def refused(reason: str, identity: Identity = IDENTITY) -> None:
        with pytest.raises(CheckpointError, match=reason):
            train_small(tmp_path, resume=True, identity=identity)

    refused(r"last\.safetensors: cannot read the file: no such file")
    train_small(tmp_path, stop=stop_after(1))
    before = path.read_bytes()
    refused("other settings", Identity("other", 5, {}))
    refused("seed 5, expected 6", Identity("d", 6, {}))
    with monkeypatch.context() as patched:
        patched.setattr("rlpto.agents.checkpoint.__version__", "99")
        refused("training cannot be resumed exactly by 99")
    assert path.read_bytes() == before
    archive = last(tmp_path)
    archive.manifest["learner"]["episodes"] = [{"r": 0.0, "l": 1, "t": 0.5}]  # as an earlier version kept them
    write_archive(path, archive.manifest, archive.arrays, "a test")
    refused(r"last\.safetensors: incomplete .*terms of episodes")
    path.write_bytes(before[: len(before) // 2])
    refused(r"last\.safetensors: truncated")


def test_a_training_goes_on_where_there_are_fewer_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_small(tmp_path, stop=stop_after(1))
    archive, restored = last(tmp_path), list[np.ndarray]()
    archive.arrays.update({f"random/cuda/{gpu}": np.full(16, gpu, dtype=np.uint8) for gpu in range(2)})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: restored.extend(map(np.asarray, states)))
    setup, settings = make_setup(), make_settings()
    model = TimedPPO.make(SB3ClusterEnv(setup, settings.envs, 5), settings, setup.interval, 5)
    model.device = torch.device("cuda")
    restore(model, archive, tmp_path / LAST)
    assert [states.tolist() for states in restored] == [[0] * 16]


@pytest.mark.parametrize("where", few(["weights", "observation"], "observation"))
def test_nan_stops_training_with_the_last_good_checkpoint(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = [0]
    train, step = TimedPPO.train, SB3ClusterEnv.step_wait

    def breaking_train(model: TimedPPO) -> None:
        train(model)
        updates[0] += 1
        if updates[0] == 3 and where == "weights":
            with torch.no_grad():
                model.policy.value_net.weight[0, 0] = float("nan")

    def breaking_step(env: SB3ClusterEnv) -> Any:
        found = step(env)
        if updates[0] == 3:
            found[0]["cluster"][0, 0] = np.nan
        return found

    monkeypatch.setattr(TimedPPO, "train", breaking_train)
    if where == "observation":
        monkeypatch.setattr(SB3ClusterEnv, "step_wait", breaking_step)
    with pytest.raises(TrainingError, match=f"{where}.*not all numbers are finite.*last good checkpoint is") as stopped:
        train_small(tmp_path)
    assert "\n" not in str(stopped.value)
    assert last(tmp_path).manifest["steps"] == 128
    assert all(np.isfinite(array).all() for array in last(tmp_path).group("policy").values())
    monkeypatch.undo()
    assert train_small(tmp_path, resume=True).finished


def test_tensorboard_shows_what_a_training_is_about_and_nothing_is_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    train_small(tmp_path / "run")
    assert list((tmp_path / "temporary").iterdir()) == []
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    scalars = set(events.Tags()["scalars"])
    validated = ("mean_reward", "jct_mean", "makespan", "utilisation", "queueing_high", "rescales_per_job")
    assert {
        *(f"rollout/{name}_per_hour" for name in ("reward", *REWARD_PARTS)),
        *(f"eval/{name}" for name in validated),
        *("train/approx_kl", "train/loss", "train/learning_rate", "time/fps", "rollout/ep_rew_mean"),
    } <= scalars


def test_a_device_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TrainingError, match="no CUDA device"):
        train_small(tmp_path, settings=make_settings(device="cuda"))
    assert not list(tmp_path.iterdir())


HOUR = 3600.0


def advantages(
    seconds: list[float], rewards: list[float], *, half_life: float, trace: float, ends: int | None = None
) -> np.ndarray:
    """Advantages of one environment with values of 1 everywhere; ends: the step that begins a new episode."""
    settings = EnvSettings(max_jobs=2)
    elapsed = np.zeros(1)
    buffer = TimedRolloutBuffer(
        len(rewards), observation_space(settings), action_space(),
        elapsed=elapsed, half_life=half_life, trace_half_life=trace,
    )  # fmt: skip
    seen = {name: np.zeros((1, *(part.shape or ()))) for name, part in observation_space(settings).items()}
    action = np.zeros((1, *(action_space().shape or ())))
    for step, (passed, reward) in enumerate(zip(seconds, rewards, strict=True)):
        elapsed[:] = passed
        start = np.array([float(step == ends)])
        buffer.add(seen, action, np.array([reward]), start, torch.ones(1), torch.zeros(1))
    buffer.compute_returns_and_advantage(torch.ones(1), np.zeros(1))
    return buffer.advantages[:, 0]


def test_a_reward_counts_half_after_the_half_life_however_many_steps_it_takes() -> None:
    one = advantages([2 * HOUR, HOUR], [0.0, 8.0], half_life=2.0, trace=1e9)
    many = advantages([HOUR / 2] * 4 + [HOUR], [0.0] * 4 + [8.0], half_life=2.0, trace=1e9)
    assert one[0] == pytest.approx(many[0], rel=1e-6)
    # 8 after two hours, and the value of 1 at the end after three, less the value of 1 now.
    assert one[0] == pytest.approx(8.0 * 0.5 + 0.5**1.5 - 1.0, rel=1e-6)


def test_surprises_fade_with_the_trace_half_life_and_end_with_an_episode() -> None:
    short = advantages([HOUR, HOUR], [0.0, 8.0], half_life=1e9, trace=1.0)
    assert short.tolist() == pytest.approx([4.0, 8.0])
    cut = advantages([HOUR, HOUR], [1.0, 8.0], half_life=1e9, trace=1e9, ends=1)
    assert cut[0] == pytest.approx(0.0)  # the reward of 1 is what was expected; what follows is another episode


def test_the_learning_rate_falls_to_its_share() -> None:
    rate = falling(2.0, 0.25)
    assert [rate(1.0), rate(0.5), rate(0.0)] == pytest.approx([2.0, 1.25, 0.5])
    assert rate(-20.0) == 0.0, "after a rollout of 21 times all steps"


FINE = make_settings(steps=24, ppo={"rollout": 8, "batch_size": 8})


@pytest.fixture
def agent(decided: Path) -> Path:
    """The file of a small agent that was trained in simulation."""
    return decided / LAST


class Clusters:
    """Simulated clusters that pass for real ones; counts how many were begun."""

    def __init__(self) -> None:
        self.begun = 0

    def __call__(self) -> SimulatedCluster:
        self.begun += 1
        jobs = workload(20 + self.begun).jobs
        return SimulatedCluster(NODES, jobs, TABLES, SIMULATOR, self.begun)


def tune(agent: Path, folder: Path, clusters: Clusters | None = None, **more: Any) -> TrainingResult:
    start = StartingAgent(agent)
    setup = ExternalSetup(
        clusters or Clusters(), QUEUE, REWARD, start.env(EnvSettings()), start.trained.start, SIMULATOR.interval
    )
    settings, identity = start.settings(more.pop("settings", FINE)), more.pop("identity", IDENTITY)
    return train(setup, settings, folder, identity, starting_agent=start, **more)


def weights(path: Path) -> dict[str, np.ndarray]:
    return read_archive(path, (CHECKPOINT,)).group("policy")


def test_begins_with_the_agent_and_learns(agent: Path, tmp_path: Path) -> None:
    outcome = tune(agent, tmp_path, stop=lambda: True)
    assert (outcome.finished, outcome.steps) == (False, 0)
    first = weights(tmp_path / LAST)
    outcome = tune(agent, tmp_path)
    assert (outcome.finished, outcome.steps) == (True, 24)
    last = weights(tmp_path / LAST)
    assert all(np.array_equal(first[name], array) for name, array in weights(agent).items())
    assert any(not np.array_equal(first[name], last[name]) for name in first)
    assert StartingAgent(tmp_path / LAST).trained.env.max_jobs == StartingAgent(agent).trained.env.max_jobs
    assert list(tmp_path.glob("events.*"))


def test_stops_within_a_rollout_and_goes_on_from_the_last_update(agent: Path, tmp_path: Path) -> None:
    # Asked once before each of two rollouts of 8 steps, and after every step.
    outcome = tune(agent, tmp_path, stop=stop_after(13))
    assert (outcome.finished, outcome.steps) == (False, 8)
    assert read_archive(tmp_path / LAST, (CHECKPOINT,)).manifest["steps"] == 8
    clusters = Clusters()
    tune(agent, tmp_path, clusters, resume=True, stop=stop_after(1))
    assert clusters.begun == 1, "one episode and not two"
    outcome = tune(agent, tmp_path, resume=True)
    assert (outcome.finished, outcome.steps) == (True, 24)


def test_what_an_agent_cannot_change_is_refused(agent: Path) -> None:
    starting_agent = StartingAgent(agent)
    with pytest.raises(ConfigError, match=r"env\.max_jobs: 7, but the agent of .* was trained with 6"):
        starting_agent.env(EnvSettings(max_jobs=7))
    assert starting_agent.env(EnvSettings(reward_scale=4.0)).reward_scale == 4.0
    with pytest.raises(CheckpointError, match=r"gone\.safetensors: cannot read the file: no such file"):
        StartingAgent(agent.with_name("gone.safetensors"))
