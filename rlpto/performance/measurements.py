"""Reader of measured profiles: a folder an application with step times and validation runs as CSV.

`placements.csv` (placement, local_bsz, step_time, sync_time): a placement is written as one digit of
GPUs per node. `scalability.csv` (num_nodes, num_replicas, local_bsz, step_time, sync_time): the same
by size only. `validation-<batch>.csv` (progress, iteration, metric, grad_sqr, grad_var): one row an
epoch, trained with that total batch size. The format is that of the Pollux artifact (OSDI 2021). Steps on several kinds
of GPU are in `placements-KIND.csv` and `scalability-KIND.csv`, as in the artifact of Sia (SOSP 2023); training progress
by batch size is the same on every kind.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ProfileError
from rlpto.io.files import file_there
from rlpto.io.reading import MIB, parsing, read_text
from rlpto.performance.tables import ONE_KIND, smallest_rotation
from rlpto.performance.throughput import StepMeasurements

MAX_LOCAL_BATCH = {("yolov3", ONE_KIND): 8, ("deepspeech2", "rtx"): 57}
"""Local batch limits, by model and kind of GPU, below the largest measured one: the artifacts' jobs never exceed
them."""
LARGEST_BATCH = 10**9
"""Samples of a batch, at most."""
LARGEST_MEASUREMENTS_BYTES = 16 * MIB
_TIMES = ("local_bsz", "step_time", "sync_time")


@dataclass(frozen=True)
class PlacementSteps:
    """Steps measured on one exact placement, by ascending local batch; float64 of the same length."""

    local_batch: FloatArray
    step_time: FloatArray
    sync_time: FloatArray


@dataclass(frozen=True)
class ValidationRun:
    """One training run with a fixed total batch size; float64 [epochs] each.

    progress: iterations at the base batch size for the same progress. iteration: actual iterations.
    metric: in the application's own unit. grad_sqr, grad_var: squared norm and variance of the gradient.
    """

    progress: FloatArray
    iteration: FloatArray
    metric: FloatArray
    grad_sqr: FloatArray
    grad_var: FloatArray


@dataclass(frozen=True)
class Measurements:
    """All measurements of one application.

    placements: by GPUs per node; the smallest rotation represents all.
    steps: means of the placements by (nodes, replicas, local batch), then the scalability rows.
    runs: by total batch size, ascending.
    """

    name: str
    placements: dict[tuple[int, ...], PlacementSteps]
    steps: StepMeasurements
    runs: dict[int, ValidationRun]
    min_local: int
    max_local: int

    @property
    def base_batch(self) -> int:
        """Smallest batch size a run was made with, in samples."""
        return min(self.runs)

    @property
    def largest_batch(self) -> int:
        """Largest batch size a run was made with, in samples."""
        return max(self.runs)

    @property
    def batches(self) -> IntArray:
        """Batch sizes of the runs, ascending."""
        return np.array(sorted(self.runs), dtype=np.int64)

    @property
    def epochs(self) -> int:
        """Epochs that every run has."""
        return min(len(run.progress) for run in self.runs.values())

    def stacked(self, column: str) -> FloatArray:
        """[batches, epochs] a column of all validation runs, by ascending batch size."""
        return np.stack([getattr(self.runs[batch], column)[: self.epochs] for batch in sorted(self.runs)])

    @property
    def progress(self) -> FloatArray:
        """[epochs + 1] progress at the start of every epoch: the smallest over the runs, from 0."""
        return np.concatenate([[0.0], self.stacked("progress").min(axis=0)])


def measured_kinds(folder: Path) -> tuple[str, ...]:
    """Kinds of GPU with measurements in an application's folder, sorted; empty if one unnamed kind was measured."""
    if file_there(folder / "placements.csv"):
        return ()
    return tuple(sorted(path.stem.partition("-")[2] for path in folder.glob("placements-*.csv")))


