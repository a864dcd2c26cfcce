"""The contents of a checkpoint or an exported agent (`rlpto.io.archive`). Torch is not needed to inspect one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlpto import __version__
from rlpto.io.archive import Archive
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import CheckpointError
from rlpto.io.reading import check_finite, one_line
from rlpto.policies.index_weights import LARGEST_WEIGHT, steering_vector

CHECKPOINT = "rlpto checkpoint 1"
"""Format of a checkpoint: an agent, and the state of its training."""
AGENT = "rlpto agent 1"
"""Format of an exported agent."""
KINDS = (CHECKPOINT, AGENT)
STEERING, STEERING_START = "steering/agent", "steering/start"
"""Arrays of an agent that is a steering vector: its numbers, and the start of its training."""
NOT_TRAINED = "start, not trained"
"""State of an agent that acts exactly as the heuristic it starts from."""
TRAINED = "trained"


def state_of(arrays: Mapping[str, AnyArray]) -> str:
    """NOT_TRAINED if the network's last layer is all zeros, or the steering vector equals its start; else TRAINED."""
    if STEERING in arrays:
        return NOT_TRAINED if np.array_equal(arrays[STEERING], arrays.get(STEERING_START, ())) else TRAINED
    head = [array for name, array in arrays.items() if name.startswith("policy/action_net.")]
    return TRAINED if any(np.any(array) for array in head) else NOT_TRAINED


def deciding(archive: Archive) -> tuple[object, ...]:
    """Everything that the agent's decisions depend on: equal for a checkpoint and an agent exported from it."""
    numbers = {key: array.tobytes() for key, array in archive.arrays.items() if key.startswith((STEERING, "policy/"))}
    return numbers, archive.manifest.get("env"), archive.manifest.get("start")


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


def steering_of(archive: Archive, path: Path) -> FloatArray:
    """The steering vector [S] of an agent's file, also of an earlier version of RLPTO. Raises CheckpointError if it
    cannot be used."""
    numbers, meaning = archive.arrays[STEERING], archive.manifest.get("meaning")
    check_finite({STEERING: numbers}, f"{path}: arrays", LARGEST_WEIGHT, CheckpointError)
    if numbers.ndim != 1 or not isinstance(meaning, dict):
        raise CheckpointError(f"{path}: {STEERING}: shape {numbers.shape}, expected a steering vector")
    try:
        return steering_vector(numbers, meaning)
    except ValueError as error:
        raise CheckpointError(
            f"{path}: made by RLPTO {archive.manifest.get('rlpto')}, unknown here: {one_line(str(error), 120)}; "
            f"expected a file of RLPTO {__version__}, train or export it again"
        ) from None
