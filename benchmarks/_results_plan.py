"""What `make results` runs: the studies of studies.yaml, on which workloads and loads, with how many windows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import _common
from pydantic import ValidationError

from rlpto.experiments.config import Config, load_config
from rlpto.io.errors import ConfigError
from rlpto.io.settings import Settings
from rlpto.io.yaml_file import dotted_key, read_yaml

WORKLOADS = ("synthetic", "philly", "pollux")
LOADS = (0.5, 0.7, 0.9, 1.1)
SEEDS = (0, 1, 2)
"""Seeds of training: each gives an agent of its own."""
HOME = "synthetic"
"""Workload of the smaller studies: it needs no download."""
BUSY = 0.9
"""Load of the studies that have one only."""

AGENT, START, TUNED = "agent", "agent_start", "tuned_index"
"""Names in tables: the mean of the agents of all seeds, what they start from, and the tuned index."""
STUDIES = Path(__file__).with_name("studies.yaml")


class Variant(NamedTuple):
    """A way to train the agent. overrides: `key=value` on top of its configuration."""

    name: str
    overrides: tuple[str, ...] = ()


MAIN = Variant("main")


class PlannedRun(Settings):
    """A group of cells of a study; its keys are explained in studies.yaml."""

    policies: tuple[str, ...]
    label: str | int = ""
    cells: str | None = None
    variant: str = MAIN.name
    overrides: tuple[str, ...] = ()
    see: tuple[str, ...] = ()
    keep: bool = False
    windows: int | None = None


class Study(Settings):
    """One study: what is run, and where."""

    runs: tuple[PlannedRun, ...]
    workloads: Literal["home", "all"] = "home"
    loads: Literal["busy", "all"] = "busy"
    contenders: int = 0


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


@dataclass(frozen=True)
class StudyPlan:
    """What to run, and where results go.

    windows: at most. draws: of every test window, with other models and work of the jobs, where policies are compared
    by reward. steps: of every training; None: the config's own.
    """

    folder: Path
    workloads: tuple[str, ...] = WORKLOADS
    loads: tuple[float, ...] = LOADS
    seeds: tuple[int, ...] = SEEDS
    windows: int = 26
    draws: int = 5
    steps: int | None = None
    jobs: int = 1

    @property
    def home(self) -> str:
        """Workload of the smaller studies."""
        return HOME if HOME in self.workloads else self.workloads[0]

    @property
    def busy(self) -> float:
        """Load of the studies that have one only."""
        return BUSY if BUSY in self.loads else self.loads[-1]

    def places(self, study: Study) -> list[tuple[str, float]]:
        """Workloads and loads of a study."""
        workloads = self.workloads if study.workloads == "all" else (self.home,)
        loads = self.loads if study.loads == "all" else (self.busy,)
        return [(workload, load) for workload in workloads for load in loads]

    def config(self, workload: str, load: float, *overrides: str, windows: int | None = None) -> Config:
        """Configuration of a workload at a load, with at most so many windows."""
        limit = min(self.windows, windows or self.windows)
        return load_config(
            config_file(workload), [f"workload.load={load}", f"workload.windows.limit={limit}", *overrides]
        )


def config_file(workload: str) -> Path:
    """The experiment file of a workload."""
    return _common.CONFIGS / "results" / f"{workload}.yaml"
