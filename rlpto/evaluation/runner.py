"""Run policies on windows, cell by cell. Finished cells are kept, so a run can be resumed: figures as JSON, and records
as archives (`rlpto.io.archive`)."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from rlpto import __version__
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.metrics import METRIC, lower_bound, measure
from rlpto.evaluation.record_files import RECORD, load_record, record_bytes
from rlpto.io.compiled import say_if_cold
from rlpto.io.errors import CheckpointError, refusals_as
from rlpto.io.files import file_there, is_there, whole_file, write_text
from rlpto.io.interrupts import Interrupted
from rlpto.io.reading import read_text
from rlpto.io.workers import LocalWorkers, Workers
from rlpto.io.yaml_file import dotted_key
from rlpto.simulator.kernels import advance_until

ONE_BY_ONE = LocalWorkers()
CELLS_FILE = "cells.json"
"""List of the cells of the last evaluation into a run folder, which its tables and report cover. Cells of earlier
evaluations stay in the folder `cells`, and are used again when needed."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One run: a policy as the user wrote it, the name of a window, a seed.

    files: digest of the files outside RLPTO on which the policy depends. Default: it depends on none.
    """

    policy: str
    window: str
    seed: int
    files: str = ""

    @property
    def key(self) -> str:
        """Stem of the cell's files, which depends on the cell alone, not on the configuration."""
        parts = [self.policy, self.window, self.seed, *filter(None, [self.files])]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.policy} · {self.window} · seed {self.seed}"


@dataclass(frozen=True)
class FinishedCell:
    """A cell with its metrics and the lower bound of its workload (empty if there is none). The record stays on disk
    until it is needed."""

    cell: Cell
    metrics: dict[str, float]
    bound: dict[str, float]
    path: Path

    def record(self) -> RunRecord:
        """Read the whole record. Raises CheckpointError if its file is broken."""
        return load_record(self.path)


