"""Files of steering weights: a constant for everything that steers the index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from rlpto.io.arrays import FloatArray
from rlpto.io.errors import CheckpointError
from rlpto.io.files import write_text
from rlpto.io.yaml_file import read_yaml
from rlpto.policies.index_weights import FORMAT as INDEX_FORMAT
from rlpto.policies.index_weights import load_index_weights, weights_of
from rlpto.policies.steering import STEERING_FEATURES, steering_weights

FORMAT = "rlpto steering weights 1"
"""First entry of such a file: what it is, and the version of its form."""
LARGEST_STEERING_WEIGHT = 1000.0
"""Either way; searches stay far below."""


def save_steering_weights(weights: FloatArray, path: Path) -> None:
    """Write [STEERING_FEATURES] weights, whole or not at all. Raises CheckpointError if that is not possible."""
    entries = dict(zip(STEERING_FEATURES, map(float, weights), strict=True))
    write_text(path, yaml.safe_dump({"format": FORMAT, "weights": entries}, sort_keys=False), "steering weights")


def load_steering_weights(path: Path) -> FloatArray:
    """[STEERING_FEATURES] weights from a file of them, or from a file of index weights.

    Raises CheckpointError, naming file, line and key, if it is neither.
    """
    file = read_yaml(path, "steering weights or index weights", CheckpointError)
    found = file.data.get("format")
    if found == INDEX_FORMAT:
        return steering_weights(load_index_weights(path).vector())
    if found != FORMAT:
        raise CheckpointError(f"{path}: not a file of weights, expected format: {FORMAT} or {INDEX_FORMAT}")
    return np.array(list(weights_of(file, STEERING_FEATURES, LARGEST_STEERING_WEIGHT).values()))
