"""Index weights: the numbers with which the index, agents and the planner decide, and their form in files.

An array of index weights [S] has a weight for each of WEIGHT_NAMES, and may continue with the numbers of a network of
bonuses for every job (`rlpto.policies.bonus_network`). `IndexWeights` holds the weights of the untrained index; the
weights in `FURTHER` let a learned policy depend on the state, with r = log(hours the job has left on one GPU) and
load = log(1 + GPUs all jobs could use / capacity).
Files name each weight (`weights_data`), as YAML or in the manifest of an agent. Weights missing there are off (`OFF`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import Field

from rlpto.io.arrays import FloatArray
from rlpto.io.errors import CheckpointError
from rlpto.io.files import write_text
from rlpto.io.reading import one_line
from rlpto.io.settings import Settings
from rlpto.io.yaml_file import read_yaml
from rlpto.policies.bonus_network import (
    CLUSTER_FEATURES,
    CONTEXT_FEATURES,
    HIDDEN,
    JOB_FEATURES,
    NETWORK_SIZE,
)

FORMAT = "rlpto index weights 1"
"""First entry of a weights file: its format and version."""

LARGEST_WEIGHT = 1000.0
"""Largest absolute value of a weight; searches stay far below."""
_LIMITS = f"from {-LARGEST_WEIGHT:g} to {LARGEST_WEIGHT:g}"
NO_PRICE = -20.0
"""`price` that rejects no step."""

_Weight = Annotated[float, Field(ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)]


class IndexWeights(Settings):
    """Weights of the index, one for each feature. The sum of weight x feature is a step's log score.

    A step gives a job more GPUs. r stands for log(hours the job has left on one GPU); ratios and
    logs have no unit. The defaults are the two-parameter form: marginal gain over remaining time to
    the power 1/4, with stickiness. Nearly every job gets its min_gpus before others grow, and priority
    classes come before size: for starts by the queue's rule if it is strict, else by weight.
    """

    gain: _Weight = 1.0
    """Times log(speed-up gained per GPU of the step), relative to one GPU."""
    remaining: _Weight = -0.25
    """Times r."""
    remaining_squared: _Weight = 0.0
    """Times r squared."""
    load_remaining: _Weight = 0.0
    """Times r x log(1 + GPUs all jobs could use / capacity)."""
    priority: _Weight = 2.0
    """Times 1, 0 or -1 for class high, normal, low (after aging)."""
    age: _Weight = 0.0
    """Times log(1 + hours since the job was submitted)."""
    attained: _Weight = 0.0
    """Times log(1 + GPU-hours the job has had)."""
    start: _Weight = 3.0
    """Times 1 if the step starts from no GPUs, else 0; the default lets nearly all jobs start before any grows."""
    held: _Weight = 1.0
    """Stickiness: times the part of the step's GPUs that the job holds now, in [0, 1]."""
    held_remaining: _Weight = 0.0
    """Size-dependent stickiness: times that part x r."""
    slope: _Weight = 0.0
    """Times s, the steepness of the accuracy curve ahead (`rlpto.policies.index`). At 0 it is ignored."""
    slope_start: _Weight = 0.0
    """Times s if the step starts from no GPUs, in addition to `slope`."""

    def array(self) -> FloatArray:
        """Return these weights as an array [WEIGHT_NAMES], with all others off."""
        return np.array([getattr(self, name, off) for name, off in OFF.items()])


