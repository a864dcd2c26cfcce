"""Build from a configuration the environments in which agents learn, registered as `rlpto/Cluster-v0` in gymnasium."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from gymnasium.vector import AutoresetMode
from pydantic import ValidationError

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy, NoOptions
from rlpto.core.rewards import HOUR
from rlpto.envs.acting import ActionPolicy
from rlpto.envs.cluster_env import ClusterEnv
from rlpto.envs.compiled_batch import Workload
from rlpto.envs.episodes import EnvSetup, check_integer
from rlpto.envs.observation import FORECAST_FEATURES, Observation, Observed, forecast_features
from rlpto.envs.rendering import METADATA
from rlpto.envs.settings import EnvSettings
from rlpto.envs.vector import ClusterVectorEnv
from rlpto.experiments.config import Config, load_config
from rlpto.experiments.experiment import NO_JOBS, Experiment, estimate_noise, refuse_for_learning
from rlpto.experiments.workload import window_seed
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import ConfigError, JobError
from rlpto.io.settings import LARGEST_SEED
from rlpto.io.settings_text import first_problem
from rlpto.performance.compile import compile_tables
from rlpto.performance.tables import SpeedTables
from rlpto.policies.index_weights import IndexWeights, load_index_weights
from rlpto.provisioning.base import Provisioner
from rlpto.provisioning.demand import KnownDemand

DEFAULT = "quickstart"
"""Default configuration of environments."""
SetupKind = TypeVar("SetupKind", bound=EnvSetup)
Overrides = Sequence[str] | Mapping[str, Any]


def cluster_env(
    config: Config | Path | str = DEFAULT,
    split: str = "train",
    seeds: Iterable[int] | None = None,
    render_mode: str | None = None,
    overrides: Overrides = (),
    **settings: Any,
) -> ClusterEnv:
    """Make a single simulated environment: `gymnasium.make("rlpto/Cluster-v0", ...)`.

    config: an experiment: the name of an example (`rlpto configs list`), a file or a `Config`.
    split: windows from which episodes are drawn: train, validation or test.
    seeds: seeds of the windows' jobs, failures and estimates. Default: the seed of the experiment.
    render_mode: `ansi`, `rgb_array` or None.
    overrides: changes of the config: `["workload.load=1.1"]`, `{"workload.load": 1.1}` or a nested mapping.
    settings: keys of `EnvSettings`, the section `env` of the config, such as max_jobs=64 or episode={"min_hours": 2}.

    Raises ConfigError, TraceError, ProfileError, JobError or CheckpointError for errors in any of them.
    """
    setup = env_setup(training_setup, config, split, seeds, overrides, **settings)
    return ClusterEnv(setup, render_mode)


setattr(cluster_env, "metadata", METADATA)  # noqa: B010  where gymnasium looks for the render modes of an entry point


def vector_env(
    num_envs: int = 1,
    config: Config | Path | str = DEFAULT,
    split: str = "train",
    seeds: Iterable[int] | None = None,
    render_mode: str | None = None,
    overrides: Overrides = (),
    seed: int | None = None,
    max_episode_steps: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    **settings: Any,
) -> ClusterVectorEnv:
    """Make simulated environments that step together: `gymnasium.make_vec("rlpto/Cluster-v0", num_envs=...)`.

    seed: seed of the episodes.
    max_episode_steps: steps after which an episode is truncated.
    autoreset_mode: how the next episode begins, explained in `ClusterVectorEnv`.

    The other parameters have the same meaning in `cluster_env`.
    """
    setup = env_setup(training_setup, config, split, seeds, overrides, **settings)
    return ClusterVectorEnv(setup, num_envs, seed, max_episode_steps, autoreset_mode, render_mode)


class EnvPolicy(BasePolicy[NoOptions], ABC):
    """Base class to use an agent of an environment as a policy, in every command that takes policies.

    A subclass defines `act`, and as attributes the arguments of the environment in which its agent was trained.
    """

    summary = "an agent of the environment rlpto/Cluster-v0, elastic"
    source = "a class of the user"
    config: Config | Path | str = DEFAULT
    overrides: Overrides = ()
    settings: Mapping[str, Any] = {}

    def __init__(self, options: NoOptions | None = None) -> None:
        config = changed_config(self.config, self.overrides, self.settings)
        self.name, start = type(self).__name__, start_weights(config)
        self._decides = ActionPolicy(self.name, self._act, config.env, start)
        super().__init__(options)

    @abstractmethod
    def act(self, observation: Observed) -> AnyArray:
        """Return the action [ACTION_FEATURES] for an observation of the environment."""

    def _act(self, seen: Observation) -> AnyArray:
        # A method, not a lambda: predictions copy and pickle policies, and a copy must not call the original's `act`.
        return self.act(seen._asdict())

    def reset(self, seed: int) -> None:  # noqa: ARG002
        """Forget the action in force. Override this if the agent has a memory."""
        self._decides.reset()

    def __call__(self, state: ClusterState) -> Allocation:
        """Return the allocation that results from the agent's action."""
        return self._decides(state)