def read_measurements(folder: Path, gpu: str = ONE_KIND) -> Measurements:
    """Read the measurements on the kind `gpu` from one application's folder, which is named after the application.

    Raises ProfileError naming the file, line and column where something is missing or not a number.
    """
    suffix = "" if gpu == ONE_KIND else f"-{gpu}"
    placements, scalability = folder / f"placements{suffix}.csv", folder / f"scalability{suffix}.csv"
    rows = _read_rows(placements, ("placement", *_TIMES))
    groups = [_groups(str(row["placement"]), placements) for row in rows]
    local_batch, step, sync = (_numbers(rows, placements, name) for name in _TIMES)
    runs = _read_runs(folder)
    largest = int(local_batch.max())
    return Measurements(
        name=folder.name,
        placements=_by_placement(groups, local_batch, step, sync),
        steps=_joined(groups, local_batch, step, sync, scalability),
        runs=runs,
        min_local=int(local_batch.min()),
        max_local=min(largest, MAX_LOCAL_BATCH.get((folder.name, gpu), largest)),
    )


def _read_runs(folder: Path) -> dict[int, ValidationRun]:
    columns = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
    runs: dict[int, ValidationRun] = {}
    for path in folder.glob("validation-*.csv"):
        match = re.fullmatch(r"validation-([1-9]\d{0,8})\.csv", path.name)
        if match is None:
            raise ProfileError(f"{path}: expected validation-<batch size>.csv")
        rows = _read_rows(path, columns)
        runs[int(match.group(1))] = ValidationRun(*(_numbers(rows, path, name) for name in columns))
    if not runs:
        raise ProfileError(f"{folder}: no validation-<batch size>.csv")
    return dict(sorted(runs.items()))


def _groups(label: str, path: Path) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]+", label):
        raise ProfileError(f"{path}: placement {label!r}, expected digits 1 to 9, one a node")
    return tuple(int(digit) for digit in label)


def _by_placement(
    groups: list[tuple[int, ...]], local_batch: FloatArray, step: FloatArray, sync: FloatArray
) -> dict[tuple[int, ...], PlacementSteps]:
    members: dict[tuple[int, ...], list[int]] = {}
    for i, placement in enumerate(groups):
        members.setdefault(smallest_rotation(placement), []).append(i)
    placements = {}
    for placement, rows in members.items():
        order = np.array(rows)[np.argsort(local_batch[rows], kind="stable")]
        placements[placement] = PlacementSteps(local_batch[order], step[order], sync[order])
    return placements


def _joined(
    groups: list[tuple[int, ...]], local_batch: FloatArray, step: FloatArray, sync: FloatArray, scalability: Path
) -> StepMeasurements:
    """Means by (nodes, replicas, local batch), ascending, followed by the rows of scalability.csv."""
    sizes = np.array([(len(group), sum(group)) for group in groups], dtype=np.float64)
    cells, cell = np.unique(np.column_stack([sizes, local_batch]), axis=0, return_inverse=True)
    count = np.bincount(cell)
    placed = [*cells.T, np.bincount(cell, step) / count, np.bincount(cell, sync) / count]
    names = ("num_nodes", "num_replicas", *_TIMES)
    rows = _read_rows(scalability, names)
    sized = (_numbers(rows, scalability, name) for name in names)
    return StepMeasurements(*map(np.concatenate, zip(placed, sized, strict=True)))


def _read_rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str | None]]:
    """Rows of a CSV file, which must have these columns."""
    text = read_text(path, "measurements as CSV", ProfileError, LARGEST_MEASUREMENTS_BYTES)
    with parsing(path, "measurements as CSV", ProfileError):
        rows: list[dict[str, str | None]] = list(csv.DictReader(io.StringIO(text)))
    if not rows:
        raise ProfileError(f"{path}: no rows")
    missing = [name for name in columns if name not in rows[0]]
    if missing:
        raise ProfileError(f"{path}: column {missing[0]} is missing")
    return rows


def _numbers(rows: list[dict[str, str | None]], path: Path, column: str) -> FloatArray:
    """[N] a column of the rows of a file."""
    return np.array([_number(row[column], path, line, column) for line, row in enumerate(rows, start=2)])


def _number(field: str | None, path: Path, line: int, column: str) -> float:
    try:
        number = float(field) if field is not None else float("nan")
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise ProfileError(f"{path}, line {line}: {column} {field!r}, expected a number")
    if column == "local_bsz" and not 1 <= number <= LARGEST_BATCH:
        raise ProfileError(f"{path}, line {line}: {column} {field!r}, expected samples, 1 to {LARGEST_BATCH:,}")
    return number
