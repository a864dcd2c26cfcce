"""A run's folder: its configuration and versions, the settings that decide its results, under which cells and trainings
are kept, and whether a command may add to it."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rlpto import __version__
from rlpto.agents.settings import BEST, LAST
from rlpto.experiments.config import Config, load_config, resolved_yaml
from rlpto.experiments.window_traces import Repetition
from rlpto.io.errors import CheckpointError, ConfigError
from rlpto.io.files import digest, file_there, folder_there, write_text
from rlpto.io.settings import Settings
from rlpto.policies.registry import local_modules, plugin_files
from rlpto.policies.spec import CODE_ENDING, FILE_ENDINGS, parse_spec
from rlpto.workloads.files import KEYS

CONFIG_FILE = "config.resolved.yaml"
"""The whole configuration of the run."""
VERSIONS_FILE = "versions.json"
"""Versions of what made the run, and the command line."""
EVALUATION = "evaluation"
"""Folder of the evaluation in a run that holds a training."""


class Result(Enum):
    """What a key may decide."""

    CELL = "a cell of an evaluation"
    TRAINING = "a training that is resumed"
    CHECKPOINT = "a checkpoint, for any command that continues from it"


KEYS_WITHOUT_EFFECT: Mapping[str, tuple[Result, ...]] = {
    "name": tuple(Result),
    "description": tuple(Result),
    "policies": tuple(Result),
    "evaluation": tuple(Result),
    "workload.windows.limit": (Result.CELL,),  # these two choose cells
    "workload.windows.seed": (Result.CELL,),
    "env": (Result.CELL,),  # these two are for training, whose result is a separate file
    "agent": (Result.CELL,),
    "agent.device": (Result.CHECKPOINT,),
    "agent.threads": (Result.CHECKPOINT,),
    "agent.seed": (Result.CHECKPOINT,),  # stored in the checkpoint separately from the deciding keys
}
"""The keys that do not decide a result, with the results they do not decide. A key stands for all below it."""


def begin_run(folder: Path, config: Config, repetition: Repetition | None = None) -> None:
    """Write the configuration, the versions, the command, and how often recorded jobs occur in the workload.

    Raises CheckpointError if that is not possible.
    """
    write_text(folder / CONFIG_FILE, resolved_yaml(config), "the configuration")
    content = versions() | {
        "commit": git_commit(),
        "command": command_line(),
        "policy_files": {str(path.absolute()): digest(path) for spec in config.policies for path in spec_files(spec)},
    }
    if repetition is not None:
        content["workload"] = repetition._asdict()
    write_text(folder / VERSIONS_FILE, json.dumps(content, indent=2) + "\n", "versions")


def config_file(folder: Path) -> Path:
    """The file with the configuration of a run. Raises ConfigError if the folder is not a run's."""
    path = folder / CONFIG_FILE
    if not file_there(path):
        raise ConfigError(f"{folder}: no {CONFIG_FILE} there, expected a folder that `rlpto` has written")
    return path


def read_run_config(folder: Path) -> Config:
    """The configuration of a run. Raises ConfigError if the folder is not a run's or has one of another version."""
    return load_config(config_file(folder))


def refuse_foreign(folder: Path, config: Config, *, fresh: bool = False) -> None:
    """Raises CheckpointError if the folder has a training or, unless fresh, finished cells of another configuration."""
    if not folder_there(folder):
        return
    trained = has_begun(folder)
    if not trained and (fresh or not any((folder / "cells").glob("*.json"))):
        return
    advice = "use another --run-dir" + ("" if trained else ", or --fresh to replace it")
    try:
        there = read_run_config(folder)
    except ConfigError as error:
        raise CheckpointError(f"{folder}: holds a run that cannot be added to ({error}); {advice}") from None
    for key, old, new in differing_keys(there, config, Result.TRAINING if trained else Result.CELL):
        raise CheckpointError(f"{folder}: holds a run with {key} = {old}, now it is {new}; {advice}")


def spec_files(spec: str) -> list[Path]:
    """Return the files that a policy is made of besides RLPTO: Python files, with the modules of their folder that
    they import, and files among its options. A run stands for its checkpoint."""
    parsed = parse_spec(spec)
    found = [file for single in parsed.singles for file in plugin_files(single.name)]
    for path in parsed.paths:
        if path.suffix == CODE_ENDING:
            found += local_modules(path)
            continue
        # A run is used by its best checkpoint, else by its last.
        files = [path] if path.suffix in FILE_ENDINGS else [path / BEST, path / LAST]
        found += files if len(files) == 1 else list(filter(file_there, files))[:1]
    return found


