"""The single environment: equal to the batch, to the scheduler's loop, and true to gymnasium's rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.batch import EnvBatch
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.clusters import OneCluster
from rlpto.envs.episodes import EnvSetup, ExternalSetup
from rlpto.envs.vector import ClusterVectorEnv
from rlpto.knowledge.known import Knowledge
from rlpto.policies.index import Index
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import SPOT, job, linear_tables, random_jobs
from .builders import NODES, START, TABLES, WHOLE, make_setup

FAILING = FailureSettings(mtbf_hours=1.0, mttr_hours=0.1)
ALL_OF_IT = FailureSettings(
    gpu_mtbf_hours=8.0,
    mttr_hours=0.1,
    restart_share=0.5,
    lemon_share=0.5,
    checkpoint_interval="young",
    checkpoint_seconds=9.0,
)


def on_object(setup: EnvSetup | ExternalSetup) -> ClusterEnv:
    """An environment that steps a cluster object."""
    env = ClusterEnv(setup)
    env.batch = EnvBatch(setup, compiled=False)
    return env


def cluster_of(env: ClusterEnv) -> Any:
    """The cluster object of such an environment."""
    assert isinstance(env.batch.clusters, OneCluster)
    return env.batch.clusters.cluster


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize(
    ("decide_on", "failures", "spot", "noisy", "classes"),
    [
        ("events", FailureSettings(), False, False, "strict"),
        ("events", ALL_OF_IT, True, False, "strict"),
        ("interval", FAILING, True, True, "weighted"),
    ],
)
def test_action_zero_is_the_index_under_the_scheduler(decide_on, failures, spot, noisy, classes):
    simulator = SimulatorSettings(decide_on=decide_on, failures=failures)
    jobs = [random_jobs(7, 30, 8, 10)]
    queue = QueueSettings(classes=classes)
    shape = ClusterShape((*NODES[1:], Node(4, price=1.0, spot=SPOT))) if spot else NODES
    rules = {"noisy": noisy, "simulator": simulator, "queue": queue, "shape": shape}
    setup = make_setup(jobs, episode=WHOLE, baseline="none", **rules)
    own = setup.workloads[0]
    cluster = SimulatedCluster(shape, own.jobs, TABLES, simulator, own.seed, Knowledge(own.noise))
    record = run(cluster, Index(), setup.queue, setup.reward)
    env, batch = on_object(setup), ClusterVectorEnv(setup, 1)
    env.reset(seed=0)
    batch.reset(seed=0)
    terms, many, ended = np.zeros(len(REWARD_PARTS)), np.zeros(len(REWARD_PARTS)), False
    while not ended:
        _, _, ended, cut, info = env.step(np.zeros(len(ACTION_FEATURES)))
        infos = batch.step(np.zeros((1, len(ACTION_FEATURES))))[4]
        assert not cut
        terms += [info["terms"][name] for name in REWARD_PARTS]
        many += [infos["terms"][name][0] for name in REWARD_PARTS]
    np.testing.assert_array_equal(terms, many)
    np.testing.assert_allclose(terms, record.decisions.reward.sum(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(cluster_of(env).store.finish_time, record.jobs.finish_time)


@pytest.mark.filterwarnings("ignore:.*(normalized|unconventional shape|Nested)")
def test_gymnasium_and_stable_baselines3_find_no_fault():
    check_env(ClusterEnv(make_setup(), "rgb_array"))
    sb3_check_env(ClusterEnv(make_setup()))


class TestEpisodes:
    def test_an_episode_begins_warm_and_is_cut_at_its_length(self):
        env = on_object(make_setup())
        env.reset(seed=0)
        env.batch.begin(0, 2, 900.0, 300.0)
        assert env.workload == "w2"
        assert env.batch.began[0] >= 900.0
        assert np.isfinite(cluster_of(env).store.start_time).any(), "the start heuristic has been at work"
        passed = 0.0
        cut = False
        while not cut:
            _, _, _, cut, step = env.step(np.zeros(len(ACTION_FEATURES)))
            assert passed < 300.0
            passed += step["elapsed"]
        assert passed >= 300.0

        env.batch.begin(0, 0, 1e9, 300.0)
        assert env.batch.began[0] < 60.0, "a warm-up beyond the end begins at the start"

    def test_nothing_goes_before_reset_or_after_the_end(self):
        env = ClusterEnv(make_setup([random_jobs(1, 2, 8, 10)], episode=WHOLE))
        with pytest.raises(ResetNeeded):
            env.step(np.zeros(len(ACTION_FEATURES)))
        env.reset()
        while not env.step(np.zeros(len(ACTION_FEATURES)))[2]:
            pass
        assert env.batch.render(0, "ansi").count("\n") == 1, "without jobs there is no table"
        with pytest.raises(ResetNeeded, match="episode is over"):
            env.step(np.zeros(len(ACTION_FEATURES)))


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (np.zeros(3), "a number for each index weight"),
        (np.full(len(ACTION_FEATURES), np.nan), "expected finite numbers, got NaN or infinity"),
    ],
)
def test_an_action_that_is_none_is_refused(action, said):
    setup = make_setup()
    env, batch = ClusterEnv(setup), ClusterVectorEnv(setup, 2)
    env.reset(seed=0)
    batch.reset(seed=0)
    with pytest.raises(ValueError, match=f"^action.*{said}"):
        env.step(action)
    with pytest.raises(ValueError, match=f"^action.*{said}"):
        batch.step(np.stack([action, action]))


def test_an_environment_over_an_external_cluster_goes_the_way_of_a_simulated_one():
    setup = make_setup([random_jobs(3, 20, 8, 10)], episode=WHOLE, baseline="none")
    external = ExternalSetup(lambda: setup.make_cluster(0), setup.queue, setup.reward, setup.settings, START)
    env, simulated = ClusterEnv(external), ClusterEnv(setup)
    same(env.reset(seed=1)[0], simulated.reset(seed=1)[0])
    env.action_space.seed(0)
    ended = False
    while not ended:
        action = env.action_space.sample()
        (seen, *rest), (expected, *others) = env.step(action), simulated.step(action)
        same(seen, expected)
        assert rest == others
        ended = rest[1]


class TestSeeds:
    def test_the_seed_that_was_given_can_be_read_out(self):
        env = ClusterEnv(make_setup())
        first = env.reset(seed=3)
        assert env.np_random_seed == 3
        env.reset()
        assert env.np_random_seed == 3, "of the episodes since then"
        again = env.reset(seed=env.np_random_seed)
        same(first[0], again[0])
        assert first[1] == again[1]

    @pytest.mark.parametrize("asked_first", [False, True])
    def test_an_episode_without_a_seed_can_be_repeated(self, asked_first):
        env = ClusterEnv(make_setup())
        if asked_first:
            assert env.np_random_seed >= 0
        first = env.reset()
        seed = env.np_random_seed
        again = ClusterEnv(make_setup()).reset(seed=seed)
        same(first[0], again[0])
        assert first[1] == again[1]
        assert ClusterEnv(make_setup()).reset()[1] != first[1], "other environments draw other seeds"


class TestRendering:
    def test_it_changes_no_episode_and_no_reward(self):
        """Also where jobs fit their own speeds, which compiled clusters look up."""
        setup = make_setup(noisy=True, simulator=SimulatorSettings(failures=FAILING))
        plain, *rendered = (ClusterEnv(setup, mode) for mode in (None, *ClusterEnv.metadata["render_modes"]))
        steps = []
        for env in (plain, *rendered):
            env.reset(seed=5)
            env.action_space.seed(0)
            taken = []
            for _ in range(20):
                taken.append(env.step(env.action_space.sample())[1:])
                env.render()
            steps.append(taken)
        assert steps[0] == steps[1] == steps[2]

    @pytest.mark.parametrize("make", [ClusterEnv, on_object], ids=["compiled", "object"])
    def test_the_text_shows_every_active_job(self, make):
        setup = make_setup([[job(0, epochs=3.6, gpus=4, priority=0), job(1, epochs=3.6, gpus=8, priority=2)]],
                           tables=linear_tables(0.001), episode=WHOLE, baseline="none")  # fmt: skip
        env = make(setup)
        env.reset(seed=0)
        reward = env.step(np.zeros(len(ACTION_FEATURES)))[1]
        lines = env.batch.render(0, "ansi").splitlines()
        said = f"w0  ·  0.02 h  ·  4 of 10 GPUs held  ·  jobs: 1 running, 1 waiting  ·  reward {reward:+.2f}"
        assert lines[0] == said
        assert lines[2].split() == ["job", "class", "GPUs", "requested", "estimated", "hours", "left", "accuracy"]
        first, second = (line.split() for line in lines[3:])
        assert first[:4] == ["job0", "high", "4", "4"]
        assert float(first[4]) == pytest.approx((3.6 - 60 * 0.004) / 0.004 / 3600, abs=0.01)
        assert second[:4] == ["job1", "low", "0", "8"]

    def test_the_picture_has_a_square_for_every_gpu_in_the_colour_of_its_job(self):
        """Two nodes with 4 GPUs and one with 2; the job that runs holds 4 of them, the other one waits."""
        setup = make_setup([[job(0, epochs=3.6, gpus=4, priority=0), job(1, epochs=3.6, gpus=8, priority=2)]],
                           tables=linear_tables(0.001), episode=WHOLE, baseline="none")  # fmt: skip
        env = ClusterEnv(setup, "rgb_array")
        env.reset(seed=0)
        env.step(np.zeros(len(ACTION_FEATURES)))
        picture = env.render()
        assert (picture.shape, picture.dtype) == ((360, 640, 3), np.uint8)
        np.testing.assert_array_equal(picture, env.render())
        nodes, queue = picture[28:, :408].reshape(-1, 3), picture[28:, 408:].reshape(-1, 3)
        colour = np.array([229, 91, 91])
        held = (nodes == colour).all(axis=1).sum()
        free = (nodes == 225).all(axis=1).sum()
        assert held / free == pytest.approx(4 / 6, rel=0.05)
        assert (queue == colour).all(axis=1).any(), "the bar of the job that runs"

    @pytest.mark.parametrize("nodes", [1, 3, 4_000])
    def test_any_cluster_fits_into_the_picture(self, nodes):
        shape = ClusterShape([Node(8), *(Node(1 + n % 8) for n in range(nodes - 1))])
        env = ClusterEnv(make_setup(shape=shape, baseline="none"), "rgb_array")
        env.reset(seed=0)
        assert env.render().shape == (360, 640, 3)


def test_what_cannot_be_is_refused_and_there_is_nothing_to_see_without_a_render_mode():
    assert ClusterEnv(make_setup()).render() is None
    with pytest.raises(ValueError, match=r"options .*: expected none"):
        ClusterEnv(make_setup()).reset(options={"workload": 1})
    with pytest.raises(ValueError, match="render_mode human: expected ansi, rgb_array or None"):
        ClusterEnv(make_setup(), render_mode="human")
