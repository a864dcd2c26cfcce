"""Index weights: the vector with which the index, agents and the planner decide, and its file format.

A vector has a weight for each of STEERING_FEATURES. `IndexWeights` holds the weights of the untrained index; the
weights in `FURTHER` let a learned policy depend on the state, with r = log(hours the job has left on one GPU) and
load = log(1 + GPUs all jobs could use / capacity).
Weights missing in a file are off (`OFF`). A *steering vector* may also contain, after the weights, a network of bonuses
for every job (`rlpto.policies.bonus_network`), and its file an entry for the network.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
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
from rlpto.io.yaml_file import YamlFile, read_yaml
from rlpto.policies.bonus_network import (
    CLUSTER_FEATURES,
    CONTEXT_FEATURES,
    HIDDEN,
    JOB_FEATURES,
    NETWORK_SIZE,
    widened,
)

FORMAT = "rlpto index weights 1"
"""First entry of a weights file: its format and version."""

LARGEST_WEIGHT = 1000.0
"""Largest absolute value of a weight; searches stay far below."""
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

    def vector(self) -> FloatArray:
        """Return these weights as a vector [STEERING_FEATURES], with all others off."""
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
STEERING_FEATURES: tuple[str, ...] = (
    *(name for name in INDEX_FEATURES if name not in SLOPE_FEATURES),
    *FURTHER,
    *ACCURACY_FEATURES,
)
"""Names of the weights, in the order of every weight vector."""
VECTOR_SIZES = len(STEERING_FEATURES), len(STEERING_FEATURES) + NETWORK_SIZE
"""Lengths of a steering vector, without and with a network."""
OFF = {name: NO_PRICE if name == "price" else 0.0 for name in STEERING_FEATURES}
"""Weights that change no score and reject no step."""


def steering_meaning(size: int) -> dict[str, Any]:
    """Describe the numbers of a steering vector of a size, in this version of RLPTO."""
    network = {
        "job_features": list(JOB_FEATURES),
        "cluster_features": list(CLUSTER_FEATURES),
        "context_features": list(CONTEXT_FEATURES),
        "hidden": HIDDEN,
    }
    return {"steering_features": list(STEERING_FEATURES), "network": network if size == VECTOR_SIZES[1] else None}


def steering_vector(numbers: FloatArray, meaning: Mapping[str, Any]) -> FloatArray:
    """Convert the numbers of an earlier version of RLPTO to a steering vector [S] that makes the same decisions.

    meaning: description by that version (`steering_meaning`). Weights that it lacked are off. Raises ValueError if this
    version does not know a weight or feature.
    """
    names, network = meaning.get("steering_features"), meaning.get("network")
    if not isinstance(names, list) or any(names.count(name) > 1 or name not in STEERING_FEATURES for name in names):
        raise ValueError("its steering_features")
    if len(names) > numbers.size:
        raise ValueError(f"{numbers.size} numbers for {len(names)} steering_features")
    weights = OFF | dict(zip(names, numbers[: len(names)].tolist(), strict=True))
    vector, further = np.array(list(weights.values()), dtype=np.float64), numbers[len(names) :].astype(np.float64)
    if network is None and not len(further):
        return vector
    return np.concatenate([vector, _widened(further, network)])


def _widened(numbers: FloatArray, network: object) -> FloatArray:
    """Convert a network to [NETWORK_SIZE]. network: its part of a meaning. Raises ValueError if that is unusable."""
    seen = ("job_features", "cluster_features", "context_features")
    parts: list[Any] = [network.get(name, []) for name in seen] if isinstance(network, dict) else [None]
    hidden = network.get("hidden") if isinstance(network, dict) else None
    if not all(isinstance(part, list) for part in parts) or type(hidden) is not int:
        raise ValueError("its hidden units and lists of features")
    return widened(numbers, [str(name) for part in parts for name in part], hidden)


def save_weights(vector: FloatArray, path: Path) -> None:
    """Write a steering vector [S], without weights that are off. Raises CheckpointError if the file cannot be
    written."""
    named = zip(STEERING_FEATURES, map(float, vector[: len(OFF)]), strict=True)
    content: dict[str, Any] = {
        "format": FORMAT,
        "weights": {name: value for name, value in named if value != OFF[name]},
    }
    if len(vector) > len(OFF):
        content["network"] = {**steering_meaning(len(vector))["network"], "numbers": vector[len(OFF) :].tolist()}
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120)
    write_text(path, text, "index weights")


def load_weights(path: Path) -> FloatArray:
    """Read the steering vector [S] of a file: weights, and the network if there is one.

    Raises CheckpointError, naming file, line and key, if the file has no weights, or its network has other features.
    """
    file = read_yaml(path, "index weights", CheckpointError)
    if file.data.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a file of index weights, expected format: {FORMAT}")
    if unknown := next((key for key in file.data if key not in ("format", "weights", "network")), None):
        raise CheckpointError(f"{file.place((unknown,))}: unknown key {unknown}, expected format, weights and network")
    weights = file.data.get("weights")
    if not isinstance(weights, dict):
        raise CheckpointError(f"{file.place(('weights',))}: weights: expected numbers by feature")
    for name in weights:
        if name not in OFF:
            near = difflib.get_close_matches(str(name), STEERING_FEATURES, 1, 0.0)[0]
            place = f"{file.place(('weights', str(name)))}: weights.{name}"
            raise CheckpointError(f"{place}: unknown feature, did you mean {near}?")
    found = np.array([_number(file, name, weights.get(name, off)) for name, off in OFF.items()])
    return found if file.data.get("network") is None else np.concatenate([found, _network(file)])


def _network(file: YamlFile) -> FloatArray:
    """Check and return the network [NETWORK_SIZE] of a file."""
    given, place = file.data["network"], file.place(("network",))
    listed = given.get("numbers") if isinstance(given, dict) else None
    numbers = np.array(listed, dtype=object).reshape(-1)
    if not all(isinstance(value, int | float) and abs(value) <= LARGEST_WEIGHT for value in numbers):
        limits = f"from {-LARGEST_WEIGHT:g} to {LARGEST_WEIGHT:g}"
        raise CheckpointError(f"{place}: network.numbers: expected numbers {limits}")
    try:
        return _widened(numbers.astype(np.float64), given)
    except ValueError as error:
        raise CheckpointError(
            f"{place}: network: {one_line(str(error), 120)}, expected one of this version: train it again"
        ) from None


def _number(file: YamlFile, name: str, value: object) -> float:
    """Check and return the value of an entry."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_WEIGHT:
        place, got = f"{file.place(('weights', name))}: weights.{name}", one_line(repr(value), 60)
        raise CheckpointError(f"{place}: expected a number from {-LARGEST_WEIGHT:g} to {LARGEST_WEIGHT:g}, got {got}")
    return float(value)