def config_fingerprint(config: Mapping[str, Any]) -> str:
    """Return a digest of everything that determines a cell's result, including RLPTO's version. config: JSON values."""
    text = json.dumps([__version__, config], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Evaluation:
    """The cells of a configuration, and what `evaluate` takes of it."""

    cells: Sequence[Cell]
    run_cell: Callable[[Cell], RunRecord]
    out: Path
    config: Mapping[str, Any]
    weights: RewardWeights | None = None


def evaluate(
    cells: Sequence[Cell],
    run_cell: Callable[[Cell], RunRecord],
    out: Path,
    progress: bool = True,
    workers: Workers = ONE_BY_ONE,
    *,
    config: Mapping[str, Any],
    weights: RewardWeights | None = None,
    fresh: bool = False,
) -> list[FinishedCell]:
    """Run every cell that is not finished yet and return all of them in the given order.

    run_cell: the run itself. It is sent to the workers, so it must be picklable (a function of a module, or
        functools.partial of one).
    out: run folder; finished cells are kept in its folder `cells`, each as soon as it is finished.
    progress: show a bar with the time left on stderr.
    config: everything that determines the result of a cell, without the lists of policies, windows and seeds,
        which may grow when a run is resumed.
    weights: weights of the reward, for the lower bound.
    fresh: delete the finished cells first.

    Raises CheckpointError if a cell exists already but is unreadable or of another configuration, and Interrupted
    after Ctrl-C, when finished cells are kept.
    """
    if fresh:
        _remove_cells(out / "cells")
    [(_, found)] = evaluate_all([Evaluation(cells, run_cell, out, config, weights)], progress, workers)
    return found


def evaluate_all(
    evaluations: Sequence[Evaluation], progress: bool, workers: Workers
) -> Iterator[tuple[int, list[FinishedCell]]]:
    """Run the missing cells of evaluations with different folders side by side. Yields the number and all cells of each
    evaluation as soon as it is finished; raises as `evaluate` does."""
    found = [BegunEvaluation(one) for one in evaluations]
    items = [_Item(number, cell, begun.task) for number, begun in enumerate(found) for cell in begun.missing]
    total = sum(len(one.cells) for one in evaluations)
    try:
        with _progress_bar(progress, total, total - len(items), workers) as tick:
            yield from ((number, begun.finished) for number, begun in enumerate(found) if not begun.missing)
            if workers.shares_files and min(workers.slots, len(items)) > 1:
                say_if_cold(advance_until)
            for position, outcome in workers.run(_run_item, items, lambda item: tick(item.cell)):
                begun = found[items[position].number]
                begun.keep(items[position].cell, outcome)
                tick(None)
                if not begun.missing:
                    yield items[position].number, begun.finished
    except KeyboardInterrupt:
        folder = os.path.commonpath([begun.folder for begun in found])
        raise Interrupted(
            f"{sum(len(begun.done) for begun in found)} of {total} cells are finished and kept in {folder}; "
            "run the same command with the same run folder again to go on"
        ) from None


class BegunEvaluation:
    """An evaluation with its finished cells. missing: the others."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.cells, self.folder = evaluation.cells, evaluation.out / "cells"
        self.fingerprint = config_fingerprint(evaluation.config)
        self.task = partial(run_measured, evaluation.run_cell, evaluation.weights)
        read = {cell: _read_cell(self.folder, cell, self.fingerprint) for cell in self.cells}
        self.done = {cell: finished for cell, finished in read.items() if finished is not None}
        self.missing = dict.fromkeys(cell for cell in self.cells if cell not in self.done)
        listed = _CellList(fingerprint=self.fingerprint, cells=list(self.cells))
        write_text(evaluation.out / CELLS_FILE, listed.model_dump_json(indent=1) + "\n", "the list of cells")

    def keep(self, cell: Cell, outcome: _Outcome) -> None:
        """Store a finished cell."""
        self.done[cell] = _keep(self.folder, self.fingerprint, cell, outcome)
        del self.missing[cell]

    @property
    def finished(self) -> list[FinishedCell]:
        """All cells, in their order."""
        return [self.done[cell] for cell in self.cells]


def changed_policies(out: Path, cells: Sequence[Cell]) -> list[str]:
    """Return policies of unfinished cells for which a run folder has results of other versions of their files."""
    folder, found = out / "cells", set[str]()
    missing = [cell for cell in cells if cell.files and not (folder / f"{cell.key}.json").exists()]
    wanted = {(cell.policy, cell.window, cell.seed) for cell in missing}
    for path in folder.glob("*.json") if wanted else ():
        with suppress(CheckpointError):  # a broken file of another cell
            kept = _read_stored(path, _StoredCell).cell
            found |= {kept.policy} if (kept.policy, kept.window, kept.seed) in wanted else set()
    return sorted(found)


def load_cells(out: Path) -> list[FinishedCell]:
    """Load the cells of the last evaluation into a run folder, in its order.

    Raises CheckpointError if there is no evaluation, a cell is missing or unreadable, or configurations differ.
    """
    path = out / CELLS_FILE
    if not file_there(path):
        raise CheckpointError(f"{out}: no {CELLS_FILE}, expected a folder that an evaluation has written")
    listed = _read_stored(path, _CellList)
    found = {cell: _read_cell(out / "cells", cell, listed.fingerprint) for cell in listed.cells}
    finished = [done for done in found.values() if done is not None]
    if len(finished) < len(found):
        missing = next(cell for cell, done in found.items() if done is None)
        raise CheckpointError(
            f"{out}: cell {missing} is not finished; run the evaluation again with the same run folder to go on"
        )
    return finished


def cells_of_earlier_runs(out: Path, finished: Sequence[FinishedCell]) -> int:
    """Number of cells in a run folder that do not belong to its last evaluation."""
    return len({path.stem for path in (out / "cells").glob("*.json")} - {done.cell.key for done in finished})


_Figure = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A figure in a JSON file, where null stands for NaN."""


class _StoredCell(BaseModel):
    """The JSON file of a finished cell."""

    model_config = ConfigDict(strict=True)

    fingerprint: str
    cell: Cell
    record: str = ""  # format of the record; empty in cells of the first format
    metrics: dict[str, _Figure]
    bound: dict[str, _Figure]


class _CellList(BaseModel):
    """The file `cells.json`."""

    model_config = ConfigDict(strict=True)

    fingerprint: str
    cells: list[Cell]


Stored = TypeVar("Stored", _StoredCell, _CellList)


class _Outcome(NamedTuple):
    """Result of a cell: metrics, lower bound, and the record as a compressed archive."""

    metrics: dict[str, float]
    bound: dict[str, float]
    record: bytes


class _Item(NamedTuple):
    """A cell of the evaluation with this number, and the function that runs it."""

    number: int
    cell: Cell
    task: Callable[[Cell], _Outcome]


def _run_item(item: _Item) -> _Outcome:
    return item.task(item.cell)


def run_measured(run_cell: Callable[[Cell], RunRecord], weights: RewardWeights | None, cell: Cell) -> _Outcome:
    """Run one cell."""
    record = run_cell(cell)
    return _Outcome(measure(record), lower_bound(record, weights), zlib.compress(record_bytes(record), 1))


def _keep(folder: Path, fingerprint: str, cell: Cell, outcome: _Outcome) -> FinishedCell:
    """Store a finished cell."""
    archive = folder / f"{cell.key}.safetensors"
    with whole_file(archive, "a record") as unfinished:
        unfinished.write_bytes(zlib.decompress(outcome.record))
    # The JSON file comes last: its existence marks a finished cell.
    stored = _StoredCell(
        fingerprint=fingerprint, cell=cell, record=RECORD, metrics=outcome.metrics, bound=outcome.bound
    )
    write_text(folder / f"{cell.key}.json", stored.model_dump_json(indent=1) + "\n", "a cell")
    return FinishedCell(cell, outcome.metrics, outcome.bound, archive)


@contextmanager
def _progress_bar(shown: bool, total: int, completed: int, workers: Workers) -> Iterator[Callable[[Cell | None], None]]:
    cells = TextColumn("{task.fields[cell]}", style="dim", markup=False)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), cells)
    with Progress(*columns, console=Console(stderr=True), disable=not shown, speed_estimate_period=3600.0) as bar:
        task = bar.add_task("evaluating", total=total, completed=completed, cell=workers.place)

        def tick(cell: Cell | None) -> None:
            if cell is None:
                bar.update(task, advance=1, cell=workers.place)
            else:
                bar.update(task, cell=str(cell))

        yield tick


