"""All untrusted files are read here.

Sizes are bounded before memory is allocated, and nesting before anything recurses. Every exception of a parser becomes
one error that names the file and its expected content. Nothing is ever unpickled.
"""

from __future__ import annotations

import csv
import io
import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from rlpto.io.arrays import AnyArray
from rlpto.io.errors import RlptoError, system_reason
from rlpto.io.unpacking import CheckedZip, packing_of, unpack

MIB = 2**20
LARGEST_TEXT_BYTES = 1024 * MIB
"""Largest trace, unpacked."""
LARGEST_JSON_BYTES = 16 * MIB
"""Largest other JSON text; its data take up to thirty times the memory of the text."""
LARGEST_YAML_BYTES = 1 * MIB
LARGEST_ENTRIES = 10_000
"""Most entries of an archive."""
LARGEST_EXPANSION = 100
"""Largest expansion of a compressed text: logs expand 5 to 30 times, a zip bomb 1,000 times."""
_SMALL_BYTES = 64 * MIB
"""Texts up to this unpacked size may exceed that expansion."""
_END_OF_ARCHIVE = struct.Struct("<4s4H2LH")
_ARCHIVE_ENTRY_BYTES = 1024
"""Most bytes of an entry in the list at the end of an archive."""

PARSER_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError,
    RuntimeError, SyntaxError, TypeError, ValueError,
    csv.Error, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Exceptions that the parsers of Python, NumPy, YAML and Arrow are known to raise on broken files."""


def one_line(wrong: object, longest: int = 160) -> str:
    """The message of an exception on one short line; its name if the message is empty."""
    text = " ".join(str(wrong).split()) or type(wrong).__name__
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


@contextmanager
def parsing(place: Path | str, expected: str, error: type[RlptoError]) -> Iterator[None]:
    """Turn every exception of a parser on a file into one `error` with place, reason and `expected`."""
    try:
        yield
    except RlptoError:
        raise
    except RecursionError:
        raise error(f"{place}: nested too deeply, expected {expected}") from None
    except MemoryError:
        raise error(f"{place}: asks for more memory than there is, expected {expected}") from None
    except OSError as refused:
        raise error(f"{place}: cannot read the file: {one_line(system_reason(refused))}, expected {expected}") from None
    except PARSER_ERRORS as wrong:
        raise error(f"{place}: truncated, damaged or foreign ({one_line(wrong)}), expected {expected}") from None


def check_file(path: Path, expected: str, error: type[RlptoError], largest: int) -> int:
    """Return the size of a regular file. Raises `error` if there is none, or it is larger than `largest` [bytes]."""
    with parsing(path, expected, error):
        size = path.stat().st_size
    if not path.is_file():
        kind = "is a directory" if path.is_dir() else "no regular file"
        raise error(f"{path}: cannot read the file: {kind}, expected {expected}")
    if size > largest:
        raise error(f"{path}: {size / MIB:,.0f} MiB, expected {expected} of at most {largest / MIB:g} MiB")
    return size


def read_text(
    path: Path, expected: str, error: type[RlptoError], largest: int = LARGEST_TEXT_BYTES, packed: bool = False
) -> str:
    """Read a text in UTF-8, without its byte order mark. packed: it may be packed as gzip, bzip2 or xz, or
    be the only file of a zip archive, under any name.

    Raises `error`, with the line if known, if the file is missing, too large, empty or no text.
    """
    size = check_file(path, expected, error, largest)
    with parsing(path, expected, error), path.open("rb") as file:
        data = file.read(size)
    if packed and (name := packing_of(data)):
        most = min(largest, max(_SMALL_BYTES, LARGEST_EXPANSION * len(data)))
        unpacked = _only_entry if name == "zip" else unpack
        data = unpacked(data, most, path, error, expected)
    try:
        text = data.decode("utf-8-sig")
        broken = text.find("\0")
        line = text.count("\n", 0, max(broken, 0)) + 1
    except UnicodeDecodeError as wrong:
        broken, line = wrong.start, data.count(b"\n", 0, wrong.start) + 1
    if broken >= 0:
        raise error(f"{path}:{line}: not a text in UTF-8, expected {expected}")
    if not text.strip():
        raise error(f"{path}: the file is empty, expected {expected}")
    return text


def parse_json(text: str | bytes, place: Path | str, expected: str, error: type[RlptoError]) -> Any:
    """Data of a JSON text, whose size is limited as for files; NaN and infinity are refused."""
    if len(text) > LARGEST_JSON_BYTES:
        raise error(f"{place}: {len(text) / MIB:,.0f} MiB, expected {expected} of at most {LARGEST_JSON_BYTES / MIB:g}")
    with parsing(place, expected, error):
        return json.loads(text, parse_constant=_no_number)


def read_json(path: Path, expected: str, error: type[RlptoError]) -> Any:
    """Data of a JSON file."""
    return parse_json(read_text(path, expected, error, LARGEST_JSON_BYTES), path, expected, error)


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _only_entry(data: bytes, most: int, path: Path | str, error: type[RlptoError], expected: str) -> bytes:
    """Content of the only file in an archive, of at most `most` bytes."""
    with parsing(path, expected, error):
        _check_listing(data[-_END_OF_ARCHIVE.size - 2**16 :])
        with CheckedZip(io.BytesIO(data)) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
            if len(infos) != 1 or infos[0].file_size > most:
                said = "no or several files" if len(infos) != 1 else f"more than {most / MIB:,.4g} MiB unpacked"
                raise error(f"{path}: packed as zip with {said}: unpack it, expected {expected}, alone in the archive")
            return archive.read(infos[0])


def _check_listing(tail: bytes) -> None:
    """Raise ValueError unless the end record of an archive announces a list of entries of allowed size."""
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _END_OF_ARCHIVE.size:
        raise zipfile.BadZipFile("File is not a zip file")
    *_, count, listing, _, _ = _END_OF_ARCHIVE.unpack_from(tail, at)
    if tail[max(at - 20, 0) :].startswith(b"PK\6\7") or count > LARGEST_ENTRIES:
        raise ValueError(f"more than {LARGEST_ENTRIES:,} entries")
    if listing > LARGEST_ENTRIES * _ARCHIVE_ENTRY_BYTES:
        raise ValueError("the list of its entries is too long")


def check_finite(arrays: Mapping[str, AnyArray], place: Path | str, largest: float, error: type[RlptoError]) -> None:
    """Raise `error`, naming the array, if an array is not numeric, or holds NaN or magnitudes beyond `largest`."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or not (np.abs(array.astype(np.float64)) <= largest).all():
            raise error(f"{place}: {name} holds NaN or numbers beyond {largest:g}, expected finite numbers")
