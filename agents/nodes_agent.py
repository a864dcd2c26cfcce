"""The trained agent for rented nodes, as a provisioner. Imports torch only when an agent is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from rlpto import __version__
from rlpto.agents.archive import FORMATS, NODES, check_meaning
from rlpto.agents.policy import AgentOptions, PretrainedOptions
from rlpto.agents.settings import AgentSettings, NetworkSettings
from rlpto.core.renting import NodesState
from rlpto.envs.nodes import NodesSetup
from rlpto.io.archive import Archive, read_archive
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import CheckpointError, ConfigError, PolicyError
from rlpto.io.settings import Settings
from rlpto.policies.spec import parse_spec
from rlpto.provisioning.base import Provisioner, needs_forecast
from rlpto.provisioning.control import NodeGroups
from rlpto.provisioning.features import FEATURES, gpus_of_action, node_features
from rlpto.provisioning.registry import make_provisioner, spec_of

if TYPE_CHECKING:
    from rlpto.agents.ppo import FromStart


def nodes_meaning() -> dict[str, Any]:
    """Meaning of the numbers that go into and come out of the network, in this version of RLPTO."""
    return {"node_features": list(FEATURES)}


def nodes_manifest(setup: NodesSetup, settings: AgentSettings) -> dict[str, Any]:
    """Entries of the manifest that are needed to use an agent's weights."""
    groups = NodeGroups(setup.shape)
    return {
        "rlpto": __version__,
        "meaning": nodes_meaning(),
        "network": settings.network.model_dump(mode="json"),
        NODES: {
            "heuristic": spec_of(setup.heuristic),
            "features": setup.width,
            "gpus": groups.size.tolist(),
            "boot": groups.boot.tolist(),
        },
    }


class TrainedNodes:
    """An agent that can act. heuristic: provisioner of action zero. gpus, boot: [G] of the nodes of its training.
    origin: its name in errors."""

    name = "agent"

    def __init__(
        self,
        network: FromStart,
        heuristic: Provisioner,
        gpus: FloatArray,
        boot: FloatArray,
        origin: str = "agent",
    ) -> None:
        self._network, self._heuristic, self._gpus, self._boot = network, heuristic, gpus, boot
        self._origin = origin
        self.forecasts = needs_forecast(heuristic)

    def __call__(self, state: NodesState) -> FloatArray:
        """[R] GPUs. Raises PolicyError for nodes whose GPUs or boot times differ from the agent's."""
        self.check_nodes(state.size, state.boot)
        spare = self._heuristic(state) - state.demand
        features = node_features(state, spare).reshape(len(spare) // len(self._gpus), -1)
        return gpus_of_action(state, spare, self._network.best({"nodes": features}).reshape(-1).astype(np.float64))

    def check_nodes(self, size: FloatArray, boot: FloatArray) -> None:
        """Raise PolicyError for nodes whose GPUs or boot times differ from the agent's."""
        for name, own, there in (("GPUs", self._gpus, size), ("s of boot time", self._boot, boot)):
            if len(there) % len(own) or (np.resize(own, len(there)) != there).any():
                wanted, got = (", ".join(f"{value:g}" for value in values) for values in (own, there))
                raise PolicyError(
                    f"{self._origin} for rented nodes of {wanted} {name}, but these have {got} (cluster.nodes); "
                    "train another one"
                )


def trained_nodes(setup: NodesSetup, network: FromStart) -> TrainedNodes:
    """The agent of a network under training."""
    groups = NodeGroups(setup.shape)
    return TrainedNodes(network, setup.heuristic, groups.size, groups.boot)


def nodes_agent_of(archive: Archive, path: Path) -> TrainedNodes:
    """The agent in a file's contents. Raises CheckpointError if there is none, or it cannot be used."""
    from gymnasium import spaces

    from rlpto.agents.ppo import NodesPolicy
    from rlpto.agents.trained import load_weights

    manifest = archive.manifest
    if NODES not in manifest:
        raise CheckpointError(f"{path}: an agent that allocates GPUs, expected one that rents nodes (learns: nodes)")
    check_meaning(path, manifest, nodes_meaning())
    try:
        nodes, network = manifest[NODES], NetworkSettings.model_validate(manifest["network"])
        heuristic = make_provisioner(parse_spec(str(nodes["heuristic"])))
        gpus, boot = (np.array(nodes[key], dtype=np.float64).reshape(-1) for key in ("gpus", "boot"))
        width = int(nodes["features"])
        if not (0 < width <= 10_000 and 0 < len(gpus) == len(boot) <= 100):
            raise ValueError("features, gpus and boot do not go together")
    except (ValidationError, ConfigError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path}: its manifest cannot be used ({reason}), expected that of an agent") from None
    seen = spaces.Dict({"nodes": spaces.Box(-np.inf, np.inf, (width,), np.float32)})
    policy = NodesPolicy(seen, spaces.Box(-1.0, 1.0, (len(gpus),), np.float32), lambda _: 0.0, width=network.width)
    load_weights(policy, archive, path)
    return TrainedNodes(policy, heuristic, gpus, boot, f"{path}: agent")


class NodesAgent:
    """A trained agent: spare GPUs relative to a heuristic's."""

    name = "agent"
    summary = "trained agent of rlpto/Nodes-v1"
    Options: type[Settings] = AgentOptions

    def __init__(self, options: AgentOptions | PretrainedOptions) -> None:
        self.path = options.checkpoint()
        self._trained = nodes_agent_of(read_archive(self.path, FORMATS), self.path)
        self.forecasts = self._trained.forecasts

    def __call__(self, state: NodesState) -> FloatArray:
        """[R] GPUs."""
        return self._trained(state)

    def check_nodes(self, size: FloatArray, boot: FloatArray) -> None:
        """Raise PolicyError for other nodes than the agent's."""
        self._trained.check_nodes(size, boot)


class PretrainedNodes(NodesAgent):
    """An agent for rented nodes that comes with RLPTO."""

    name = "pretrained"
    summary = "trained agent of rlpto/Nodes-v1 that comes with RLPTO, as in pretrained:NAME"
    Options = PretrainedOptions
    POSITIONAL = "agent"