def files_digest(spec: str) -> str:
    """Return a digest of all files that a policy is made of besides RLPTO; empty if there are none."""
    digests = "".join(map(digest, spec_files(spec)))
    return digests and hashlib.sha256(digests.encode()).hexdigest()


def has_begun(run: Path) -> bool:
    """Return True if a run, or one of its seeds, holds a training that can be continued: it has a checkpoint."""
    return any(file_there(folder / LAST) for folder in members(run))


def versions() -> dict[str, Any]:
    """Versions of RLPTO, Python and the libraries that results depend on."""
    libraries = {name: version(name) for name in ("numpy", "numba", "scipy", "torch", "stable-baselines3")}
    return {"rlpto": __version__, "python": platform.python_version(), **libraries, "platform": platform.platform()}


def git_commit() -> str | None:
    """Commit of the source tree this package runs from; None where it is installed without one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def command_line() -> str:
    """The command line that repeats this run."""
    return shlex.join(["rlpto", *sys.argv[1:]])


def members(run: Path) -> list[Path]:
    """Folders of the trainings in a run: its own, or one for each seed."""
    found = sorted(run.glob("seed-*"), key=lambda path: (len(path.name), path.name))
    return [path for path in found if path.is_dir()] or [run]


def run_facts(config: Config) -> dict[str, str]:
    """The facts of a configuration that get a line in the report."""
    gpus = sum(group.count * group.gpus for group in config.cluster.nodes)
    nodes = " and ".join(f"{group.count} nodes x {group.gpus} GPUs" for group in config.cluster.nodes)
    simulator = config.simulator
    decisions = f"every {simulator.interval:g} s"
    if simulator.decide_on == "events":
        decisions += ", and when a job arrives or finishes or a node changes"
    return {"Cluster": f"{nodes}, {gpus:,} GPUs in all", "Decisions": decisions, "Seed": str(config.seed)}


def free_keys(result: Result) -> list[str]:
    """Keys that do not decide how a result comes out."""
    return [key for key, undecided in KEYS_WITHOUT_EFFECT.items() if result in undecided]


def deciding(config: Config, result: Result, unused: Sequence[str] = ()) -> dict[str, Any]:
    """Settings that decide how a result comes out, as plain data. unused: further keys to leave out."""
    settings = config.model_dump(mode="json")
    for key in (*free_keys(result), *unused):
        *above, last = key.split(".")
        inside = settings
        for part in above:
            inside = inside[part]
        del inside[last]
    return settings


def differing_keys(
    mine: Settings, its: Settings, result: Result, around: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Dotted keys in which two configurations differ, with both values, of those that decide how a result comes out."""
    for name in type(mine).model_fields:
        key = f"{around}{name}"
        left, right = getattr(mine, name), getattr(its, name)
        if key in free_keys(result) or _place(left) == _place(right):
            continue
        if isinstance(left, Settings) and isinstance(right, Settings):
            yield from differing_keys(left, right, result, f"{key}.")
        else:
            yield key, left, right


def outcome_of(config: Config, traces: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """Plain data that decides how cells of a configuration come out: settings, and digests of the files they name.

    traces: trace files by split. Raises ConfigError if a file cannot be read.
    """
    rented = any(group.rented is not None for group in config.cluster.nodes)
    off = {
        "forecast": config.forecast.mode == "off",
        "ray": not config.ray.programs and config.ray.arrivals == 1,
        "provision": not rented,
    }
    settings = deciding(config, Result.CELL, [key for key, unused in off.items() if unused])
    for group in () if rented else settings["cluster"]["nodes"]:
        del group["rented"]  # results of earlier versions stay
    settings["workload"].update({key: [digest(path) for path in traces[split]] for split, key in KEYS.items()})
    if config.workload.source == "synthetic" and "/" in config.workload.calibration:
        settings["workload"]["calibration"] = digest(Path(config.workload.calibration))
    if "forecast" in settings and config.forecast.model is not None:
        settings["forecast"]["model"] = digest(config.forecast.model)
    if (folder := config.profiles.folder) is not None:
        files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
        settings["profiles"]["folder"] = [digest(path) for path in files]
    return settings


def _place(value: object) -> object:
    """Paths are the same if they lead to the same place."""
    if isinstance(value, Path):
        return value.resolve()
    return tuple(_place(entry) for entry in value) if isinstance(value, tuple) else value
