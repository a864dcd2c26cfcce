"""Files of steering weights: a constant for everything that steers the index."""

from __future__ import annotations

import difflib
from pathlib import Path

import numpy as np
import yaml

from rlpto.arrays import FloatArray
from rlpto.errors import CheckpointError, ConfigError
from rlpto.files import write_text
from rlpto.policies.index_weights import FORMAT as INDEX_FORMAT
from rlpto.policies.index_weights import load_index_weights
from rlpto.policies.steering import STEERING_FEATURES, steering_weights
from rlpto.yamlfile import YamlFile, read_yaml

FORMAT = "rlpto steering weights 1"
"""First entry of such a file: what it is, and the version of its form."""


def save_steering_weights(weights: FloatArray, path: Path) -> None:
    """Write [STEERING_FEATURES] weights, whole or not at all. Raises CheckpointError if that is not possible."""
    entries = dict(zip(STEERING_FEATURES, map(float, weights), strict=True))
    write_text(path, yaml.safe_dump({"format": FORMAT, "weights": entries}, sort_keys=False), "steering weights")


def load_steering_weights(path: Path) -> FloatArray:
    """[STEERING_FEATURES] weights from a file of them, or from a file of index weights.

    Raises CheckpointError, naming file, line and key, if it is neither.
    """
    try:
        file = read_yaml(path)
    except ConfigError as error:
        raise CheckpointError(f"{error}; expected steering weights or index weights") from None
    found = file.data.get("format")
    if found == INDEX_FORMAT:
        return steering_weights(load_index_weights(path).vector())
    if found != FORMAT:
        raise CheckpointError(f"{path}: not a file of weights, expected format: {FORMAT} or {INDEX_FORMAT}")
    return _checked_weights(file)


def _checked_weights(file: YamlFile) -> FloatArray:
    """The weights of a file of steering weights, all there and all numbers."""
    if unknown := sorted(file.data.keys() - {"format", "weights"}):
        raise CheckpointError(f"{file.place((unknown[0],))}: unknown key {unknown[0]}, expected format and weights")
    weights = file.data.get("weights")
    if not isinstance(weights, dict):
        raise CheckpointError(f"{file.place(('weights',))}: weights: expected a number for each of the features")
    if missing := [name for name in STEERING_FEATURES if name not in weights]:
        raise CheckpointError(f"{file.place(('weights',))}: weights.{missing[0]}: missing")
    for name, value in weights.items():
        place = f"{file.place(('weights', name))}: weights.{name}"
        if name not in STEERING_FEATURES:
            near = difflib.get_close_matches(str(name), STEERING_FEATURES, 1, 0.0)[0]
            raise CheckpointError(f"{place}: unknown feature, did you mean {near}?")
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise CheckpointError(f"{place}: expected a finite number, got {value!r}")
    return np.array([float(weights[name]) for name in STEERING_FEATURES])
