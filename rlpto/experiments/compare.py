"""Finished evaluations side by side: run folders whose cells can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlpto.evaluation.runner import FinishedCell, load_cells
from rlpto.experiments.cache_key import Result, differing_keys
from rlpto.experiments.config import Config
from rlpto.experiments.evaluate import labelled
from rlpto.experiments.run_folder import read_run_config
from rlpto.io.errors import ConfigError


@dataclass(frozen=True)
class Run:
    """A run folder: its short name, its configuration, its finished cells."""

    name: str
    folder: Path
    config: Config
    cells: list[FinishedCell]

    @property
    def places(self) -> set[tuple[str, int]]:
        """Windows and seeds that policies ran on."""
        return {(done.cell.window, done.cell.seed) for done in self.cells}


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Raises ConfigError or CheckpointError if a folder is not a finished evaluation."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise ConfigError(f"{folders[-1]}: expected different run folders, got one twice")
    return [
        Run(name, folder, read_run_config(folder), labelled(load_cells(folder)))
        for name, folder in zip(names, folders, strict=True)
    ]


def check_comparable(runs: Sequence[Run]) -> None:
    """Raises ConfigError unless all runs scheduled the same jobs, windows and seeds."""
    first = runs[0]
    for other in runs[1:]:
        for key, mine, its in differing_keys(first.config, other.config, Result.CELL):
            if key == "seed" or key.startswith("workload."):
                raise ConfigError(
                    f"{other.folder}: other windows than {first.folder}: {key} is {its}, not {mine}; "
                    "expected runs on the same windows"
                )
        lacking = sorted(first.places ^ other.places)
        if lacking:
            window, seed = lacking[0]
            where = first.folder if lacking[0] in other.places else other.folder
            raise ConfigError(f"{where}: no cells of window {window}, seed {seed}; expected runs on the same windows")


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The keys in which the configurations differ, each with its value in every run."""
    keys = dict.fromkeys(
        key for other in runs[1:] for key, _, _ in differing_keys(runs[0].config, other.config, Result.CELL)
    )
    return {key: [_value_at(run.config, key) for run in runs] for key in keys}


def _value_at(config: Config, key: str) -> str:
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return str(value)
