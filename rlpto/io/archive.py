"""The one format of what RLPTO learns and records: safetensors, with plain data as one JSON text in the header.

Agents, checkpoints, forecasters and run records are such files. Nothing in them is unpickled or unpacked, so an
untrusted file can do no harm, and its arrays need no more memory than the file: safetensors refuses arrays that
overlap, leave gaps, or do not end with the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from rlpto.io.arrays import AnyArray
from rlpto.io.errors import CheckpointError, RlptoError
from rlpto.io.files import whole_file
from rlpto.io.reading import LARGEST_ENTRIES, LARGEST_JSON_BYTES, MIB, check_file, one_line, parse_json, parsing

LARGEST_ARCHIVE_BYTES = 512 * MIB
LARGEST_HEADER_BYTES = 2 * LARGEST_JSON_BYTES
"""Largest header of a file: the manifest, whose quotes are escaped, and an entry for each array."""
_MANIFEST = "rlpto"
"""Name of the manifest in the header's `__metadata__`."""


@dataclass(frozen=True)
class Archive:
    """Contents of a file. manifest: plain data. arrays: numbers by name."""

    manifest: dict[str, Any]
    arrays: dict[str, AnyArray]

    def group(self, name: str) -> dict[str, AnyArray]:
        """The arrays called `name`/..., by the rest of their names."""
        start = f"{name}/"
        return {key.removeprefix(start): array for key, array in self.arrays.items() if key.startswith(start)}


def write_archive(
    path: Path,
    manifest: Mapping[str, Any],
    arrays: Mapping[str, AnyArray],
    what: str,
    error: type[RlptoError] = CheckpointError,
) -> None:
    """Write a file, whole or not at all; equal contents give equal bytes.

    manifest: JSON data with the format under `format`. arrays: numbers or truth values of any shape. Raises `error`,
    whose message calls the file `what`, if the file cannot be written or its manifest is too large to be read.
    """
    content = archive_bytes(manifest, arrays, f"{path}: cannot write {what}", error)
    with whole_file(path, what, error) as unfinished:
        unfinished.write_bytes(content)


def archive_bytes(
    manifest: Mapping[str, Any], arrays: Mapping[str, AnyArray], problem: str, error: type[RlptoError] = CheckpointError
) -> bytes:
    """Contents of the file that `write_archive` writes. Raises `error` with `problem` and the reason if the manifest is
    too large to be read."""
    text = json.dumps(manifest, allow_nan=False)
    if len(text) > LARGEST_JSON_BYTES:
        limit = LARGEST_JSON_BYTES / MIB
        raise error(f"{problem}: {len(text) / MIB:,.0f} MiB of JSON, expected {limit:g} at most")
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {_MANIFEST: text})


def read_archive(path: Path, formats: tuple[str, ...], error: type[RlptoError] = CheckpointError) -> Archive:
    """Read a file whose manifest has one of `formats` under `format`.

    Raises `error` if there is none, or it is truncated, damaged, too large, or of another format.
    """
    expected = " or ".join(formats)
    check_file(path, expected, error, LARGEST_ARCHIVE_BYTES)
    with parsing(path, expected, error):
        text, arrays = _contents(path)
    manifest = parse_json(text, path, expected, error)
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found not in formats:
        raise error(f"{path}: its format is {one_line(repr(found))}, expected {expected}")
    return Archive(manifest, arrays)


def _contents(path: Path) -> tuple[str, dict[str, AnyArray]]:
    """The text of the manifest, and the arrays. Raises ValueError, or another exception of a parser, if broken."""
    with path.open("rb") as opened:
        header = int.from_bytes(opened.read(8), "little")
    if header > LARGEST_HEADER_BYTES:
        raise ValueError(f"a header of {header:,} bytes")
    try:
        with safe_open(path, "numpy") as file:
            names = sorted(file.keys())
            if len(names) > LARGEST_ENTRIES:
                raise ValueError(f"{len(names):,} arrays")
            arrays = {name: file.get_tensor(name) for name in names}
            return (file.metadata() or {}).get(_MANIFEST, "null"), arrays
    except SafetensorError as wrong:
        raise ValueError(str(wrong)) from None
