"""Offline data sets by Minari: what a policy that steers the index does in the environment of a case."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np

from rlpto.bench.suite import VERSION, find_case
from rlpto.core.policy import Policy, frozen
from rlpto.envs.actions import ACTION_FEATURES, LARGEST, STEP
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.clusters import OneCluster
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import ConfigError
from rlpto.policies.index import Index


def record(case: str, policy: str, name: str, episodes: int, **settings: Any) -> int:
    """Record whole episodes in training windows of a case, as a data set of Minari; returns the number of steps.

    policy: spec of one that decides by weights of the index alone, such as `planner`: only those are actions of the
    environment. What is beyond its limits is cut. name: NAMESPACE/NAME-vNUMBER. settings: keys of `EnvSettings`.
    Observations are flat vectors. Episode i begins with seed i. Raises ConfigError for another policy, a name that
    is taken or is none, or where Minari is not installed.
    """
    try:
        import minari
        from minari.dataset.minari_dataset import parse_dataset_id
    except ModuleNotFoundError as missing:
        raise ConfigError(f"{missing.name} is not installed: expected RLPTO's extra `examples`") from None
    try:
        parse_dataset_id(name)
    except ValueError as wrong:
        raise ConfigError(f"data set {name}: {wrong}") from None
    if name in minari.list_local_datasets():
        raise ConfigError(f"data set {name} is there already, expected another name")
    decides = Experiment(find_case(case).drawing).policy(policy)
    env_id = f"rlpto.bench:rlpto/Bench-{case}-v{VERSION}"
    env = gymnasium.wrappers.FlattenObservation(gymnasium.make(env_id, render_mode="ansi", **settings))
    collector = minari.DataCollector(env)
    for seed in range(episodes):
        collector.reset(seed=seed)
        decides.reset(seed)
        over = False
        while not over:
            _, _, ended, cut, _ = collector.step(_action(env.unwrapped, decides))
            over = ended or cut
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="minari")  # that it has no author and no address
        return int(collector.create_dataset(name, algorithm_name=policy, eval_env=env).total_steps)


def _action(env: Any, policy: Policy) -> AnyArray:
    """[ACTION_FEATURES] what a policy does now, as steps from the environment's start weights."""
    assert isinstance(env, ClusterEnv)
    shown, start = env.batch.clusters, env.setup.start
    assert isinstance(shown, OneCluster)
    if len(shown.state.jobs):
        policy(shown.state)
    steered = frozen(policy)
    weights = steered.weights if isinstance(steered, Index) else np.zeros(0)
    count = len(ACTION_FEATURES)
    further, its_further = (np.trim_zeros(vector[count:], "b") for vector in (weights, start))
    if len(weights) < count or not np.array_equal(further, its_further):
        raise ConfigError(f"policy {policy.name}: expected one that decides by weights of the index alone")
    steps = (weights[:count] - start[:count]) / np.array(list(STEP.values()))
    return np.asarray(np.clip(steps, -LARGEST, LARGEST), dtype=np.float32)
