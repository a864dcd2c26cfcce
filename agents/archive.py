"""The contents of a checkpoint or an exported agent (`rlpto.io.archive`). Torch is not needed to inspect one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlpto import __version__
from rlpto.io.archive import Archive, read_archive
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import CheckpointError
from rlpto.policies.index_weights import weights_of

CHECKPOINT = "rlpto checkpoint 1"
"""Format of a checkpoint: an agent, and the state of its training."""
AGENT = "rlpto agent 1"
"""Format of an exported agent."""
FORMATS = (CHECKPOINT, AGENT)
INDEX_WEIGHTS, START = "index_weights", "start"
"""Entries of the manifest: the index weights of an agent that is nothing else, and the weights it started from."""
NODES = "nodes"
"""Entry of the manifest of an agent that rents nodes: the nodes that it was trained for."""
NOT_TRAINED = "start, not trained"
"""State of an agent that acts exactly as the heuristic it starts from."""
TRAINED = "trained"


def state_of(manifest: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> str:
    """NOT_TRAINED if the network's last layer is all zeros, or the index weights equal their start; else TRAINED."""
    if INDEX_WEIGHTS in manifest:
        return NOT_TRAINED if manifest[INDEX_WEIGHTS] == manifest.get(START) else TRAINED
    head = [array for name, array in arrays.items() if name.startswith("policy/action_net.")]
    return TRAINED if any(np.any(array) for array in head) else NOT_TRAINED


def spec_of_file(file: Path) -> str:
    """The spec by which an exported agent is used. An agent that rents nodes is the provisioner of any policy."""
    return nodes_spec(file) if NODES in read_archive(file, (AGENT,)).manifest else f"agent:file={file}"


def nodes_spec(file: Path) -> str:
    """The spec of an agent that rents nodes."""
    return f"POLICY@agent:file={file}"


def deciding(archive: Archive) -> tuple[object, ...]:
    """Everything that the agent's decisions depend on: equal for a checkpoint and an agent exported from it."""
    if INDEX_WEIGHTS in archive.manifest:
        return (archive.manifest[INDEX_WEIGHTS],)
    network = {key: array.tobytes() for key, array in archive.group("policy").items()}
    return network, archive.manifest.get("env"), archive.manifest.get(START)


def check_meaning(path: Path, manifest: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise CheckpointError, naming the difference, if the file's numbers have another meaning than `here`."""
    there = manifest.get("meaning")
    if not isinstance(there, dict):
        raise CheckpointError(f"{path}: its manifest lacks meaning, expected a file of RLPTO {__version__}")
    for key, value in here.items():
        if there.get(key) != value:
            raise CheckpointError(
                f"{path}: made by RLPTO {manifest.get('rlpto')}, where {key} meant something else; "
                f"expected a file of RLPTO {__version__}, train or export it again"
            )


def index_weights_of(archive: Archive, path: Path, key: str = INDEX_WEIGHTS) -> FloatArray:
    """The index weights [S] in a file's manifest. Raises CheckpointError, naming the file, if they cannot be used."""
    return weights_of(archive.manifest.get(key), lambda _: f"{path}: {key}")
