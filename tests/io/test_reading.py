"""Files that were made to harm are refused in one line, and cheaply."""

import gzip
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from rlpto.core.rewards import RewardWeights
from rlpto.experiments.config import load_config
from rlpto.io.errors import CheckpointError, ConfigError, RlptoError, TraceError
from rlpto.io.reading import MIB, check_finite, read_json, read_text
from rlpto.io.settings import Settings
from rlpto.io.yaml_file import read_yaml
from rlpto.performance.profiles import load_file
from rlpto.policies.index_weights import load_index_weights
from rlpto.workloads.calibration import load_calibration
from rlpto.workloads.importers import import_trace


@contextmanager
def within(bytes_: int) -> Iterator[None]:
    """Python and NumPy may take so much memory at once, and no more."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < bytes_
    finally:
        tracemalloc.stop()


def laughs() -> str:
    """350 bytes that stand for ten billion values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    return "\n".join(lines)


YAML_BOMBS = {
    "laughs": (laughs(), "more than 200,000 values"),
    "recursive": ("name: &a [*a]\n", "an alias stands for something it is part of"),
    "merged": ("a: &a {x: &b {<<: *b}}\n", "an alias stands for something it is part of"),
    "deep": ("[" * 5000, "nested too deeply"),
    "deep list": ("a:\n" + "- " * 500_000 + "b", "nested too deeply"),
    "deep key": ("? " * 500_000 + "b", "nested too deeply"),
    "number": ("seed: 0x" + "f" * 5000, "a number of 5002 characters"),
    "base 60": ("seed: 1" + ":1" * 3_000, "a number of 6001 characters"),
    "size": ("# " + "x" * 2 * MIB, "2 MiB, expected"),
    "date": ("seed: 2001-99-99\n", "month must be in 1..12"),
}


@pytest.mark.parametrize("read", [load_config, load_file, load_index_weights, load_calibration])
@pytest.mark.parametrize("bomb", YAML_BOMBS)
def test_every_reader_of_yaml_is_bounded(read: Callable[[Path], object], bomb: str, tmp_path: Path) -> None:
    text, reason = YAML_BOMBS[bomb]
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    with pytest.raises(RlptoError, match=rf"bomb\.yaml.*{reason}") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_aliases_that_stand_for_little_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "fine.yaml"
    path.write_text("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n")
    file = read_yaml(path)
    assert file.data == yaml.safe_load(path.read_text())
    assert file.place(("c", "y")).endswith(":3")


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"timestamp,duration\n" + b" " * 100 * MIB, 1))
    with within(200 * MIB), pytest.raises(TraceError, match=r"log\.gz: more than 64 MiB unpacked"):
        import_trace("philly_csv", path)


def test_a_million_columns_are_refused_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("timestamp,duration,num_gpus,cluster" + ",x" * 1_000_000 + "\n" + "1," * 1_000_000 + "\n")
    with pytest.raises(TraceError, match=r"wide\.csv:1: more than 1000 columns"):
        import_trace("philly_csv", path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "damaged or foreign"),
        (b" " * 17 * MIB, "17 MiB, expected"),
        (b"\xff\xfe", "not a text in UTF-8"),
    ],
)
def test_json_is_bounded(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"x\.json.*{reason}"):
        read_json(path, "a file", CheckpointError)


def test_what_is_no_regular_file_is_not_waited_for() -> None:
    with pytest.raises(TraceError, match="/dev/zero: cannot read the file: no regular file"):
        read_text(Path("/dev/zero"), "a trace", TraceError)


def test_numbers_that_mean_nothing_are_named() -> None:
    with pytest.raises(CheckpointError, match="here: b holds NaN or numbers beyond 10"):
        check_finite({"a": np.ones(3), "b": np.array([1.0, np.nan])}, "here", 10.0, CheckpointError)
    with pytest.raises(CheckpointError, match="here: c holds"):
        check_finite({"c": np.array(["x"])}, "here", 10.0, CheckpointError)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("seed=true", "expected a number, got true or false"),
        ("reward.time=1e308", "reward.time: expected less than or equal to"),
        ("queue.aging_normal=1e308", "expected at most 1e[+]12, got 1e[+]308"),
        ("cluster.nodes=[{count: 1000000000000}]", "cluster.nodes.0.count: expected less than or equal to 100000"),
        ("forecast.every=1ns", "expected a time such as 10min or 1h"),
    ],
)
def test_settings_that_nobody_can_mean_are_refused(override: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "exp.yaml"
    path.write_text("name: x\n")
    with pytest.raises(ConfigError, match=f"--set: .*{reason}"):
        load_config(path, [override])
    assert RewardWeights.model_validate({"classes": [1, 2, 3]}).classes == (1, 2, 3)


def test_whole_numbers_larger_than_any_other_are_refused() -> None:
    class Counted(Settings):
        """A setting without bounds of its own."""

        count: int = 0

    with pytest.raises(ValidationError, match=r"expected at most 1e[+]12, got 1\.79769e[+]308"):
        Counted(count=10**400)