def training_setup(
    experiments: Experiment | Sequence[Experiment],
    split: str = "train",
    seeds: Iterable[int] | None = None,
) -> EnvSetup:
    """Return workloads and settings of environments: every window of a split with every seed, in every experiment.

    experiments: one experiment, or several that differ only in their workloads, such as one for each load.
    split: split of the windows: train, validation or test.
    seeds: seeds of the windows' jobs, failures and estimates. Default: the seed of each experiment.

    A workload is called WINDOW/SEED, or LOAD/WINDOW/SEED if there are several experiments. Raises ConfigError if the
    experiments have no such windows; TraceError, ProfileError or JobError for an unusable workload; CheckpointError
    for an unusable file of weights.
    """
    several = (experiments,) if isinstance(experiments, Experiment) else tuple(experiments)
    parts = setup_parts(several, split, seeds)
    if several[0].shape.rented_groups and several[0].config.agent.learns == "windows":
        parts["renting"] = tuple(renting(several, workload) for workload in parts["workloads"])
    return EnvSetup(**parts)


def renting(several: Sequence[Experiment], workload: Workload) -> tuple[Provisioner, KnownDemand, float]:
    """Return what decides on the rented nodes of a workload: the provisioner of its experiment."""
    return several[workload.group].provisioning("", workload.name.split("/")[-2], workload.jobs)


def setup_parts(several: Sequence[Experiment], split: str, seeds: Iterable[int] | None) -> dict[str, Any]:
    """The fields of `EnvSetup`."""
    config = several[0].config
    wanted = None if seeds is None else tuple(seeds)
    given = [experiment.config.workload.load for experiment in several]
    loads = [str(at) if load is None else f"{load:g}" for at, load in enumerate(given)]
    workloads = [
        workload_of(experiment, window, seed, at, f"{loads[at]}/" if len(several) > 1 else "")
        for at, experiment in enumerate(several)
        for window in experiment.windows(split)
        for seed in ((experiment.config.seed,) if wanted is None else wanted)
    ]
    workloads = [workload for workload in workloads if workload.jobs]
    if not workloads:
        raise JobError(f"{split} windows: {NO_JOBS}")
    return {
        "shape": several[0].shape,
        "workloads": tuple(workloads),
        "tables": joint_tables(several),
        "simulator": config.simulator,
        "queue": config.queue,
        "reward": config.reward,
        "settings": config.env,
        "start": start_weights(config),
        "knowledge": several[0].knowledge,
    }


def start_weights(config: Config) -> FloatArray:
    """Return the [WEIGHT_NAMES] index weights from which agents start. Raises CheckpointError for a bad file."""
    if config.env.start is None:
        return IndexWeights().array()
    return load_index_weights(config.env.start)


def joint_tables(experiments: Sequence[Experiment]) -> SpeedTables:
    """Return speed tables with the job types of all experiments."""
    job_types = {job_type for experiment in experiments for job_type in experiment.tables().types}
    most = max(experiment.tables().max_gpus for experiment in experiments)
    for experiment in experiments:
        if set(experiment.tables().types) == job_types and experiment.tables().max_gpus == most:
            return experiment.tables()
    ordered = sorted(
        job_types, key=lambda job_type: (job_type.model, job_type.batch_size or 0, job_type.metric, job_type.gpu_types)
    )
    shape = experiments[0].shape
    tables = compile_tables(experiments[0].profiles, ordered, most, shape.gpus_per_node, gpu_types=shape.node_sizes)
    return tables.within(shape.gpus_by_type)


