"""The file of a checkpoint or an exported agent: a zip of one JSON manifest and NumPy arrays.

Nothing in it is ever unpickled, so an untrusted file can do no harm, and torch is not needed to look at one.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlpto.io.arrays import AnyArray
from rlpto.io.errors import CheckpointError
from rlpto.io.files import whole_file
from rlpto.io.reading import one_line, parse_json, read_arrays, read_entry

CHECKPOINT = "rlpto checkpoint 1"
"""Format of a checkpoint: an agent, and all that its training needs to go on."""
AGENT = "rlpto agent 1"
"""Format of an exported agent."""
KINDS = (CHECKPOINT, AGENT)
MANIFEST = "manifest.json"
ARRAYS = "arrays/"
NOT_TRAINED = "start, not trained"
"""Said of an agent whose action head is all zeros: it acts as the heuristic it starts from, in every state."""
TRAINED = "trained"


@dataclass(frozen=True)
class Archive:
    """What a file holds. manifest: plain data. arrays: by name, of numbers or of records."""

    manifest: dict[str, Any]
    arrays: dict[str, AnyArray]

    def group(self, name: str) -> dict[str, AnyArray]:
        """The arrays called `name`/..., by the rest of their names."""
        start = f"{name}/"
        return {key.removeprefix(start): array for key, array in self.arrays.items() if key.startswith(start)}

    @property
    def state(self) -> str:
        """TRAINED or NOT_TRAINED, by the weights of the action head."""
        return state_of(self.arrays)


def state_of(arrays: Mapping[str, AnyArray]) -> str:
    """TRAINED, or NOT_TRAINED where the network's last layer is all zeros."""
    head = [array for name, array in arrays.items() if name.startswith("policy/action_net.")]
    return TRAINED if any(np.any(array) for array in head) else NOT_TRAINED


def write_archive(path: Path, manifest: Mapping[str, Any], arrays: Mapping[str, AnyArray], what: str) -> None:
    """Write a file, whole or not at all. what: named in the message of the CheckpointError if that is not possible."""
    with (
        whole_file(path, what) as unfinished,
        zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file,
    ):
        # Entries opened by their names bear no time: the same content gives the same bytes.
        with file.open(MANIFEST, "w") as entry:
            entry.write(json.dumps(manifest, indent=1, allow_nan=False).encode())
        for name in sorted(arrays):
            with file.open(f"{ARRAYS}{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, np.ascontiguousarray(arrays[name]), allow_pickle=False)


def read_archive(path: Path, kinds: tuple[str, ...]) -> Archive:
    """Read a file whose manifest says under `format` that it is one of `kinds`.

    Raises CheckpointError if there is none, it is truncated or damaged, too large, or of another kind.
    """
    expected = " or ".join(kinds)
    manifest = parse_json(read_entry(path, MANIFEST, expected, CheckpointError), path, expected, CheckpointError)
    kind = manifest.get("format") if isinstance(manifest, dict) else None
    if kind not in kinds:
        raise CheckpointError(f"{path}: its format is {one_line(repr(kind))}, expected {expected}")
    return Archive(manifest, read_arrays(path, expected, CheckpointError, ARRAYS))
