"""Checkpoints: a training resumed from one is bit for bit the training that was never interrupted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlpto import __version__
from rlpto.agents.archive import AGENT, CHECKPOINT, INDEX_WEIGHTS, NODES, index_weights_of, state_of
from rlpto.agents.nodes_agent import nodes_agent_of
from rlpto.agents.ppo import TimedPPO
from rlpto.agents.trained import agent_of, load_weights, weight_arrays
from rlpto.io.archive import Archive, read_archive, write_archive
from rlpto.io.errors import CheckpointError

LARGEST_EXPORT_BYTES = 2_000_000
"""Largest size of an exported agent [bytes]."""


@dataclass(frozen=True)
class Identity:
    """Identifies the training of a checkpoint.

    digest: digest of all settings and files that determine the result. seed: seed of the training.
    provenance: origin of the agent, for readers of an exported agent.
    """

    digest: str
    seed: int
    provenance: Mapping[str, Any]


def save_checkpoint(
    path: Path,
    model: TimedPPO,
    agent: Mapping[str, Any],
    notes: Mapping[str, Any],
) -> None:
    """Write the complete state of a training. Valid only between an update and the next rollout.

    agent: entries of the manifest that are needed to use the agent's weights. notes: entries on the training. Raises
    CheckpointError if the file cannot be written; an earlier file at `path` is then unchanged.
    """
    env_state, weights = model.env.batch.state(), weight_arrays(model.policy)
    optimizer = model.policy.optimizer.state_dict()
    numpy_name, numpy_key, *numpy_rest = np.random.get_state(legacy=True)
    manifest = {
        **agent,
        "state": state_of(agent, weights),
        **notes,
        "learner": {**model.progress(), "optimizer": optimizer["param_groups"]},
        "random": {"numpy": [numpy_name, *numpy_rest], "environments": env_state.pop("rngs")},
    }
    arrays = {
        **weights,
        **{
            f"optimizer/{index}/{name}": value.detach().cpu().numpy()
            for index, values in optimizer["state"].items()
            for name, value in values.items()
        },
        **{f"environments/{name}": array for name, array in env_state.items()},
        "random/torch": torch.get_rng_state().numpy(),
        **{f"random/cuda/{i}": state.numpy() for i, state in enumerate(_cuda_states(model))},
        "random/numpy": np.asarray(numpy_key),
    }
    write_archive(path, manifest, arrays, "a checkpoint")


def read_checkpoint(path: Path, identity: Identity) -> Archive:
    """Read a checkpoint of the training `identity`.

    Raises CheckpointError, with the reason, if it is damaged, of another version, or of another training.
    """
    archive = read_archive(path, (CHECKPOINT,))
    manifest = archive.manifest
    if manifest.get("rlpto") != __version__:
        raise CheckpointError(
            f"{path}: made by RLPTO {manifest.get('rlpto')}, training cannot be resumed exactly by {__version__}; "
            "expected the same version"
        )
    if manifest.get("seed") != identity.seed:
        raise CheckpointError(f"{path}: of a training with seed {manifest.get('seed')}, expected {identity.seed}")
    if manifest.get("digest") != identity.digest:
        raise CheckpointError(
            f"{path}: of a training with other settings, or the files they name have changed; "
            "expected the configuration it was made with"
        )
    return archive


def restore(model: TimedPPO, archive: Archive, path: Path) -> None:
    """Put a new learner of the same training into the state of a checkpoint, random numbers included.

    An environment over an external cluster begins a new episode. Raises CheckpointError if the file is incomplete.
    """
    load_weights(model.policy, archive, path)
    try:
        learner, states = archive.manifest["learner"], archive.manifest["random"]
        model.policy.optimizer.load_state_dict(
            {"state": _optimizer_state(archive), "param_groups": learner["optimizer"]}
        )
        model.num_timesteps = int(archive.manifest["steps"])
        environments = archive.group("environments") | {"rngs": states["environments"]}
        observation = model.env.batch.restore(environments)._asdict()
        if not all({"terms", "elapsed"} <= episode.keys() for episode in learner["episodes"]):
            raise KeyError("terms of episodes")  # now, rather than after an update when figures are computed
        model.go_on(int(learner["updates"]), learner["episodes"], observation)
        numpy_name, *numpy_rest = states["numpy"]
        np.random.set_state((numpy_name, archive.arrays["random/numpy"], *numpy_rest))
        torch.set_rng_state(torch.as_tensor(archive.arrays["random/torch"]))
        cuda = archive.group("random/cuda")
        if model.device.type == "cuda":
            here = range(min(len(cuda), torch.cuda.device_count()))  # the machine before may have had more GPUs
            torch.cuda.set_rng_state_all([torch.as_tensor(cuda[str(i)]) for i in here])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: incomplete ({error}), expected a checkpoint of `rlpto train`") from None


def export_agent(checkpoint: Path, out: Path) -> tuple[int, str]:
    """Write the agent of a checkpoint to a file of its own, without the state of the training.

    Returns its size in bytes, and whether it is trained (`rlpto.agents.archive.state_of`). Raises CheckpointError
    if the checkpoint cannot be used, or the agent is too large.
    """
    archive = read_archive(checkpoint, (CHECKPOINT, AGENT))
    refuse: Callable[[Archive, Path], object] = index_weights_of if INDEX_WEIGHTS in archive.manifest else agent_of
    if NODES in archive.manifest:
        refuse = nodes_agent_of
    refuse(archive, checkpoint)  # a file that could not be used later
    known = "rlpto meaning env network index_weights start seed steps best history digest provenance"
    kept = (*known.split(), NODES)
    manifest = {
        "format": AGENT,
        "state": state_of(archive.manifest, archive.arrays),
        **{key: archive.manifest[key] for key in kept if key in archive.manifest},
    }
    weights = {key: array for key, array in archive.arrays.items() if key.startswith("policy/")}
    size = sum(array.nbytes for array in weights.values())
    if size > LARGEST_EXPORT_BYTES:
        raise CheckpointError(
            f"{checkpoint}: its agent takes {size / 1e6:.1f} MB, expected at most {LARGEST_EXPORT_BYTES / 1e6:g} MB: "
            "a smaller agent.network.width"
        )
    write_archive(out, manifest, weights, "the agent")
    return out.stat().st_size, manifest["state"]


def _cuda_states(model: TimedPPO) -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if model.device.type == "cuda" else []


def _optimizer_state(archive: Archive) -> dict[int, dict[str, torch.Tensor]]:
    """State of each parameter, by its number."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, array in archive.group("optimizer").items():
        index, _, name = key.partition("/")
        state.setdefault(int(index), {})[name] = torch.as_tensor(array)
    return state
