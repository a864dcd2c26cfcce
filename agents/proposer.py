"""A network that proposes candidates to a planner, as a file and at work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from rlpto.agents.archive import read_archive, write_archive
from rlpto.agents.network import JobSetPolicy
from rlpto.agents.trained import check_meaning, load_weights, meaning, weight_arrays, whole_weights
from rlpto.core.cluster import ClusterState
from rlpto.envs.observation import Observation
from rlpto.envs.plan_env import look, plan_observation, plan_spaces, proposed
from rlpto.envs.settings import EnvSettings
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import CheckpointError
from rlpto.policies.steering import STEERING_FEATURES

FORMAT = "rlpto proposals 1"
"""What the manifest of a file says under `format`."""
MOST_ANCHORS = 1000
"""In a file."""


class Proposer:
    """Proposes one candidate around each of its anchors in every state. Nothing is random.

    anchors: [K, STEERING_FEATURES]. settings: of what it sees.
    """

    def __init__(self, network: JobSetPolicy, anchors: FloatArray, settings: EnvSettings) -> None:
        self.network, self.anchors, self.settings = network, anchors, settings
        self._look = look(settings)

    def __call__(self, state: ClusterState, plan: FloatArray, base: FloatArray) -> FloatArray:
        """[K, STEERING_FEATURES] weights. plan: that stands. base: of the planner."""
        inputs = network_inputs([(self._look(state), plan, base)], len(self.anchors))
        with torch.no_grad():
            actions = mean_actions(self.network, inputs).numpy()
        return proposed(self.anchors, actions)


def network_inputs(seen: Sequence[tuple[Observation, FloatArray, FloatArray]], slots: int) -> dict[str, Tensor]:
    """What the network is given: `slots` rows for every observation, plan that stood and base."""
    rows = [plan_observation(*one, slot, slots) for one in seen for slot in range(slots)]
    return {name: torch.as_tensor(np.stack([row[name] for row in rows])) for name in rows[0]}


def mean_actions(network: JobSetPolicy, inputs: dict[str, Tensor]) -> Tensor:
    """[B, ACTION_FEATURES] means of the actions; gradients are kept."""
    features = network.extract_features(inputs, network.pi_features_extractor)
    assert isinstance(features, Tensor)
    means: Tensor = network.action_net(network.mlp_extractor.forward_actor(features))
    return means


def save_proposer(proposer: Proposer, path: Path) -> None:
    """Write a file, whole or not at all. Raises CheckpointError if that is not possible."""
    manifest = {
        "format": FORMAT,
        "meaning": meaning(),
        "env": proposer.settings.model_dump(mode="json", exclude={"start"}),
        "anchors": proposer.anchors.tolist(),
    }
    write_archive(path, manifest, weight_arrays(proposer.network), "proposals")


def load_proposer(path: Path) -> Proposer:
    """The network of a file. Raises CheckpointError, naming the file and what is wrong, if it cannot be used."""
    archive = read_archive(path, (FORMAT,))
    check_meaning(path, archive.manifest)
    try:
        settings = EnvSettings.model_validate(archive.manifest["env"])
        anchors = whole_weights(np.array(archive.manifest["anchors"], dtype=np.float64))
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path}: its manifest cannot be used ({reason}), expected that of proposals") from None
    shape = anchors.shape
    fits = len(shape) == 2 and shape[1] == len(STEERING_FEATURES) and 1 <= shape[0] <= MOST_ANCHORS
    if not fits or not np.isfinite(anchors).all():
        raise CheckpointError(f"{path}: anchors: expected rows of {len(STEERING_FEATURES)} finite numbers")
    network = JobSetPolicy(*plan_spaces(settings, len(anchors)), lambda _: 0.0)
    load_weights(network, archive, path)
    return Proposer(network, anchors, settings)
