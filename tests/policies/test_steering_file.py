"""Files of steering weights, and what is said of broken ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from rlpto.io.errors import CheckpointError
from rlpto.policies.index_weights import IndexWeights, save_index_weights
from rlpto.policies.steering import STEERING_FEATURES, steering_weights
from rlpto.policies.steering_file import (
    FORMAT,
    load_steering_weights,
    save_steering_weights,
)


def written(path: Path, **changes: object) -> Path:
    """A good file with some entries of its weights changed (None: left out)."""
    weights = dict.fromkeys(STEERING_FEATURES, 0.5) | changes
    kept = {name: value for name, value in weights.items() if value is not None}
    path.write_text(yaml.safe_dump({"format": FORMAT, "weights": kept}))
    return path


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    weights = np.random.default_rng(1).normal(size=len(STEERING_FEATURES))
    save_steering_weights(weights, tmp_path / "deep" / "w.yaml")
    np.testing.assert_array_equal(load_steering_weights(tmp_path / "deep" / "w.yaml"), weights)


def test_a_file_of_index_weights_steers_like_the_index(tmp_path: Path) -> None:
    index = IndexWeights(gain=0.7, held=2.0)
    save_index_weights(index, tmp_path / "index.yaml")
    np.testing.assert_array_equal(load_steering_weights(tmp_path / "index.yaml"), steering_weights(index.vector()))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"price": None}, "weights.price: missing"),
        ({"pric": 1.0}, "weights.pric: unknown feature, did you mean price?"),
        ({"gain": float("nan")}, "weights.gain: expected a number from -1000 to 1000, got nan"),
        ({"gain": "much"}, "weights.gain: expected a number from -1000 to 1000, got 'much'"),
        ({"gain": True}, "weights.gain: expected a number from -1000 to 1000, got True"),
    ],
)
def test_a_broken_weight_is_named_with_file_and_line(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    path = written(tmp_path / "w.yaml", **changes)
    with pytest.raises(CheckpointError) as error:
        load_steering_weights(path)
    assert str(error.value).startswith(f"{path}:")
    assert str(error.value).endswith(said)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("format: something\n", "expected format: rlpto steering weights 1"),
        (f"format: {FORMAT}\nweights: 3\n", "weights: expected a number for each"),
        (f"format: {FORMAT}\nweights: {{}}\nmore: 1\n", ":3: unknown key more"),
        ("a: [", "expected steering weights or index weights"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(CheckpointError) as error:
        load_steering_weights(path)
    assert said in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.yaml: cannot read the file"):
        load_steering_weights(tmp_path / "none.yaml")