def env_setup(
    make: Callable[..., SetupKind],
    config: Config | Path | str,
    split: str = "train",
    seeds: Iterable[int] | None = None,
    overrides: Overrides = (),
    **settings: Any,
) -> SetupKind:
    """Return the setup of an experiment: the same object as long as neither configuration nor files change.

    make: builds the setup from an experiment, a split and seeds, such as `training_setup`. The other parameters have
    the same meaning in `cluster_env`.
    """
    config = changed_config(config, overrides, settings)
    if split not in ("train", "validation", "test"):
        raise ConfigError(f"split: expected train, validation or test, got {split!r}")
    if seeds is not None:
        if not isinstance(seeds, Iterable) or isinstance(seeds, str):
            raise ConfigError(f"seeds: expected a list of integers, got {seeds!r}")
        seeds = tuple(seeds)
        if not seeds:
            raise ConfigError("seeds: expected one integer or more, got none")
        for seed in seeds:
            check_integer("seeds", seed, 0, LARGEST_SEED)
    return cast(SetupKind, _cached_setup(config, _stamps(config), split, seeds, make))


@lru_cache(maxsize=4)
def _cached_setup(
    config: Config, stamps: object, split: str, seeds: tuple[int, ...] | None, make: Callable[..., EnvSetup]
) -> EnvSetup:
    """Return the setup of a configuration. stamps: cache key, changes when a file that it names changes."""
    del stamps
    return make(Experiment(config), split, seeds)


def _stamps(config: Config) -> tuple[tuple[str, int, int], ...]:
    """Return path, time and size of all files, also within folders, that a configuration names."""
    texts = re.findall(r'"(/[^"]+)"', config.model_dump_json())
    named = [path for text in texts for path in (*glob(text), *glob(f"{text}/**/*", recursive=True))]
    about = ((path, os.stat(path)) for path in sorted(named) if os.path.exists(path))  # links may lead nowhere
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in about)


def changed_config(config: Config | Path | str, overrides: Overrides, settings: Mapping[str, Any]) -> Config:
    """Return a configuration with overrides, and with changed settings of the environment.

    Raises ConfigError, naming the key, for an invalid override or setting.
    """
    if overrides or not isinstance(config, Config):
        config = load_config(config, overrides, option="overrides")
    entries = config.env.model_dump()
    for key, value in settings.items():
        known = entries.get(key)
        entries[key] = {**known, **value} if isinstance(value, Mapping) and isinstance(known, Mapping) else value
    try:
        return config.model_copy(update={"env": EnvSettings.model_validate(entries)})
    except ValidationError as error:
        raise ConfigError(f"environment: {first_problem(error, EnvSettings, 'settings')[1]}") from None


def workload_of(experiment: Experiment, window: str, seed: int, group: int, prefix: str) -> Workload:
    """Return one window with one seed, with the same failures and estimates as in an evaluation.

    group: index of the experiment, stored in `Workload`.
    prefix: beginning of the workload's name.
    """
    refuse_for_learning(experiment.config.knowledge)
    jobs = tuple(experiment.jobs(window, seed))
    own_seed = window_seed(window, seed)
    span = experiment.workload.windows[window]
    ahead: dict[str, Any] = {}
    if (forecasts := experiment.forecasts(window)) is not None:
        horizon = experiment.config.env.horizon
        nothing = np.zeros(horizon * FORECAST_FEATURES, dtype=np.float32)
        known = forecasts.known(jobs)
        seen = [nothing if forecast is None else forecast_features(forecast, horizon) for forecast in known]
        ahead = {"forecast": np.stack(seen), "forecast_step": experiment.config.forecast.step}
    return Workload(
        name=f"{prefix}{window}/{seed}",
        jobs=jobs,
        seed=own_seed,
        hours=(span.end - span.start) / HOUR,
        noise=estimate_noise(experiment.config.knowledge, len(jobs), own_seed),
        group=group,
        past=experiment.past(window, seed),
        **ahead,
    )
