"""Build from a configuration environments in which nodes are rented, registered as `rlpto/Nodes-v1` in gymnasium.

Separate from `rlpto.experiments.environments`, because torch and stable-baselines3 take seconds to import.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gymnasium.vector import AutoresetMode

from rlpto.envs.nodes import NodesEnv, NodesSetup, NodesVectorEnv
from rlpto.envs.rendering import METADATA
from rlpto.experiments.config import Config
from rlpto.experiments.environments import env_setup, setup_parts
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ConfigError
from rlpto.provisioning.base import needs_forecast

DEFAULT = "rented"
"""Default configuration of these environments."""


def nodes_env(config: Config | Path | str = DEFAULT, render_mode: str | None = None, **given: Any) -> NodesEnv:
    """Make a single environment in which nodes are rented: `gymnasium.make("rlpto/Nodes-v1", ...)`.

    config: an experiment with rented nodes; its `provision` is the heuristic of action zero. given: the other
    parameters of `cluster_env`, with the same meaning.
    """
    return NodesEnv(env_setup(nodes_setup, config, **given), render_mode)


setattr(nodes_env, "metadata", METADATA)  # noqa: B010


def nodes_vector_env(
    num_envs: int = 1,
    config: Config | Path | str = DEFAULT,
    render_mode: str | None = None,
    seed: int | None = None,
    max_episode_steps: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    **given: Any,
) -> NodesVectorEnv:
    """Make such environments that step together: `gymnasium.make_vec("rlpto/Nodes-v1", num_envs=...)`. The parameters
    have the same meaning in `vector_env`; given: its other parameters."""
    setup = env_setup(nodes_setup, config, **given)
    return NodesVectorEnv(setup, num_envs, seed, max_episode_steps, autoreset_mode, render_mode)


def nodes_setup(
    experiments: Experiment | Sequence[Experiment], split: str = "train", seeds: Iterable[int] | None = None
) -> NodesSetup:
    """Do the work of `training_setup` for environments in which nodes are rented. Raises ConfigError if none are."""
    several = (experiments,) if isinstance(experiments, Experiment) else tuple(experiments)
    if not several[0].shape.rented_groups:
        raise ConfigError("cluster.nodes: no nodes are rented; expected some with `rented`, as in configs/rented.yaml")
    parts = setup_parts(several, split, seeds)
    parts["settings"] = parts["settings"].model_copy(update={"baseline": "none"})
    of = [(several[workload.group], workload.name.split("/")[-2], workload.jobs) for workload in parts["workloads"]]
    demands = tuple(experiment.demand.of(window, jobs) for experiment, window, jobs in of)
    heuristic, forecasts = several[0].provisioner(""), tuple[FloatArray, ...]()
    if needs_forecast(heuristic):
        pairs = zip(of, demands, strict=True)
        forecasts = tuple(experiment.demand.forecasts(window, demand) for (experiment, window, _), demand in pairs)
    return NodesSetup(**parts, demands=demands, heuristic=heuristic, forecasts=forecasts)
