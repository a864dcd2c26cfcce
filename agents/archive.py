"""The file of a checkpoint or an exported agent: a zip of one JSON manifest and NumPy arrays.

Nothing in it is ever unpickled, so an untrusted file can do no harm, and torch is not needed to inspect one.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlpto import __version__
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import CheckpointError
from rlpto.io.files import whole_file
from rlpto.io.reading import check_finite, one_line, parse_json, read_arrays, read_entry
from rlpto.policies.index_weights import LARGEST_WEIGHT, steering_vector

CHECKPOINT = "rlpto checkpoint 1"
"""Format of a checkpoint: an agent, and the state of its training."""
AGENT = "rlpto agent 1"
"""Format of an exported agent."""
KINDS = (CHECKPOINT, AGENT)
MANIFEST = "manifest.json"
ARRAYS = "arrays/"
STEERING, STEERING_START = "steering/agent", "steering/start"
"""Arrays of an agent that is a steering vector: its numbers, and the start of its training."""
NOT_TRAINED = "start, not trained"
"""State of an agent that acts exactly as the heuristic it starts from."""
TRAINED = "trained"


@dataclass(frozen=True)
class Archive:
    """Contents of a file. manifest: plain data. arrays: numbers or records, by name."""

    manifest: dict[str, Any]
    arrays: dict[str, AnyArray]

    def group(self, name: str) -> dict[str, AnyArray]:
        """The arrays called `name`/..., by the rest of their names."""
        start = f"{name}/"
        return {key.removeprefix(start): array for key, array in self.arrays.items() if key.startswith(start)}

    @property
    def state(self) -> str:
        """TRAINED or NOT_TRAINED, for its arrays."""
        return state_of(self.arrays)

    @property
    def deciding(self) -> tuple[object, ...]:
        """Everything that its decisions depend on: equal for a checkpoint and an agent exported from it."""
        numbers = {key: array.tobytes() for key, array in self.arrays.items() if key.startswith((STEERING, "policy/"))}
        return numbers, self.manifest.get("env"), self.manifest.get("start")


def state_of(arrays: Mapping[str, AnyArray]) -> str:
    """NOT_TRAINED if the network's last layer is all zeros, or the steering vector equals its start; else TRAINED."""
    if STEERING in arrays:
        return NOT_TRAINED if np.array_equal(arrays[STEERING], arrays.get(STEERING_START, ())) else TRAINED
    head = [array for name, array in arrays.items() if name.startswith("policy/action_net.")]
    return TRAINED if any(np.any(array) for array in head) else NOT_TRAINED


def write_archive(path: Path, manifest: Mapping[str, Any], arrays: Mapping[str, AnyArray], what: str) -> None:
    """Write a file, whole or not at all. Raises CheckpointError, whose message calls the file `what`, if it cannot."""
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
    """Read a file whose manifest has one of the formats `kinds` under `format`.

    Raises CheckpointError if there is none, or it is truncated, damaged, too large, or of another format.
    """
    expected = " or ".join(kinds)
    manifest = parse_json(read_entry(path, MANIFEST, expected, CheckpointError), path, expected, CheckpointError)
    kind = manifest.get("format") if isinstance(manifest, dict) else None
    if kind not in kinds:
        raise CheckpointError(f"{path}: its format is {one_line(repr(kind))}, expected {expected}")
    return Archive(manifest, read_arrays(path, expected, CheckpointError, ARRAYS))


def check_meaning(path: Path, manifest: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise CheckpointError, naming the difference, if the file's numbers have another meaning than `here`."""
    there = manifest.get("meaning")
    if not isinstance(there, dict):
        raise CheckpointError(f"{path}: its manifest lacks meaning, expected a file of RLPTO {__version__}")
    for key, value in here.items():
        if there.get(key) != value:
            raise CheckpointError(
                f"{path}: made by RLPTO {manifest.get('rlpto')}, where {key} meant something else; "
                f"expected a file of RLPTO {__version__}, train or export it again"
            )


def steering_of(archive: Archive, path: Path) -> FloatArray:
    """The steering vector [S] of an agent's file, also of an earlier version of RLPTO. Raises CheckpointError if it
    cannot be used."""
    numbers, meaning = archive.arrays[STEERING], archive.manifest.get("meaning")
    check_finite({STEERING: numbers}, f"{path}: arrays", LARGEST_WEIGHT, CheckpointError)
    if numbers.ndim != 1 or not isinstance(meaning, dict):
        raise CheckpointError(f"{path}: {STEERING}: shape {numbers.shape}, expected a steering vector")
    try:
        return steering_vector(numbers, meaning)
    except ValueError as error:
        raise CheckpointError(
            f"{path}: made by RLPTO {archive.manifest.get('rlpto')}, unknown here: {one_line(str(error), 120)}; "
            f"expected a file of RLPTO {__version__}, train or export it again"
        ) from None
