"""The vector of weights that the index decides with, and the file of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlpto.io.errors import CheckpointError
from rlpto.io.paths import example_config, example_names
from rlpto.policies.index_weights import (
    FORMAT,
    INDEX_FEATURES,
    NO_PRICE,
    OFF,
    STEERING_FEATURES,
    IndexWeights,
    index_weights,
    load_weights,
    save_weights,
)
from rlpto.policies.registry import make_policy

from .builders import J, make_state


def written(path: Path, **changes: object) -> Path:
    """A good file with some entries of its weights changed."""
    path.write_text(yaml.safe_dump({"format": FORMAT, "weights": dict.fromkeys(STEERING_FEATURES, 0.5) | changes}))
    return path


def test_the_vector_has_the_weights_of_the_index_and_all_others_off() -> None:
    weights = IndexWeights(gain=0.5, held_remaining=-0.2)
    named = dict(zip(STEERING_FEATURES, weights.vector().tolist(), strict=True))
    assert {name: named[name] for name in INDEX_FEATURES} == weights.model_dump()
    assert {named[name] for name in STEERING_FEATURES if name not in INDEX_FEATURES} == {0.0, NO_PRICE}
    assert index_weights(weights.vector()) == weights
    with pytest.raises(CheckpointError, match=r"pace 0\.5: not a weight of the tuned index"):
        index_weights(np.where(np.array(STEERING_FEATURES) == "pace", 0.5, weights.vector()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([0.0, -20.0, 1.0, 3.25]) | st.floats(-1000, 1000), min_size=20, max_size=20))
def test_what_is_saved_is_what_is_loaded(tmp_path: Path, numbers: list[float]) -> None:
    weights = np.array(numbers)
    assert len(weights) == len(STEERING_FEATURES)
    save_weights(weights, tmp_path / "deep" / "w.yaml")
    np.testing.assert_array_equal(load_weights(tmp_path / "deep" / "w.yaml"), weights)
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["w.yaml"], "no temporary file is left"


def test_a_file_may_leave_out_what_is_off(tmp_path: Path) -> None:
    path = tmp_path / "index.yaml"
    path.write_text(f"format: {FORMAT}\nweights: {{gain: 1, remaining: -0.25}}\n")
    assert dict(zip(STEERING_FEATURES, load_weights(path), strict=True)) == OFF | {"gain": 1.0, "remaining": -0.25}
    state = make_state([J(work=1e6, highest=8), J(work=10, highest=8)], 8)
    assert list(make_policy({"name": "index", "weights": path})(state).gpus) == [0, 8]


@pytest.mark.parametrize("name", example_names("tuned"))
def test_every_tuned_file_is_one(name: str) -> None:
    path = example_config(name)
    assert path is not None
    assert np.isfinite(load_weights(path)).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pric": 1.0}, "weights.pric: unknown feature, did you mean price?"),
        ({"gain": float("nan")}, "weights.gain: expected a number from -1000 to 1000, got nan"),
        ({"gain": "much"}, "weights.gain: expected a number from -1000 to 1000, got 'much'"),
        ({"gain": True}, "weights.gain: expected a number from -1000 to 1000, got True"),
        ({"held": 1e4}, "weights.held: expected a number from -1000 to 1000, got 10000.0"),
    ],
)
def test_a_broken_weight_is_named_with_file_and_line(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    path = written(tmp_path / "w.yaml", **changes)
    with pytest.raises(CheckpointError) as error:
        load_weights(path)
    assert str(error.value).startswith(f"{path}:")
    assert str(error.value).endswith(said)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("format: something\n", "expected format: rlpto index weights 1"),
        (f"format: {FORMAT}\n", "weights: expected numbers by feature"),
        (f"format: {FORMAT}\nweights: 3\n", "weights: expected numbers by feature"),
        (f"format: {FORMAT}\nweights: {{}}\nmore: 1\n", ":3: unknown key more"),
        ("a: [", "expected index weights"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(CheckpointError) as error:
        load_weights(path)
    assert said in str(error.value)


def test_a_file_that_is_missing_or_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.yaml: cannot read the file"):
        load_weights(tmp_path / "none.yaml")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write"):
        save_weights(IndexWeights().vector(), tmp_path / "file" / "index.yaml")