INDEX_FEATURES: tuple[str, ...] = tuple(IndexWeights.model_fields)
"""Names of the weights in a config, defined in `IndexWeights`."""
SLOPE_FEATURES: tuple[str, ...] = ("slope", "slope_start")
"""The weights of the index that depend on the steepness of the accuracy curve."""
FURTHER = {
    "gain_remaining": "Times log(speed-up gained per GPU of the step) x r.",
    "gain_load": "Times log(speed-up gained per GPU of the step) x load.",
    "pace": "Times log(speed before the step, relative to one GPU).",
    "pace_remaining": "Times log(speed before the step, relative to one GPU) x r.",
    "start_remaining": "Times r if the step starts the job, else 0.",
    "start_load": "Times load if the step starts the job, else 0.",
    "price": "Log of the hours that a further GPU-hour must save, or the step is left out.",
    "patience": "Rescale delays that growing a running job must save, or the step is left out.",
}
"""The weights that let a learned policy depend on the state."""
WORTH_FEATURES = {
    "worth": "An hour of a job is worth 1 + worth x class weight (3, 2, 1) x share of its accuracy that it misses.",
    "worth_growth": "Times the logarithm of that worth if the step grows the job.",
    "keep": "Rescale delays that shrinking a job to its price must save, or it keeps its GPUs; 0: it shrinks at once.",
}
"""The weights that define the worth of a job's hour, used in `rlpto.policies.index`."""
ACCURACY_FEATURES: tuple[str, ...] = (*SLOPE_FEATURES, *WORTH_FEATURES)
"""The weights that depend on accuracy. They are trained if the reward counts accuracy shortfall; the planner does not
change them."""
WEIGHT_NAMES: tuple[str, ...] = (
    *(name for name in INDEX_FEATURES if name not in SLOPE_FEATURES),
    *FURTHER,
    *ACCURACY_FEATURES,
)
"""Names of the weights, in the order of every array of index weights."""
SIZES = len(WEIGHT_NAMES), len(WEIGHT_NAMES) + NETWORK_SIZE
"""Lengths of an array of index weights, without and with a network."""
_NETWORK: dict[str, Any] = {
    "job_features": list(JOB_FEATURES),
    "cluster_features": list(CLUSTER_FEATURES),
    "context_features": list(CONTEXT_FEATURES),
    "hidden": HIDDEN,
}
"""Description of a network, besides its numbers."""
OFF = {name: NO_PRICE if name == "price" else 0.0 for name in WEIGHT_NAMES}
"""Weights that change no score and reject no step."""


def weights_data(index_weights: FloatArray) -> dict[str, Any]:
    """Return index weights [S] as plain data by name, without weights that are off: the content of a weights file, and
    an entry of an agent's manifest."""
    named = zip(WEIGHT_NAMES, map(float, index_weights[: len(OFF)]), strict=True)
    data: dict[str, Any] = {
        "format": FORMAT,
        "weights": {name: value for name, value in named if value != OFF[name]},
    }
    if len(index_weights) > len(OFF):
        data["network"] = {**_NETWORK, "numbers": index_weights[len(OFF) :].tolist()}
    return data


def weights_of(data: object, place: Callable[[tuple[str, ...]], str]) -> FloatArray:
    """Return the index weights [S] of plain data by name. place: where the value of these keys is, for errors.

    Raises CheckpointError, naming place and key, for unknown names or numbers, or a network with other features.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CheckpointError(f"{place(())}: no index weights, expected format: {FORMAT}")
    if unknown := next((key for key in data if key not in ("format", "weights", "network")), None):
        raise CheckpointError(f"{place((unknown,))}: unknown key {unknown}, expected format, weights and network")
    weights = data.get("weights")
    if not isinstance(weights, dict):
        raise CheckpointError(f"{place(('weights',))}: weights: expected numbers by name")
    for name, value in weights.items():
        said = f"{place(('weights', str(name)))}: weights.{name}"
        if name not in OFF:
            near = difflib.get_close_matches(str(name), WEIGHT_NAMES, 1, 0.0)[0]
            raise CheckpointError(f"{said}: unknown weight, did you mean {near}?")
        if not _is_weight(value):
            raise CheckpointError(f"{said}: expected a number {_LIMITS}, got {one_line(repr(value), 60)}")
    found = np.array([float(weights.get(name, off)) for name, off in OFF.items()])
    if data.get("network") is None:
        return found
    return np.concatenate([found, _network(data["network"], place(("network",)))])


def _network(given: object, place: str) -> FloatArray:
    """Check and return a network [NETWORK_SIZE]."""
    if not isinstance(given, dict) or {**given, "numbers": None} != {**_NETWORK, "numbers": None}:
        raise CheckpointError(f"{place}: network: expected the features and units of this version: train it again")
    numbers = given.get("numbers")
    if not isinstance(numbers, list) or len(numbers) != NETWORK_SIZE or not all(map(_is_weight, numbers)):
        raise CheckpointError(f"{place}: network.numbers: expected {NETWORK_SIZE} numbers {_LIMITS}")
    return np.array(numbers, dtype=np.float64)


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_WEIGHT


def save_index_weights(index_weights: FloatArray, path: Path) -> None:
    """Write index weights [S] as YAML. Raises CheckpointError if the file cannot be written."""
    text = yaml.safe_dump(weights_data(index_weights), sort_keys=False, default_flow_style=None, width=120)
    write_text(path, text, "index weights")


def load_index_weights(path: Path) -> FloatArray:
    """Read the index weights [S] of a YAML file. Raises CheckpointError, naming file, line and key, if it is broken."""
    file = read_yaml(path, "index weights", CheckpointError)
    return weights_of(file.data, lambda keys: file.place(keys) if keys else str(path))