def _remove_cells(folder: Path) -> None:
    for path in [*folder.glob("*.json"), *folder.glob("*.safetensors"), *folder.glob(".*.part")]:
        with refusals_as(CheckpointError, f"{path}: cannot be removed"):
            path.unlink()


def _read_cell(folder: Path, cell: Cell, fingerprint: str) -> FinishedCell | None:
    """Read a stored cell; None if it is not stored. Raises CheckpointError if it is unusable here."""
    path, archive = folder / f"{cell.key}.json", folder / f"{cell.key}.safetensors"
    if not is_there(path):
        return None
    stored = _read_stored(path, _StoredCell)
    if stored.fingerprint != fingerprint or stored.record != RECORD:
        raise _unusable(path, "was written with another configuration or version")
    if stored.metrics.keys() != METRIC.keys() or (stored.bound and stored.bound.keys() != METRIC.keys()):
        raise _unusable(path, "holds other metrics")
    if not file_there(archive):
        raise _unusable(archive, "missing, expected a run record")
    if stored.cell != cell:
        raise _unusable(path, f"holds cell {stored.cell}, expected {cell}")
    return FinishedCell(stored.cell, stored.metrics, stored.bound, archive)


def _read_stored(path: Path, kind: type[Stored]) -> Stored:
    expected = "a cell" if kind is _StoredCell else "a list of cells"
    text = read_text(path, f"{expected}; use another run folder, or --fresh to replace", CheckpointError)
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        wrong = error.errors()[0]
        key = f"{dotted_key(wrong['loc'])}: " if wrong["loc"] else ""
        raise _unusable(path, f"expected {expected} of an evaluation ({key}{wrong['msg']})") from None


def _unusable(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path}: {reason}; use another run folder, or --fresh to replace")
