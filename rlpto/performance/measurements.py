"""Reader of measured profiles: one folder per application with step times and validation runs as CSV.

`placements.csv` (placement, local_bsz, step_time, sync_time): a placement is written as one digit of GPUs per node.
`scalability.csv` (num_nodes, num_replicas, local_bsz, step_time, sync_time): the same by size only.
`validation-<batch>.csv` (progress, iteration, metric, grad_sqr, grad_var): one row per epoch, trained with that total
batch size. The format is that of the Pollux artifact (OSDI 2021). Steps on several GPU types are in
`placements-TYPE.csv` and `scalability-TYPE.csv`, like in the artifact of Sia (SOSP 2023); training progress by batch
size is the same on every type.
"""

from __future__ import annotations

import csv
import io
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ProfileError
from rlpto.io.files import file_there
from rlpto.io.reading import MIB, parsing, read_text
from rlpto.performance.efficiency import LARGEST_BATCH, BatchLimits
from rlpto.performance.tables import ANY_GPU, smallest_rotation
from rlpto.performance.throughput import StepMeasurements

MAX_LOCAL_BATCH = {("yolov3", ANY_GPU): 8, ("deepspeech2", "rtx"): 57}
"""Local batch limits, by model and GPU type, below the largest measured one: the artifacts' jobs never exceed them."""
LARGEST_MEASUREMENTS_BYTES = 16 * MIB
_TIMES = ("local_bsz", "step_time", "sync_time")
_RUN = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
_LEAST: dict[str, tuple[str, float]] = {
    "local_bsz": (f"samples, 1 to {LARGEST_BATCH:,}", 1.0),
    "num_nodes": ("a whole number, 1 or more", 1.0),
    "num_replicas": ("a whole number, 1 or more", 1.0),
    "step_time": ("seconds above 0", np.nextafter(0.0, 1.0)),
    "sync_time": ("seconds, 0 or more", 0.0),
    "grad_sqr": ("a number, 0 or more", 0.0),
    "grad_var": ("a number, 0 or more", 0.0),
}
"""What a column holds, and its least value; others hold any numbers. Estimates of gradients can be 0 in places."""
_LINE = ""
"""Column for line numbers. Blank lines are no rows."""
_GROWING = ("progress", "iteration")
"""Columns that grow from line to line, from above 0 on."""


@dataclass(frozen=True)
class Measurements:
    """All measurements of one application.

    placements: steps by GPUs per node, where the smallest rotation represents all, by ascending local batch.
    steps: means of the placements by (nodes, replicas, local batch), then the scalability rows.
    batches: [B] total batch sizes of the training runs, ascending. runs: [B, epochs] by column, for the epochs that
    every run has. progress: iterations at the base batch size for the same progress; iteration: actual iterations;
    metric: in the application's own unit; grad_sqr, grad_var: squared norm and variance of the gradient.
    """

    name: str
    placements: dict[tuple[int, ...], StepMeasurements]
    steps: StepMeasurements
    batches: IntArray
    runs: dict[str, FloatArray]
    limits: BatchLimits

    @property
    def epochs(self) -> int:
        """Epochs that every run has."""
        return int(self.runs["progress"].shape[1])

    @property
    def progress(self) -> FloatArray:
        """[epochs + 1] progress at the start of every epoch: the smallest over the runs, from 0."""
        return np.concatenate([[0.0], self.runs["progress"].min(axis=0)])

    @property
    def samples(self) -> float:
        """Samples at the base batch equivalent to an epoch's progress, on average."""
        return float(self.limits.base * self.progress[-1] / self.epochs)


def measured_gpu_types(folder: Path) -> tuple[str, ...]:
    """GPU types with measurements in an application's folder, sorted; empty if one unnamed type was measured."""
    if file_there(folder / "placements.csv"):
        return ()
    return tuple(sorted(path.stem.partition("-")[2] for path in folder.glob("placements-*.csv")))


def read_measurements(folder: Path, gpu: str = ANY_GPU) -> Measurements:
    """Read the measurements on GPU type `gpu` from one application's folder, which is named after the application.
    Raises ProfileError naming the file, line and column of a missing or non-numeric entry."""
    suffix = "" if gpu == ANY_GPU else f"-{gpu}"
    path = folder / f"placements{suffix}.csv"
    rows = _read_rows(path, ("placement", *_TIMES))
    groups = [_groups(row, path) for row in rows]
    sizes = np.array([(len(group), sum(group)) for group in groups], dtype=np.float64)
    placed = np.column_stack([sizes, *(_numbers(rows, path, name) for name in _TIMES)])
    _check_no_more(rows, path, "sync_time", "step_time")
    batches, runs = _read_runs(folder)
    members: dict[tuple[int, ...], list[int]] = {}
    for i, placement in enumerate(groups):
        members.setdefault(smallest_rotation(placement), []).append(i)
    ordered = {placement: placed[own][np.argsort(placed[own, 2], kind="stable")] for placement, own in members.items()}
    local = placed[:, 2]
    largest, least = int(local.max()), int(local.min())
    if least > batches[0]:
        expected = f"{batches[0]} or less, because validation-{batches[0]}.csv trained with that total batch size"
        raise ProfileError(f"{path}: the least local_bsz is {least}, expected {expected}")
    most = min(largest, MAX_LOCAL_BATCH.get((folder.name, gpu), largest))
    return Measurements(
        name=folder.name,
        placements={placement: StepMeasurements(*own.T) for placement, own in ordered.items()},
        steps=_joined(placed, folder / f"scalability{suffix}.csv"),
        batches=batches,
        runs=runs,
        limits=BatchLimits(int(batches[0]), int(batches[-1]), least, most),
    )


