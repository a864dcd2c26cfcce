"""A run's folder: its configuration and versions, the settings that determine results and therefore identify cells and
trainings, and checks whether a command may add to the folder."""

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
from typing import Any, TypeGuard

from rlpto import __version__
from rlpto.agents.settings import BEST, LAST
from rlpto.experiments.config import Config, load_config, resolved_yaml
from rlpto.experiments.workload import Repetition
from rlpto.io.errors import CheckpointError, ConfigError
from rlpto.io.files import digest, file_there, folder_there, write_text
from rlpto.io.settings import Settings
from rlpto.policies.registry import local_modules, plugin_files
from rlpto.policies.spec import CODE_ENDING, FILE_ENDINGS, parse_spec
from rlpto.provisioning.registry import plugin_files as provisioner_files
from rlpto.workloads.files import KEYS

CONFIG_FILE = "config.resolved.yaml"
"""The whole configuration of the run."""
VERSIONS_FILE = "versions.json"
"""Versions of the software that made the run, and the command line."""
EVALUATION = "evaluation"
"""Folder of the evaluation in a run that holds a training."""


class Result(Enum):
    """Results that a key may affect."""

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
"""Keys that do not affect some results, with these results. A key stands for all keys below it."""


def begin_run(folder: Path, config: Config, repetition: Repetition | None = None) -> None:
    """Write the configuration, the versions, the command, and the repetition of recorded jobs in the workload.

    Raises CheckpointError if a file cannot be written.
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
    """Return the path of a run's configuration. Raises ConfigError if the folder is not a run's."""
    path = folder / CONFIG_FILE
    if not file_there(path):
        raise ConfigError(f"{folder}: no {CONFIG_FILE} there, expected a folder that `rlpto` has written")
    return path


def read_run_config(folder: Path) -> Config:
    """Read the configuration of a run. Raises ConfigError if the folder is not a run's or is of another version."""
    return load_config(config_file(folder))


def refuse_foreign(folder: Path, config: Config, *, fresh: bool = False) -> None:
    """Raise CheckpointError if the folder has a training or, unless fresh, finished cells of another configuration."""
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


def plugins_of(spec: str) -> dict[str, list[Path]]:
    """Return the files of the packages that a policy's parts come from, by part; none for those of RLPTO."""
    parsed = parse_spec(spec)
    found = {f"policy {one.name}": plugin_files(one.name) for one in parsed.singles}
    if (its := parsed.provisioner) is not None:
        found[f"provisioner {its.name}"] = provisioner_files(its.name)
    return found


def spec_files(spec: str) -> list[Path]:
    """Return the files outside RLPTO that a policy depends on: Python files, with the modules that they import from
    their folder, and files among its options. For a run, return its checkpoint."""
    parsed = parse_spec(spec)
    found = [file for files in plugins_of(spec).values() for file in files]
    for path in parsed.paths:
        if path.suffix == CODE_ENDING:
            found += local_modules(path)
            continue
        # Policies use the best checkpoint of a run, else its last.
        files = [path] if path.suffix in FILE_ENDINGS else [path / BEST, path / LAST]
        found += files if len(files) == 1 else list(filter(file_there, files))[:1]
    return found


def files_digest(spec: str) -> str:
    """Return a digest of all files outside RLPTO that a policy depends on; empty if there are none."""
    digests = "".join(map(digest, spec_files(spec)))
    return digests and hashlib.sha256(digests.encode()).hexdigest()


def has_begun(run: Path) -> bool:
    """Return True if a run, or any seed's folder in it, has a checkpoint from which training can continue."""
    return any(file_there(folder / LAST) for folder in members(run))


def versions() -> dict[str, Any]:
    """Return the versions of RLPTO, Python and the libraries that affect results."""
    libraries = {name: version(name) for name in ("numpy", "numba", "scipy", "torch", "stable-baselines3")}
    return {"rlpto": __version__, "python": platform.python_version(), **libraries, "platform": platform.platform()}


