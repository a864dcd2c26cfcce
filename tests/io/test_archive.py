"""Archives come back as they were; files that were made to harm are refused in one line, and cheaply."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlpto.io.archive import LARGEST_HEADER_BYTES, read_archive, write_archive
from rlpto.io.errors import CheckpointError
from rlpto.io.reading import MIB
from tests.io.test_reading import within

PLAIN = {"__metadata__": {"rlpto": '{"format": "kind"}'}}


def forged(path: Path, header: object, content: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return path


def entry(first: int, last: int, *shape: int, dtype: str = "F64") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, last]}


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "u1", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_contents_come_back_as_they_were(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    before = np.asfortranarray(np.ones((*shape, 2), dtype=dtype))[..., 0]
    manifest = {"format": "kind", "names": ["\ud800", "ü\0"], "number": 0.1}
    write_archive(tmp_path / "a", manifest, {"x/y": before, "b": np.arange(3)}, "a test")
    write_archive(tmp_path / "b", manifest, {"b": np.arange(3), "x/y": before.copy()}, "a test")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    archive = read_archive(tmp_path / "a", ("other", "kind"))
    after = archive.group("x")["y"]
    assert archive.manifest == manifest
    assert after.dtype == before.dtype
    assert after.flags.writeable
    np.testing.assert_array_equal(after, before, strict=True)


@pytest.mark.parametrize(
    ("header", "content", "reason"),
    [
        (PLAIN | {"x": entry(0, 8 * 99999999999, 99999999999)}, bytes(8), "not fully covered"),
        (PLAIN | {"x": entry(0, 8, 2**62, 4)}, bytes(8), "overflow"),
        (PLAIN | {"x": entry(0, 8, 1), "y": entry(0, 8, 1)}, bytes(8), "invalid offset"),
        (PLAIN | {"x": entry(0, 8, 2)}, bytes(8), "expected kind"),
        (PLAIN | {"x": entry(0, 8, 1, dtype="O")}, bytes(8), "expected kind"),
        (PLAIN | {"x": entry(0, 8, 8, dtype="F8_E5M2")}, bytes(8), "expected kind"),
        (PLAIN, b"more", "not fully covered"),
        (b"[" * 3000, b"", "expected kind"),
        ({}, b"", "its format is None, expected kind"),
        ({"__metadata__": {"rlpto": 3}}, b"", "expected kind"),
        ({"__metadata__": {"rlpto": '{"format": "kind 0"}'}}, b"", "its format is 'kind 0', expected kind"),
        ({"__metadata__": {"rlpto": '{"format": ["kind"]}'}}, b"", "its format is .*, expected kind"),
        ({"__metadata__": {"rlpto": '{"format": "kind", "x": NaN}'}}, b"", "NaN is no JSON"),
        ({"__metadata__": {"rlpto": "[" * 100_000}}, b"", "nested too deeply"),
    ],
)
def test_a_forged_header_is_refused(header: object, content: bytes, reason: str, tmp_path: Path) -> None:
    path = forged(tmp_path / "agent.safetensors", header, content)
    with within(5 * MIB), pytest.raises(CheckpointError, match=rf"agent\.safetensors: .*{reason}") as caught:
        read_archive(path, ("kind",))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"abc", b"PK\3\4" + bytes(99), b"\x80\x04\x95" + bytes(99), b"\xff" * 99])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a: truncated, damaged or foreign .*expected kind"):
        read_archive(path, ("kind",))


def test_a_large_header_and_a_large_manifest_are_refused(tmp_path: Path) -> None:
    path = forged(tmp_path / "a", b" " * (LARGEST_HEADER_BYTES + 1))
    with within(5 * MIB), pytest.raises(CheckpointError, match="a header of 33,554,433 bytes"):
        read_archive(path, ("kind",))
    path = forged(path, {"__metadata__": {"rlpto": " " * 17 * MIB}})
    with pytest.raises(CheckpointError, match="17 MiB, expected kind of at most 16"):
        read_archive(path, ("kind",))
    with pytest.raises(CheckpointError, match="b: cannot write a test: 17 MiB of JSON, expected 16 at most"):
        write_archive(tmp_path / "b", {"x": "x" * 17 * MIB}, {}, "a test")