def _read_runs(folder: Path) -> tuple[IntArray, dict[str, FloatArray]]:
    """`Measurements.batches` and `Measurements.runs`."""
    found: dict[int, FloatArray] = {}
    for path in folder.glob("validation-*.csv"):
        match = re.fullmatch(r"validation-([1-9]\d{0,8})\.csv", path.name)
        if match is None:
            raise ProfileError(f"{path}: expected validation-<batch size>.csv")
        rows = _read_rows(path, _RUN)
        found[int(match.group(1))] = np.stack([_numbers(rows, path, name) for name in _RUN])
        for name, values in zip(_RUN, found[int(match.group(1))], strict=True):
            fell = np.flatnonzero(np.diff(values, prepend=0.0) <= 0)
            if name in _GROWING and len(fell):
                grown = "a number above 0" if fell[0] == 0 else "more than in the line before"
                row = rows[fell[0]]
                raise ProfileError(f"{path}, line {row[_LINE]}: {name} {row[name]!r}, expected {grown}")
    if not found:
        raise ProfileError(f"{folder}: no validation-<batch size>.csv")
    batches, epochs = sorted(found), min(run.shape[1] for run in found.values())
    stacked = np.stack([found[batch][:, :epochs] for batch in batches], axis=1)
    return np.array(batches, dtype=np.int64), dict(zip(_RUN, stacked, strict=True))


def _groups(row: dict[str, str | None], path: Path) -> tuple[int, ...]:
    label = row["placement"] or ""
    if not re.fullmatch(r"[1-9]+", label):
        raise ProfileError(f"{path}, line {row[_LINE]}: placement {label!r}, expected digits 1 to 9, one a node")
    return tuple(int(digit) for digit in label)


def _joined(placed: FloatArray, scalability: Path) -> StepMeasurements:
    """Means of rows [N, 5] by (nodes, replicas, local batch), ascending, followed by the rows of scalability.csv."""
    cells, cell = np.unique(placed[:, :3], axis=0, return_inverse=True)
    means = [np.bincount(cell, times) / np.bincount(cell) for times in placed[:, 3:].T]
    names = ("num_nodes", "num_replicas", *_TIMES)
    rows = _read_rows(scalability, names)
    sized = [_numbers(rows, scalability, name) for name in names]
    _check_no_more(rows, scalability, "num_nodes", "num_replicas")
    _check_no_more(rows, scalability, "sync_time", "step_time")
    return StepMeasurements(*map(np.concatenate, zip([*cells.T, *means], sized, strict=True)))


def _read_rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str | None]]:
    """Rows of a CSV file, which must have these columns. The column `_LINE` is the line where the row ends."""
    text = read_text(path, "measurements as CSV", ProfileError, LARGEST_MEASUREMENTS_BYTES)
    with parsing(path, "measurements as CSV", ProfileError):
        reader = csv.DictReader(io.StringIO(text))
        rows: list[dict[str, str | None]] = [{**row, _LINE: str(reader.line_num)} for row in reader]
    if not rows:
        raise ProfileError(f"{path}: no rows")
    missing = [name for name in columns if name not in rows[0]]
    if missing:
        raise ProfileError(f"{path}: column {missing[0]} is missing")
    return rows


def _numbers(rows: list[dict[str, str | None]], path: Path, column: str) -> FloatArray:
    """[N] a column of the rows of a file."""
    numbers = np.full(len(rows), np.nan)
    for at, row in enumerate(rows):
        with suppress(ValueError):
            numbers[at] = float(row[column] or "nan")
        expected, least = _LEAST.get(column, ("a number", -np.inf))
        fits = np.isfinite(numbers[at]) and numbers[at] >= least
        if column == "local_bsz":
            fits &= numbers[at] <= LARGEST_BATCH
        if column.startswith("num_"):
            fits &= numbers[at] == np.rint(numbers[at])
        if not fits:
            raise ProfileError(f"{path}, line {row[_LINE]}: {column} {row[column]!r}, expected {expected}")
    return numbers


def _check_no_more(rows: list[dict[str, str | None]], path: Path, part: str, whole: str) -> None:
    """Raise ProfileError for a row in which one column exceeds another."""
    beyond = np.flatnonzero(_numbers(rows, path, part) > _numbers(rows, path, whole))
    if len(beyond):
        row = rows[beyond[0]]
        raise ProfileError(
            f"{path}, line {row[_LINE]}: {part} {row[part]!r}, expected no more than {whole}, {row[whole]}"
        )
