from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from rlpto.io.errors import ProfileError
from rlpto.performance.fit import fit_folder
from rlpto.performance.profiles import Profile, builtin_profiles, load_file, load_folder, profile_yaml, profiles_yaml

MODELS = ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"]


@pytest.fixture(scope="module")
def builtin() -> Mapping[str, Profile]:
    return builtin_profiles()


@pytest.mark.parametrize("model", MODELS)
def test_built_in_profiles_say_where_they_are_from_and_how_good(builtin: Mapping[str, Profile], model: str) -> None:
    profile = builtin[model]
    assert "Apache-2.0" in profile.source
    assert profile.accuracy.meaning
    assert profile.errors.throughput_median < 0.1
    assert profile.errors.throughput_p90 < 0.3
    assert profile.errors.accuracy_rmse < 0.06
    accuracy = profile.accuracy(np.arange(profile.epochs + 1))
    assert np.all(np.diff(accuracy) >= 0)
    assert accuracy[-1] > 0.5


def test_profiles_of_one_or_several_files_have_different_names(builtin: Mapping[str, Profile], tmp_path: Path) -> None:
    path = tmp_path / "several.yaml"
    path.write_text(profiles_yaml(builtin.values()))
    assert load_file(path) == load_folder(tmp_path) == dict(builtin)
    path.write_text(profiles_yaml([builtin["ncf"], builtin["ncf"]]))
    with pytest.raises(ProfileError, match=r"several.yaml: two profiles are called 'ncf'"):
        load_file(path)
    path.unlink()
    for file in ("a.yaml", "b.yaml"):
        (tmp_path / file).write_text(profile_yaml(builtin["bert"]))
    with pytest.raises(ProfileError, match=r"b.yaml: name 'bert' is taken"):
        load_folder(tmp_path)


def broken(builtin: Mapping[str, Profile], tmp_path: Path, key: str, value: object) -> Path:
    """A file like bert's, with `key` (dotted) set to value, or left out where that is None."""
    content = yaml.safe_load(profile_yaml(builtin["bert"]))
    *parents, last = key.split(".")
    inner = content
    for parent in parents:
        inner = inner[parent]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("samples", None, "samples: missing, expected a value"),
        ("colour", "red", "colour: unknown key"),
        ("samples", "many", "samples: expected a valid number, got 'many'"),
        ("samples", -3.0, "samples: expected greater than 0, got -3.0"),
        ("samples", float("nan"), "samples: expected a finite number, got nan"),
        ("throughput.alpha_c", float("inf"), "throughput.alpha_c: expected a finite number, got inf"),
        ("accuracy.scale", float("inf"), "accuracy.scale: expected a finite number, got inf"),
        ("gpu_types", {"T4": {}, "t4": {}}, "gpu_types.t4: there in another case"),
        ("noise.epochs", [0.0, float("inf")], "noise.epochs.1: expected a finite number, got inf"),
        ("throughput.gamma", 0.5, r"throughput.gamma: expected greater than or equal to 1, got 0.5"),
        ("throughput.law", "amdahl", "throughput: expected law to be one of pollux, parameter_server, table, got"),
        ("noise.epochs", [0.0, 0.0], "noise: epochs must ascend"),
        ("noise.epochs", [0.0], "noise: 1 epochs but 2 values of noise_scale"),
        ("batch.min_local", 500, "min_local 500 exceeds max_local or base"),
        ("batch.base", 1000, "base 1000 exceeds largest 384"),
    ],
)
def test_wrong_keys_are_named_with_their_file(
    builtin: Mapping[str, Profile], tmp_path: Path, key: str, value: object, message: str
) -> None:
    path = broken(builtin, tmp_path, key, value)
    with pytest.raises(ProfileError, match=rf"broken.yaml.*: .*{message}") as caught:
        load_file(path)
    assert "\n" not in str(caught.value)


KNOTS = ["noise.epochs", "noise.noise_scale"]


@pytest.fixture(scope="module")
def refitted(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fits") / "profiles"
    fit_folder(shared_data / "profiles", out)
    return out


def test_built_in_profiles_are_what_the_command_writes(refitted: Path) -> None:
    again, builtin = load_folder(refitted), builtin_profiles()
    assert again.keys() == builtin.keys()
    for model, profile in builtin.items():
        # Those on other GPU types were fitted by another program to other measurements. Another version of the
        # optimiser may end near the same optimum.
        written, committed = (pd.json_normalize(asdict(one)).explode(KNOTS) for one in (again[model], profile))
        common = [column for column in committed if not column.startswith("gpu_types")]
        pd.testing.assert_frame_equal(written[common], committed[common], rtol=2e-3, check_dtype=False)


def test_the_same_measurements_give_the_same_file(measured_folder: Path, tmp_path: Path) -> None:
    first, second = (fit_folder(measured_folder, tmp_path / name) for name in ("one", "two"))
    assert [path.name for path in first] == ["toy.yaml"]
    assert first[0].read_bytes() == second[0].read_bytes()
    profile = load_file(first[0])["toy"]
    assert (profile.epochs, profile.samples, profile.rescale_delay) == (4, 800.0, 30.0)
    assert profile.errors.throughput_median < 0.05
    with pytest.raises(ProfileError, match=r"no sub-folder holds a placements.csv"):
        fit_folder(tmp_path / "one", tmp_path / "out")