def git_commit() -> str | None:
    """Return the commit of the source tree from which this package runs; None if it is installed without one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def command_line() -> str:
    """Return the command line that repeats this run."""
    return shlex.join(["rlpto", *sys.argv[1:]])


def members(run: Path) -> list[Path]:
    """Return the folders of a run's trainings: the run's folder, or a folder for each seed."""
    found = sorted(run.glob("seed-*"), key=lambda path: (len(path.name), path.name))
    return [path for path in found if path.is_dir()] or [run]


def run_facts(config: Config) -> dict[str, str]:
    """Return the properties of a configuration that are listed in the report."""
    groups = list[str]()
    for group in config.cluster.nodes:
        if group.count:
            groups.append(f"{group.count} nodes x {group.gpus} GPUs")
        if group.rented is not None:
            groups.append(f"{group.rented.least} to {group.rented.most} rented nodes x {group.gpus} GPUs")
    rents = any(group.rented is not None and group.rented.least < group.rented.most for group in config.cluster.nodes)
    gpus = f"{'at most ' if rents else ''}{sum(node.gpus for node in config.cluster.shape):,} GPUs in all"
    simulator = config.simulator
    decisions = f"every {simulator.interval:g} s"
    if simulator.decide_on == "events":
        decisions += ", and when a job arrives or finishes or a node changes"
    return {"Cluster": f"{' and '.join(groups)}, {gpus}", "Decisions": decisions, "Seed": str(config.seed)}


def free_keys(result: Result) -> list[str]:
    """Return the keys that do not affect a result."""
    return [key for key, undecided in KEYS_WITHOUT_EFFECT.items() if result in undecided]


def deciding(config: Config, result: Result, unused: Sequence[str] = ()) -> dict[str, Any]:
    """Return the settings that determine a result, as plain data. unused: additional keys to leave out."""
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
    """Yield the dotted keys that affect a result and differ between two configurations, with both values."""
    for name in type(mine).model_fields:
        key = f"{around}{name}"
        left, right = getattr(mine, name), getattr(its, name)
        if key in free_keys(result) or _place(left) == _place(right):
            continue
        if isinstance(left, Settings) and isinstance(right, Settings):
            yield from differing_keys(left, right, result, f"{key}.")
        elif _is_sections(left) and _is_sections(right) and len(left) == len(right):
            for at, (one, other) in enumerate(zip(left, right, strict=True)):
                yield from differing_keys(one, other, result, f"{key}.{at}.")
        else:
            yield key, _shown(left), _shown(right)


def _is_sections(value: object) -> TypeGuard[tuple[Settings, ...]]:
    """Return True if a value is a list of sections, such as `cluster.nodes`."""
    return isinstance(value, tuple) and all(isinstance(one, Settings) for one in value)


def _shown(value: object) -> object:
    if isinstance(value, Settings):
        return value.model_dump_json(exclude_unset=True)
    return ", ".join(f"{_shown(one)}" for one in value) if isinstance(value, tuple) else value


def outcome_of(config: Config, traces: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """Return plain data that determines the results of cells: settings, and digests of the files they name.

    traces: trace files by split. Raises ConfigError if a file cannot be read.
    """
    rented = any(group.rented is not None for group in config.cluster.nodes)
    off = {
        "forecast": config.forecast.mode == "off",
        "ray": not config.ray.programs and config.ray.arrivals == 1,
        "provision": not rented,
    }
    settings = deciding(config, Result.CELL, [key for key, unused in off.items() if unused])
    if rented and (provisioner := files_digest(f"fifo@{config.provision}")):
        settings["provision_files"] = provisioner
    if rented and config.forecast.demand is not None:
        settings["demand_file"] = digest(config.forecast.demand)
    for group in () if rented else settings["cluster"]["nodes"]:
        del group["rented"]  # so results of earlier versions stay valid
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
    """Resolve paths: two paths to the same file compare equal."""
    if isinstance(value, Path):
        return value.resolve()
    return tuple(_place(entry) for entry in value) if isinstance(value, tuple) else value
