"""Forecasts in experiments: the same online, in the environments and under the scheduler, and none if off."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.batch import EnvBatch
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.observation import forecast_features
from rlpto.envs.vector import ClusterVectorEnv
from rlpto.experiments.config import Config, load_config, resolved_yaml
from rlpto.experiments.environments import training_setup
from rlpto.experiments.experiment import Experiment
from rlpto.forecasting.registry import make_forecaster
from rlpto.forecasting.series import TimeSeries
from rlpto.io.errors import ConfigError
from rlpto.policies.index import Index

from ..builders import Scripted
from ..small import SMALL

WHOLE = {"min_hours": 1e6, "max_hours": 1e6, "warm_start": 0.0}


def experiment_with(load: float = 0.8, **forecast: Any) -> Experiment:
    """The small experiment with whole windows as episodes and these forecast settings."""
    content = SMALL.model_dump()
    content["workload"] |= {"load": load, "days": 3, "windows": {"hours": 6, "limit": 2}}
    content["env"] |= {"episode": WHOLE, "baseline": "none"}
    return Experiment(Config.model_validate({**content, "forecast": forecast}))


def watched_index() -> tuple[Scripted, list[ClusterState]]:
    """The index, and the states that it is asked about."""
    index, states = Index(), list[ClusterState]()

    def decide(state: ClusterState) -> Allocation:
        states.append(state)
        return index(state)

    return Scripted(decide), states


def test_policies_and_environments_see_the_same_bit_by_bit() -> None:
    """Online in the scheduler's loop, and computed before in a single environment and in a batch."""
    experiment = experiment_with(mode="on")
    window = experiment.windows("train")[1]
    policy, states = watched_index()
    record = experiment.run_policy(policy, window, 0)
    setup = training_setup(experiment)
    number = [workload.name for workload in setup.workloads].index(f"{window}/0")
    own = setup.workloads[number]
    assert len(own.forecast) == 6 * 6 + 1
    single, batch = ClusterEnv(setup), ClusterVectorEnv(setup, 1)
    single.batch = EnvBatch(setup, compiled=False)
    single.reset(seed=0)
    single.batch.begin(0, number)
    single_seen = {name: part[0] for name, part in single.batch.observe()._asdict().items()}
    batch_seen, _ = batch.reset(seed=0)
    nothing, ended, at = np.zeros(len(ACTION_FEATURES), dtype=np.float32), False, 0
    while not ended:
        if single.batch.clusters.cluster.active_jobs:
            state = states[at]
            at += 1
            assert state.time == single.batch.clusters.cluster.time
            np.testing.assert_array_equal(single_seen["forecast"], forecast_features(state.forecast, 6))
        single_seen, _, ended, _, _ = single.step(nothing)
    assert at == len(states)
    np.testing.assert_array_equal(single.batch.clusters.cluster.store.finish_time, record.jobs.finish_time)
    # The batch draws its workload by itself, and shows what is stored for the one it is in.
    engine = batch.batch
    for _ in range(30):
        shown = setup.workloads[int(engine.clusters.batch.loop.current[0])]
        place = min(int(engine.clusters.batch.world.clusters["time"][0] / shown.forecast_step), len(shown.forecast) - 1)
        np.testing.assert_array_equal(batch_seen["forecast"][0], shown.forecast[place])
        batch_seen = batch.step(nothing[None])[0]


@pytest.mark.slow
def test_off_leaves_everything_as_it_was() -> None:
    off, on = experiment_with(), experiment_with(mode="on")
    window = off.windows("train")[0]
    assert "forecast" not in off.outcome()
    assert "forecast" in on.outcome()
    assert off.forecasts(window) is None
    policy, states = watched_index()
    without = off.run_policy(policy, window, 0)
    assert all(state.forecast is None for state in states)
    workload = training_setup(off).workloads[0]
    assert workload.forecast.size == 0
    # Who looks at no forecast decides the same with one, also a policy whose decisions stand for a while.
    np.testing.assert_array_equal(on.run_policy(Index(), window, 0).jobs.finish_time, without.jobs.finish_time)
    finish = [one.run_policy(one.policy("fifo"), window, 0).jobs.finish_time for one in (off, on)]
    np.testing.assert_array_equal(*finish)


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "mode"),
        [
            ((), "off"),
            (("forecast.mode=on",), "on"),
            (("forecast.model=some.safetensors",), "on"),
            (("forecast.model=some.safetensors", "forecast.mode=off"), "off"),
        ],
    )
    def test_yaml_words_are_modes_and_a_model_means_on_unless_said_otherwise(
        self, tmp_path: Path, changes: tuple[str, ...], mode: str
    ) -> None:
        path = tmp_path / "small.yaml"
        path.write_text("name: small\n" if changes else "name: small\nforecast: {mode: off}\n")
        config = load_config(path, changes)
        (tmp_path / "again.yaml").write_text(resolved_yaml(config))
        assert config.forecast.mode == load_config(tmp_path / "again.yaml").forecast.mode == mode

    def test_a_model_decides_how_a_cell_comes_out_and_is_checked_first(self, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors"
        rng = np.random.default_rng(0)
        digests = []
        for seed in range(2):
            counts = np.random.default_rng(seed).poisson(4, 40).astype(float)
            make_forecaster("naive").fit(TimeSeries(counts, 600.0)).save(path)
            digests.append(experiment_with(mode="on", model=path).outcome()["forecast"]["model"])
        assert digests[0] != digests[1]
        make_forecaster("naive").fit(TimeSeries(rng.poisson(4, 40).astype(float), 3600.0)).save(path)
        with pytest.raises(ConfigError, match=r"forecast.every: 600 s, expected the 3600 s"):
            experiment_with(mode="on", model=path).check()
