"""Rows of studies.yaml, and how large a study is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import _common
from pydantic import Field, ValidationError

from rlpto.experiments.config import Config, load_config
from rlpto.io.errors import ConfigError
from rlpto.io.settings import Settings
from rlpto.io.yaml_file import dotted_key, read_yaml

STUDIES = Path(__file__).with_name("studies.yaml")
Workload = Literal["synthetic", "philly", "pollux"]
TIME_ONLY = ("reward.accuracy=0", "reward.resources=0", "reward.rescale=0")
"""Overrides under which time alone is rewarded, for comparisons of JCT."""

MAIN = "main"
"""The training of the agents without other overrides."""


class Claim(Settings):
    """What a page claims of a figure, or of all whose names match `figure` (* stands for anything)."""

    figure: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    missed: bool = False


class Study(Settings):
    """One row of studies.yaml, which explains the keys."""

    tables: dict[str, str] = Field(default_factory=dict)
    needs: str = ""
    page: str = ""
    claims: tuple[Claim, ...] = ()
    listed: bool = True
    takes: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)


class Plan(Settings):
    """How large a study is, and where its cells are kept.

    seeds: of training, or of a window's jobs. windows: of each workload and load, at most. draws: of every test window,
    with other models and work of the jobs, where policies are compared by reward. training: windows that every
    training plays; None: as many as the config says. jobs: processes. data: folder with real traces and profiles; None
    where there is none.
    """

    folder: Path
    cells: Path
    data: Path | None = None
    jobs: int = 1
    workloads: tuple[Workload, ...] = ("synthetic", "philly", "pollux")
    loads: tuple[float, ...] = (0.5, 0.7, 0.9, 1.1)
    seeds: Annotated[int, Field(ge=1)] = 3
    windows: Annotated[int, Field(ge=1)] = 26
    draws: Annotated[int, Field(ge=1)] = 5
    training: int | None = None
    split: Literal["test", "validation", "train"] = "test"

    def places(self) -> list[tuple[Workload, float]]:
        """Workloads and loads of the study."""
        return [(workload, load) for workload in self.workloads for load in self.loads]

    def config(self, workload: Workload, load: float, *overrides: str, windows: int | None = None) -> Config:
        """Configuration of a workload at a load, with at most that many windows."""
        limit = min(self.windows, windows or self.windows)
        return load_config(
            config_file(workload), [f"workload.load={load}", f"workload.windows.limit={limit}", *overrides]
        )


Row = Mapping[str, object]
"""A row of a table, by column."""


@dataclass
class Part:
    """What one table of a study shows, and the figures that claims are about, by name.

    limits: of claims that depend on the run.
    """

    figures: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)


def config_file(workload: str) -> Path:
    """The experiment file of a workload."""
    return _common.CONFIGS / "results" / f"{workload}.yaml"


def tuned(name: str) -> str:
    """Spec of the index with a file of weights in configs/tuned."""
    return f"index:weights={_common.CONFIGS / 'tuned' / name}.yaml"


def load_studies(path: Path = STUDIES) -> dict[str, Study]:
    """The studies by name. Raises ConfigError, naming file and line, if one is wrong."""
    file = read_yaml(path)
    found = {}
    for name, given in file.data.items():
        try:
            found[name] = Study.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            place = (name, *first["loc"])
            raise ConfigError(f"{file.place(place)}: {dotted_key(place)}: {first['msg']}") from None
    return found
