"""Packed data are unpacked up to a bound, or refused in one line."""

import bz2
import gzip
import lzma
import zipfile
from pathlib import Path

import pytest

from rlpto.io.errors import TraceError
from rlpto.io.reading import MIB, read_text
from rlpto.io.unpacking import packing_of, unpack
from tests.io.test_reading import within
from tests.slow import few

TEXT = b"a,b\n1,2\n" * 10_000
PACKERS = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
}


@pytest.mark.parametrize("name", PACKERS)
def test_what_was_packed_is_read_in_one_or_more_streams(name: str) -> None:
    pack = PACKERS[name]
    assert packing_of(pack(TEXT)) == name
    for data, content in ((pack(TEXT), TEXT), (pack(TEXT) + pack(b"x") + b"\0" * 8, TEXT + b"x"), (pack(b""), b"")):
        assert unpack(data, len(TEXT) + 1, "here", TraceError, "a text") == content


@pytest.mark.parametrize("name", few(PACKERS, "gzip", "xz"))
def test_a_bomb_a_part_and_damaged_data_are_refused(name: str) -> None:
    pack = PACKERS[name]
    data = pack(b" " * 100 * MIB)
    with within(60 * MIB), pytest.raises(TraceError, match=r"^here: more than 4 MiB unpacked, expected a text"):
        unpack(data, 4 * MIB, "here", TraceError, "a text")
    data = pack(TEXT)
    for broken in (data[:-5], data[:20] + b"....." + data[25:], data + b"more"):
        with pytest.raises(TraceError, match=f"^here: broken {name} data, expected a text") as caught:
            unpack(broken, MIB, "here", TraceError, "a text")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x28\xb5\x2f\xfd00", "zstd"),
        (b"7z\xbc\xaf\x27\x1c", "7z"),
        (b"Rar!\x1a\7\0", "rar"),
        (b"\x04\x22M\x18", "lz4"),
    ],
)
def test_other_packings_are_named(data: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=rf"log: packed as {name}: unpack it, expected a trace"):
        read_text(path, "a trace", TraceError, packed=True)


def test_the_only_file_of_a_zip_archive_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("logs")
        archive.writestr("logs/log.csv", TEXT)
    assert read_text(path, "a trace", TraceError, packed=True) == TEXT.decode()
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("b.csv", TEXT)
    with pytest.raises(TraceError, match="packed as zip with no or several files: unpack it"):
        read_text(path, "a trace", TraceError, packed=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", b" " * 100 * MIB)
    with pytest.raises(TraceError, match="packed as zip with more than 64 MiB unpacked"):
        read_text(path, "a trace", TraceError, packed=True)
