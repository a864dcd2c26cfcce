"""Files that were made to harm are refused in one line, and cheaply."""

import gzip
import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from rlpto.agents.archive import read_archive
from rlpto.core.rewards import RewardWeights
from rlpto.experiments.config import load_config
from rlpto.io.errors import CheckpointError, ConfigError, RlptoError, TraceError
from rlpto.io.reading import MIB, check_finite, parse_array, read_json, read_text
from rlpto.io.settings import Settings
from rlpto.io.yaml_file import read_yaml
from rlpto.performance.profiles import load_file
from rlpto.policies.index_weights import load_weights
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


def zipped(path: Path, contents: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


def array(header: str, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content


MANIFEST = json.dumps({"format": "kind"}).encode()
LYING = "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,), }\n"


def test_an_archive_that_would_fill_the_memory_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("manifest.json", MANIFEST)
        with archive.open("arrays/x.npy", "w") as entry:
            for _ in range(33):
                entry.write(bytes(16 * MIB))
    assert path.stat().st_size < 4 * MIB
    with within(20 * MIB), pytest.raises(CheckpointError, match=r"bomb\.zip: .*528 MiB unpacked, at most 512 are read"):
        read_archive(path, ("kind",))
    path = zipped(tmp_path / "a.zip", {"manifest.json": MANIFEST}, zipfile.ZIP_BZIP2)
    with pytest.raises(CheckpointError, match="another way than stored or deflated"):
        read_archive(path, ("kind",))
    path = zipped(tmp_path / "b.zip", {"manifest.json": MANIFEST + bytes(100 * MIB)})
    listed = (len(MANIFEST) + 100 * MIB).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(listed, len(MANIFEST).to_bytes(4, "little")))
    with within(20 * MIB), pytest.raises(CheckpointError, match=r"b\.zip: .*damaged"):
        read_archive(path, ("kind",))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (array(LYING, bytes(8)), "in 8 bytes"),
        (array("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", bytes(8)), "an array of object"),
        (array("[" * 3000), "expected kind"),
        (b"\x80\x04\x95", "reading magic string"),
    ],
)
def test_an_array_with_a_forged_header_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = zipped(tmp_path / "agent.zip", {"manifest.json": MANIFEST, "arrays/x.npy": content})
    with within(5 * MIB), pytest.raises(CheckpointError, match=rf"agent\.zip: .*{reason}") as caught:
        read_archive(path, ("kind",))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "U3", "?", [("a", "i4"), ("b", "f8")]])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_arrays_come_back_as_they_were(dtype: object, shape: tuple[int, ...]) -> None:
    before = np.ones(shape, dtype=dtype)
    written = io.BytesIO()
    np.lib.format.write_array(written, np.asfortranarray(before))
    after = parse_array(written.getvalue())
    assert after.dtype == before.dtype
    assert after.flags.writeable
    np.testing.assert_array_equal(after, before)


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
    "number": ("seed: 0x" + "f" * 5000, "a number of 5002 characters"),
    "base 60": ("seed: 1" + ":1" * 3_000, "a number of 6001 characters"),
    "size": ("# " + "x" * 2 * MIB, "2 MiB, expected"),
    "date": ("seed: 2001-99-99\n", "month must be in 1..12"),
}


@pytest.mark.parametrize("read", [load_config, load_file, load_weights, load_calibration])
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
