"""A trained agent: its weights, the settings needed to use them, and how to save and load it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from rlpto import __version__
from rlpto.agents.archive import FORMATS, INDEX_WEIGHTS, NODES, START, check_meaning, index_weights_of, nodes_spec
from rlpto.agents.ppo import FromStart, JobSetPolicy
from rlpto.agents.settings import AgentSettings, NetworkSettings
from rlpto.envs.actions import ACTION_FEATURES, LARGEST
from rlpto.envs.episodes import EnvSetup, ExternalSetup, action_space, observation_space
from rlpto.envs.features import CLUSTER_FEATURES, JOB_FEATURES
from rlpto.envs.observation import FORECAST_FEATURES, VERSION, Observation
from rlpto.envs.settings import EnvSettings
from rlpto.io.archive import Archive, read_archive
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import CheckpointError, ConfigError
from rlpto.io.reading import check_finite
from rlpto.policies.index_weights import weights_data

LARGEST_WEIGHT = 1e6
"""Largest magnitude of a network's weight; weights of trained networks stay below a hundred."""
WEIGHTS = "policy"
"""Group of the network's arrays in a file."""


@dataclass(frozen=True)
class TrainedAgent:
    """An agent that can act. env: its observations and actions. start: [S] index weights of action zero."""

    env: EnvSettings
    start: FloatArray
    network: JobSetPolicy

    def act(self, observation: Observation) -> AnyArray:
        """The best actions for a batch of observations: [B, ACTION_FEATURES]."""
        actions: AnyArray = np.clip(self.network.best(observation._asdict()), -LARGEST, LARGEST)
        return actions


def meaning() -> dict[str, Any]:
    """Meaning of the numbers that go into and come out of a network, in this version of RLPTO."""
    return {
        "observation": VERSION,
        "job_features": list(JOB_FEATURES),
        "cluster_features": list(CLUSTER_FEATURES),
        "forecast_features": FORECAST_FEATURES,
        "action_features": list(ACTION_FEATURES),
    }


def agent_manifest(setup: EnvSetup | ExternalSetup, settings: AgentSettings) -> dict[str, Any]:
    """Entries of the manifest that are needed to use an agent's weights."""
    return {
        "rlpto": __version__,
        "meaning": meaning(),
        "env": setup.settings.model_dump(mode="json", exclude={"start"}),
        "network": settings.network.model_dump(mode="json"),
        START: weights_data(setup.start),
    }


def weight_arrays(network: FromStart) -> dict[str, AnyArray]:
    """The network's weights by their names in a file."""
    kept = {re.sub(r"^(mlp_extractor\.\w+)_net\.", r"\1.", name): part for name, part in network.state_dict().items()}
    return {f"{WEIGHTS}/{name}": tensor.detach().cpu().numpy() for name, tensor in kept.items()}


def load_weights(network: FromStart, archive: Archive, path: Path) -> None:
    """Load a file's weights into a network. Raises CheckpointError if they do not fit, or are not finite."""
    # stable-baselines3 has other names for two layers than the files.
    found = archive.group(WEIGHTS).items()
    weights = {re.sub(r"^(mlp_extractor\.\w+)\.", r"\1_net.", name): array for name, array in found}
    check_finite(weights, f"{path}: weights", LARGEST_WEIGHT, CheckpointError)
    try:
        network.load_state_dict({name: torch.as_tensor(array) for name, array in weights.items()})
    except (RuntimeError, TypeError) as error:
        detail = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"{path}: its weights do not fit the network it describes: {detail}") from None


def agent_of(archive: Archive, path: Path) -> TrainedAgent:
    """The agent in the contents of a checkpoint or an exported agent.

    Raises CheckpointError, naming the file and the reason, if it cannot be used.
    """
    manifest = archive.manifest
    if NODES in manifest:
        raise CheckpointError(
            f"{path}: an agent that rents nodes, expected one that allocates GPUs; it is used as {nodes_spec(path)}"
        )
    check_meaning(path, manifest, meaning())
    try:
        env = EnvSettings.model_validate(manifest["env"])
        network = NetworkSettings.model_validate(manifest["network"])
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path}: its manifest cannot be used ({reason}), expected that of an agent") from None
    start = index_weights_of(archive, path, START)
    policy = JobSetPolicy(observation_space(env), action_space(), lambda _: 0.0, width=network.width)
    load_weights(policy, archive, path)
    return TrainedAgent(env, start, policy)


class StartingAgent:
    """An agent that is fine-tuned on a real cluster. file: a checkpoint, or an exported agent.

    Raises CheckpointError if it cannot be used.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.archive: Archive = read_archive(file, FORMATS)
        if INDEX_WEIGHTS in self.archive.manifest:
            raise CheckpointError(
                f"{file}: learnt from whole windows; expected an agent of agent.learns: decisions, since real jobs "
                "cannot play thousands of windows"
            )
        self.trained: TrainedAgent = agent_of(self.archive, file)

    def settings(self, wanted: AgentSettings) -> AgentSettings:
        """The wanted settings, with one environment and the agent's own network."""
        network = NetworkSettings.model_validate(self.archive.manifest["network"])
        return wanted.model_copy(update={"envs": 1, "network": network})

    def env(self, wanted: EnvSettings) -> EnvSettings:
        """The agent's own observations and actions; scale, hold and episodes as wanted, and the plain reward.

        Raises ConfigError if a wanted setting differs that an agent cannot change.
        """
        own = self.trained.env
        for key in ("max_jobs", "horizon"):
            there, asked = getattr(own, key), getattr(wanted, key)
            if key in wanted.model_fields_set and there != asked:
                raise ConfigError(f"env.{key}: {asked}, but the agent of {self.file} was trained with {there}")
        given = {key: getattr(wanted, key) for key in ("episode", "reward_scale", "hold")}
        return own.model_copy(update={**given, "baseline": "none", "start": None})
