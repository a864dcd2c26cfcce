"""Offline data sets for Minari, recorded from a policy that steers the index in the environment of a case."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console
from rich.progress import track

from rlpto.bench.suite import VERSION, find_case
from rlpto.core.policy import Policy, frozen
from rlpto.envs.actions import ACTION_FEATURES, LARGEST, STEP
from rlpto.envs.batch import EnvBatch
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.clusters import OneCluster
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import ConfigError
from rlpto.io.extras import extras
from rlpto.io.reading import one_line
from rlpto.policies.index import Index
from rlpto.policies.spec import parse_spec


def record(
    case: str, policy: str, name: str, episodes: int, *, progress: bool = False, **settings: Any
) -> tuple[int, float]:
    """Record whole episodes in training windows of a case, as a data set for Minari.

    policy: spec of a policy whose decisions depend only on index weights, for example `planner`: the environment has no
    other actions. Actions are cut to the environment's limits. name: NAMESPACE/NAME-vNUMBER. settings: keys of
    `EnvSettings`. progress: shows a bar on a terminal. Observations are flat vectors, rewards are without a baseline.
    Episode i begins with seed i. Returns the number of steps, and the share of them that was cut. Raises ConfigError
    for another policy, for a name that is taken or invalid, and if Minari cannot write; MissingExtraError without
    Minari.
    """
    if parse_spec(policy).provisioner is not None:
        raise ConfigError(f"policy {policy}: the environment has a provisioner, expected a policy without @")
    with extras():
        import minari
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage.datasets_root_dir import get_dataset_path
    try:
        parse_dataset_id(name)
        if get_dataset_path(name).exists():
            raise ConfigError(f"data set {name} is there already, expected another name")
    except (ValueError, TypeError, OSError) as wrong:
        raise ConfigError(f"data set {name}: {one_line(wrong)}, expected NAMESPACE/NAME-vNUMBER") from None
    decides = Experiment(find_case(case).training()).policy(policy)
    env_id, taken = f"rlpto.bench:rlpto/Bench-{case}-v{VERSION}", list[AnyArray]()
    env = gymnasium.wrappers.FlattenObservation(gymnasium.make(env_id, **settings | {"baseline": "none"}))
    single = env.unwrapped
    assert isinstance(single, ClusterEnv)
    single.batch = EnvBatch(single.setup, compiled=False)  # policies look at a cluster object
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="minari")  # about a missing author and address
        collector = minari.DataCollector(env)
        console, shown = Console(stderr=True), progress and sys.stderr.isatty()
        for seed in track(range(episodes), f"recording {policy}", console=console, transient=True, disable=not shown):
            collector.reset(seed=seed)
            decides.reset(seed)
            over = False
            while not over:
                taken.append(_action(single, decides))
                _, _, ended, cut, _ = collector.step(taken[-1])
                over = ended or cut
        try:
            collector.create_dataset(name, algorithm_name=policy, eval_env=env)
        except OSError as wrong:
            raise ConfigError(f"data set {name}: cannot write it: {one_line(wrong)}") from None
    return len(taken), float(np.mean([np.abs(action).max() >= LARGEST for action in taken]))


def _action(env: ClusterEnv, policy: Policy) -> AnyArray:
    """[ACTION_FEATURES] the policy's present index weights, as steps from the environment's start weights."""
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
