"""The constants of the tuned index, and the file they are kept in."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from pydantic import Field

from rlpto.io.arrays import FloatArray
from rlpto.io.errors import CheckpointError
from rlpto.io.files import write_text
from rlpto.io.reading import one_line
from rlpto.io.settings import Settings
from rlpto.io.yaml_file import YamlFile, read_yaml

FORMAT = "rlpto index weights 1"
"""First entry of a weights file: what it is, and the version of its form."""

LARGEST_WEIGHT = 10.0
"""Of the index, either way."""


class IndexWeights(Settings):
    """Weights of the index: one for each feature, which multiply it and add up to a step's log score.

    A step gives a job more GPUs. r stands for log(hours the job has left on one GPU), ratios and
    logs have no unit. The defaults are the two-parameter form: marginal gain over remaining time to
    the power 1/4, with stickiness; every job is given its min_gpus before others grow, and classes,
    where they differ, come before size: of starts by the queue's rule where that is strict, else by weight.
    """

    gain: float = Field(1.0, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    """Times log(speed-up gained per GPU of the step), relative to one GPU."""
    remaining: float = Field(-0.25, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    """Times r."""
    remaining_squared: float = Field(0.0, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    """Times r squared."""
    load_remaining: float = Field(0.0, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    """Times r x log(1 + GPUs all jobs could use / capacity)."""
    priority: float = Field(2.0, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    """Times 1, 0 or -1 for class high, normal, low (after aging)."""
    age: float = Field(0.0, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    """Times log(1 + hours since the job was submitted)."""
    attained: float = Field(0.0, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    """Times log(1 + GPU-hours the job has had)."""
    start: float = Field(3.0, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    """Times 1 if the step starts from no GPUs, else 0; the default lets nearly all jobs start before any grows."""
    held: float = Field(1.0, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    """Stickiness: times the part of the step's GPUs that the job holds now, in [0, 1]."""
    held_remaining: float = Field(0.0, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    """Size-dependent stickiness: times that part x r."""
    slope: float = Field(0.0, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    """Times s, how steeply accuracy rises ahead of the job, see `rlpto.policies.steering`; 0: not looked at."""
    slope_start: float = Field(0.0, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    """Times s if the step starts from no GPUs, further to `slope`."""

    def vector(self) -> FloatArray:
        """[features] the weights in the order of INDEX_FEATURES."""
        return np.array([getattr(self, name) for name in INDEX_FEATURES])


INDEX_FEATURES: tuple[str, ...] = tuple(IndexWeights.model_fields)
"""Names of the features, in the order of every weight vector. `IndexWeights` says what each is."""


def save_index_weights(weights: IndexWeights, path: Path) -> None:
    """Write a weights file, whole or not at all. Raises CheckpointError if that is not possible."""
    text = yaml.safe_dump({"format": FORMAT, "weights": weights.model_dump()}, sort_keys=False)
    write_text(path, text, "index weights")


def load_index_weights(path: Path) -> IndexWeights:
    """Read a weights file. Raises CheckpointError, naming file, line and key, if it is none."""
    file = read_yaml(path, "index weights", CheckpointError)
    if file.data.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a file of index weights, expected format: {FORMAT}")
    return IndexWeights(**weights_of(file, INDEX_FEATURES, LARGEST_WEIGHT))


SLOPE_FEATURES: tuple[str, ...] = ("slope", "slope_start")
"""Those that look at accuracy; files written before there were any lack them, and mean 0."""


def weights_of(file: YamlFile, features: Sequence[str], largest: float) -> dict[str, float]:
    """A number from -largest to largest for each feature; 0 for those of SLOPE_FEATURES that the file lacks.

    Raises CheckpointError if another is missing, or one is unknown.
    """
    weights = _entries_of(file, features)
    return {name: _number(file, name, weights.get(name, 0.0), largest) for name in features}


def _entries_of(file: YamlFile, features: Sequence[str]) -> dict[str, object]:
    """What stands under `weights`: an entry for each feature and for nothing else, whatever it is."""
    if unknown := next((key for key in file.data if key not in ("format", "weights")), None):
        raise CheckpointError(f"{file.place((unknown,))}: unknown key {unknown}, expected format and weights")
    weights = file.data.get("weights")
    if not isinstance(weights, dict):
        raise CheckpointError(f"{file.place(('weights',))}: weights: expected a number for each of the features")
    if missing := [name for name in features if name not in weights and name not in SLOPE_FEATURES]:
        raise CheckpointError(f"{file.place(('weights',))}: weights.{missing[0]}: missing")
    for name in weights:
        if name not in features:
            near = difflib.get_close_matches(str(name), features, 1, 0.0)[0]
            place = f"{file.place(('weights', str(name)))}: weights.{name}"
            raise CheckpointError(f"{place}: unknown feature, did you mean {near}?")
    return weights


def _number(file: YamlFile, name: str, value: object, largest: float) -> float:
    """A number of an entry. Raises CheckpointError if it is none, or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= largest:
        got = one_line(repr(value), 60)
        place = f"{file.place(('weights', name))}: weights.{name}"
        raise CheckpointError(f"{place}: expected a number from {-largest:g} to {largest:g}, got {got}")
    return float(value)
