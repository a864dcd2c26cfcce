"""Training on whole windows: index weights with a network of per-job bonuses."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlpto.agents.archive import FORMATS, INDEX_WEIGHTS, NOT_TRAINED, TRAINED, index_weights_of, state_of
from rlpto.agents.checkpoint import Identity, export_agent
from rlpto.agents.policy import Agent, AgentOptions
from rlpto.agents.settings import AgentSettings, WindowSettings
from rlpto.agents.trained import StartingAgent
from rlpto.agents.training_loop import TrainingResult
from rlpto.agents.window_training import (
    WEIGHTS,
    Learner,
    LocalPlayer,
    WeightSpace,
    evolve,
    learn_by_ppo,
    train_on_windows,
)
from rlpto.core.rewards import REWARD_PARTS, RewardWeights
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.batch import EnvBatch
from rlpto.envs.clusters import SimulatedClusters
from rlpto.envs.compiled_batch import joint_history
from rlpto.envs.episodes import EnvSetup
from rlpto.envs.whole_windows import LARGEST_LOSS, WindowPool
from rlpto.experiments.config import KnowledgeSettings
from rlpto.experiments.environments import training_setup
from rlpto.experiments.experiment import prepare
from rlpto.io.archive import read_archive, write_archive
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import CheckpointError
from rlpto.knowledge.remaining import fill_learnt
from rlpto.policies.bonus_network import NETWORK_SIZE
from rlpto.policies.index import Index, IndexOptions
from rlpto.policies.index_weights import SIZES, WEIGHT_NAMES, IndexWeights, load_index_weights
from rlpto.policies.rigid import Fifo
from rlpto.simulator.settings import FailureSettings, SimulatorSettings
from tests.agents.helpers import IDENTITY, make_setup, schedule, validation_of, workload
from tests.agents.helpers import train_small as decide_small
from tests.agents.test_training import stop_after
from tests.envs.builders import make_noise
from tests.small import SMALL

POOR = IndexWeights(remaining=0.5, held=0.0, start=-1.0).array()
"""A start that puts short jobs off: nearly anything is better."""


def train_small(folder: Path, setup: EnvSetup | None = None, **more: Any) -> TrainingResult:
    """Six updates of eight windows."""
    setup = make_setup() if setup is None else setup
    given = {"windows": 48, "rollout": 8, "evaluate_every": 16, **more.pop("chosen", {})}
    settings = AgentSettings(learns="windows", whole_windows=WindowSettings.model_validate(given))
    return train_on_windows(setup, settings, folder, more.pop("identity", IDENTITY), validation_of(setup), **more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished training; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("run")
    train_small(folder, chosen={"learning_rate": 0.5})
    return folder


@pytest.mark.parametrize("trainer", ["evolution", "ppo"])
def test_a_resumed_training_is_bit_for_bit_one_that_was_never_stopped(tmp_path: Path, trainer: str) -> None:
    chosen = {"trainer": trainer}
    whole = train_small(tmp_path / "whole", chosen=chosen)
    assert whole.finished
    assert whole.steps == 48
    stopped = train_small(tmp_path / "parts", chosen=chosen, stop=stop_after(3))
    assert not stopped.finished
    assert stopped.steps == 24
    resumed = train_small(tmp_path / "parts", chosen=chosen, resume=True)
    assert resumed == whole
    for name in ("validation.csv", "last.safetensors", WEIGHTS):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes(), name


@pytest.mark.parametrize("learn", [evolve, partial(learn_by_ppo, settings=WindowSettings())], ids=["evolution", "ppo"])
def test_a_learner_comes_closer_to_what_loses_least(learn: Callable[..., dict[str, float]]) -> None:
    goal, rng = np.linspace(-2.0, 2.0, 6), np.random.default_rng(0)
    learner = Learner(6, 0.1)
    for _ in range(150):
        drawn = learner.draw(rng, 32)
        learn(learner, drawn, ((drawn - goal) ** 2).sum(axis=1) + rng.normal(size=64))
        learner.remember()
    np.testing.assert_allclose(learner.average, goal, atol=0.4)


@pytest.mark.parametrize("learn", [evolve, partial(learn_by_ppo, settings=WindowSettings())], ids=["evolution", "ppo"])
def test_one_window_that_costs_a_thousand_times_as_much_does_not_decide(learn: Callable[..., dict[str, float]]) -> None:
    def moved(worst: float) -> FloatArray:
        learner = Learner(3, 0.1)
        drawn = learner.draw(np.random.default_rng(1), 16)
        losses = drawn.sum(axis=1)
        losses[losses.argmax()] *= worst
        learn(learner, drawn, losses)
        return learner.mean.numpy()

    np.testing.assert_array_equal(moved(1.0), moved(1000.0))


def learnt_in(path: Path) -> FloatArray:
    return index_weights_of(read_archive(path, FORMATS), path)


@pytest.mark.slow
def test_training_mends_a_poor_start(tmp_path: Path) -> None:
    setup = make_setup(tuple(range(1, 13)))
    poor = replace(setup, start=POOR)
    found = train_small(
        tmp_path, poor, chosen={"windows": 1024, "rollout": 64, "evaluate_every": 512, "constants": 0.5}
    )
    assert found.best > 0.05
    fresh = WindowPool(replace(poor, workloads=tuple(map(workload, range(20, 30)))))
    vector = load_index_weights(tmp_path / WEIGHTS)
    assert fresh.losses(np.repeat(vector[None], 10, axis=0), np.arange(10)).mean() < 0


def test_before_the_first_update_it_is_the_index(tmp_path: Path) -> None:
    setup = make_setup()
    space = WeightSpace.around(setup.start, 0.1, 0.3, 7)
    vector = space.index_weights(np.zeros((1, space.size)))[0]
    pool = WindowPool(setup)
    assert not pool.losses(np.repeat(vector[None], 3, axis=0), np.arange(3)).any()
    outcome = train_small(tmp_path, chosen={"learning_rate": 1e-15})
    assert outcome.best_steps == 0
    assert read_archive(tmp_path / "best.safetensors", FORMATS).manifest["state"] == NOT_TRAINED


@pytest.mark.parametrize(("chosen", "moves"), [({"network": 0.0}, "weights"), ({"constants": 0.0}, "network")])
def test_constants_and_network_can_be_learnt_apart(tmp_path: Path, chosen: dict[str, float], moves: str) -> None:
    train_small(tmp_path, chosen=chosen)
    vector, start = learnt_in(tmp_path / "last.safetensors"), IndexWeights().array()
    assert np.array_equal(vector[: len(start)], start) == (moves == "network")
    assert len(vector) == SIZES[moves == "network"]


def test_losses_do_not_depend_on_the_number_of_threads_or_the_order() -> None:
    setup = make_setup(tuple(range(1, 7)))
    noisy = tuple(replace(own, noise=make_noise(at, len(own.jobs))) for at, own in enumerate(setup.workloads))
    setup = replace(setup, workloads=noisy)
    networks, windows = np.random.default_rng(0).normal(size=(12, NETWORK_SIZE)), np.arange(12) % 6
    candidates = np.concatenate([np.tile(IndexWeights().array(), (12, 1)), networks], axis=1)
    one, two = (WindowPool(setup, threads=threads).losses(candidates, windows) for threads in (1, 3))
    assert one.tobytes() == two.tobytes()
    backwards = WindowPool(setup, threads=1).losses(candidates[::-1], windows[::-1])[::-1]
    np.testing.assert_array_equal(one, backwards)
    assert np.ptp(one) > 0
    assert np.abs(one).max() <= LARGEST_LOSS


@pytest.mark.parametrize(("decide_on", "decides_each"), [("events", 600.0), ("interval", 120.0)])
def test_only_decisions_without_an_event_are_left_out_in_training(
    decide_on: Literal["events", "interval"], decides_each: float
) -> None:
    setup = replace(make_setup(), simulator=SimulatorSettings(interval=120.0, decide_on=decide_on))
    player = LocalPlayer(setup, None, WindowSettings(), 0, threads=1)
    candidates, windows = np.repeat(player.space.start[None], 3, axis=0), np.arange(3)
    played = player.pool.play(candidates, windows)[0]
    np.testing.assert_array_equal(played, WindowPool(setup, decides_each, 1).play(candidates, windows)[0])
    other = WindowPool(setup, 720.0 - decides_each, 1).play(candidates, windows)[0]
    assert not np.array_equal(played, other), "the interval counts"


def test_the_agent_decides_as_in_training_wherever_its_vector_is_used(tmp_path: Path) -> None:
    setup = make_setup()
    train_small(tmp_path / "run", setup, chosen={"learning_rate": 2.0, "windows": 64})
    export_agent(tmp_path / "run" / "last.safetensors", tmp_path / "agent.safetensors")
    archive = read_archive(tmp_path / "agent.safetensors", FORMATS)
    assert state_of(archive.manifest, archive.arrays) == TRAINED
    assert not archive.arrays
    learnt = learnt_in(tmp_path / "agent.safetensors")
    agent = Agent(AgentOptions(file=tmp_path / "agent.safetensors"))
    jobs = setup.workloads[0].jobs
    mine, its = schedule(agent, jobs, setup.workloads[0].seed), schedule(Index(index_weights=learnt), jobs)
    np.testing.assert_array_equal(mine.jobs.finish_time, its.jobs.finish_time)
    plain = schedule(Index(), jobs)
    assert not np.array_equal(mine.jobs.finish_time, plain.jobs.finish_time)
    pool = WindowPool(setup)
    lost = pool.losses(learnt[None], np.zeros(1, dtype=np.int64))[0]
    earned, base = mine.decisions.reward.sum(), plain.decisions.reward
    time = -base[:, REWARD_PARTS.index("time")].sum()
    assert (base.sum() - earned) / time == pytest.approx(lost, rel=1e-9)


@pytest.mark.slow
def test_agents_learn_where_jobs_fit_their_own_speeds(tmp_path: Path) -> None:
    """By tables in place of fits; what was seen of speeds is part of the state of environments."""
    known = {"mode": "online", "fits": "shared", "remaining": "learnt"}
    config = SMALL.model_copy(update={"knowledge": KnowledgeSettings.model_validate(known)})
    setup, exact = training_setup(prepare(config), "train"), training_setup(prepare(SMALL), "train")
    start, windows = exact.start[None], np.zeros(1, dtype=np.int64)
    assert not np.array_equal(WindowPool(setup).play(start, windows)[0], WindowPool(exact).play(start, windows)[0])
    settings = AgentSettings(learns="windows", whole_windows=WindowSettings(windows=16, rollout=8))
    assert train_on_windows(setup, settings, tmp_path, IDENTITY).finished
    batch, actions = EnvBatch(setup, 2), np.zeros((2, len(ACTION_FEATURES)))
    batch.reset()
    for _ in range(20):
        batch.step(actions)
    kept, other = batch.state(), EnvBatch(setup, 2)
    other.restore(kept)
    assert other.clusters.arrays()["seen"].any()
    assert np.array_equal(other.step(actions).reward, batch.step(actions).reward)


@pytest.mark.parametrize("lasting", [False, True])
def test_lengths_learnt_from_finished_jobs_are_up_to_date_at_every_decision(lasting: bool) -> None:
    """Against the same sums over all finished jobs, over failures and the beginning of further episodes."""
    known = KnowledgeSettings.model_validate({"mode": "exact", "remaining": "learnt"})
    failing = SimulatorSettings(failures=FailureSettings(mtbf_hours=4.0, mttr_hours=0.1))
    mapping = SMALL.workload.mapping.model_copy(update={"users": "clustered", "lasting": lasting})
    workload = SMALL.workload.model_copy(update={"mapping": mapping})
    config = SMALL.model_copy(update={"workload": workload, "knowledge": known, "simulator": failing})
    setup = training_setup(prepare(config), "train")
    batch, learnt = EnvBatch(setup, 2), 0
    histories = [joint_history([own], setup.tables) for own in setup.workloads]
    assert any(len(history.groups) for history in histories) == lasting
    assert isinstance(batch.clusters, SimulatedClusters)
    loop = batch.clusters.batch.loop
    batch.reset()
    for _ in range(150):
        batch.step(np.zeros((2, len(ACTION_FEATURES))))
        for b in range(2):
            view = loop.shown.jobs[b, : loop.world.clusters["active"][b]]
            left = np.full(len(view), np.nan)
            fill_learnt(loop.world.jobs[b], loop.estimates.pooled, histories[loop.current[b]], view["index"], left)
            there = ~np.isnan(left)
            np.testing.assert_array_equal(view["remaining"][there], left[there])
            learnt += int(there.sum())
    assert learnt > 100


def test_a_best_vector_is_a_file_of_weights_for_the_index_and_a_start_for_either_way(
    trained: Path, tmp_path: Path
) -> None:
    best = learnt_in(trained / "best.safetensors")
    np.testing.assert_array_equal(load_index_weights(trained / WEIGHTS), best)
    Index(IndexOptions(weights=trained / WEIGHTS))
    learnt = replace(make_setup(), start=best)
    assert train_small(tmp_path / "second", learnt).finished
    assert decide_small(tmp_path / "third", learnt).finished
    Agent(AgentOptions(run=tmp_path / "third"))


def test_weights_that_look_at_accuracy_are_learnt_where_the_reward_counts_its_shortfall(tmp_path: Path) -> None:
    at = WEIGHT_NAMES.index("slope")
    for shortfall in (0.0, 8.0):
        setup = replace(make_setup(), reward=RewardWeights(shortfall=shortfall))
        train_small(tmp_path / str(shortfall), setup, chosen={"network": 0.0})
        learnt = learnt_in(tmp_path / str(shortfall) / "last.safetensors")
        assert (learnt[at] != 0.0) == (shortfall > 0.0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("network: {hidden: 8, numbers: [1.0]}", "network: expected the features and units of this version"),
        ("network: [1.0]", "network: expected the features and units of this version"),
        ("numbers: [1.0]", "network.numbers: expected 482 numbers from -1000 to 1000"),
        ("numbers: null", "network.numbers: expected"),
    ],
)
def test_a_network_that_is_none_is_refused(trained: Path, tmp_path: Path, content: str, reason: str) -> None:
    text = (trained / WEIGHTS).read_text()
    (tmp_path / "bad.yaml").write_text(text[: text.index(content.split()[0])] + f"{content}\n")
    with pytest.raises(CheckpointError, match=reason):
        load_index_weights(tmp_path / "bad.yaml")


def test_a_file_of_another_version_or_training_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="other settings"):
        train_small(trained, chosen={"learning_rate": 0.5}, identity=Identity("other", 5, {}), resume=True)
    archive = read_archive(trained / "last.safetensors", FORMATS)
    foreign = archive.manifest[INDEX_WEIGHTS] | {"weights": {"colour": 1.0}}
    write_archive(tmp_path / "old.safetensors", archive.manifest | {INDEX_WEIGHTS: foreign}, {}, "a test")
    with pytest.raises(CheckpointError, match=r"old.safetensors: index_weights: weights.colour: unknown weight"):
        Agent(AgentOptions(file=tmp_path / "old.safetensors"))


def test_it_does_not_go_on_learning_on_real_jobs(trained: Path) -> None:
    with pytest.raises(CheckpointError, match=r"best.safetensors: learnt from whole windows; expected .* decisions"):
        StartingAgent(trained / "best.safetensors")


def read_events(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_tensorboard_has_the_usual_names_a_point_for_every_update_and_lines_of_baselines(trained: Path) -> None:
    events = read_events(trained)
    shown = {"rollout/ep_rew_mean", "train/loss", "train/learning_rate", "time/fps", "eval/gain", "eval/reward_time"}
    assert shown <= set(events.Tags()["scalars"])
    updates = [8, 16, 24, 32, 40, 48]
    assert [event.step for event in events.Scalars("train/loss")] == updates
    assert [event.step for event in events.Scalars("eval/mean_reward")] == [0, *updates]
    chosen_from = pd.read_csv(trained / "validation.csv")
    assert chosen_from["steps"].tolist() == [0, 16, 32, 48]
    seen = {event.step: event.value for event in events.Scalars("eval/gain")}
    assert [seen[step] for step in (0, 16, 32, 48)] == pytest.approx(chosen_from["gain"].tolist(), rel=1e-6)
    (said,) = events.Tensors("step/text_summary")
    assert b"the number of windows so far" in said.tensor_proto.string_val[0]

    lines = {path.name: read_events(path).Scalars("eval/mean_reward") for path in (trained / "baselines").iterdir()}
    assert lines.keys() == {"fifo", "index", "bound"}
    assert all([point.step for point in line] == [0, 48] for line in lines.values())
    level = {name: line[0].value for name, line in lines.items()}
    assert level["bound"] > max(level["fifo"], level["index"])
    for name, policy in (("fifo", Fifo()), ("index", Index())):
        rewards = [schedule(policy, workload(seed).jobs, seed).decisions.reward.sum() for seed in (8, 9)]
        assert level[name] == pytest.approx(np.mean(rewards), rel=1e-6)
