"""The settings that decide a result: cells and trainings are kept under this part of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from rlpto.experiments.config import Config
from rlpto.io.files import digest
from rlpto.io.settings import Settings
from rlpto.workloads.files import KEYS


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

UNUSED_SECTIONS: Mapping[str, Callable[[Config], bool]] = {
    "forecast": lambda config: config.forecast.mode == "off",
    "ray": lambda config: not config.ray.programs and config.ray.arrivals == 1,
}
"""Sections that decide nothing under some configurations, with the condition for that."""


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
        if key in free_keys(result) or _absolute(left) == _absolute(right):
            continue
        if isinstance(left, Settings) and isinstance(right, Settings):
            yield from differing_keys(left, right, result, f"{key}.")
        else:
            yield key, left, right


def outcome_of(config: Config, traces: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """Plain data that decides how cells of a configuration come out: settings, and digests of the files they name.

    traces: trace files by split. Raises ConfigError if a file cannot be read.
    """
    settings = deciding(config, Result.CELL, [key for key, unused in UNUSED_SECTIONS.items() if unused(config)])
    settings["workload"].update({key: [digest(path) for path in traces[split]] for split, key in KEYS.items()})
    if config.workload.source == "synthetic" and "/" in config.workload.calibration:
        settings["workload"]["calibration"] = digest(Path(config.workload.calibration))
    if "forecast" in settings and config.forecast.model is not None:
        settings["forecast"]["model"] = digest(config.forecast.model)
    if (folder := config.profiles.folder) is not None:
        files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
        settings["profiles"]["folder"] = [digest(path) for path in files]
    return settings


def _absolute(value: object) -> object:
    """Paths are the same if they lead to the same place."""
    if isinstance(value, Path):
        return value.absolute()
    return tuple(_absolute(entry) for entry in value) if isinstance(value, tuple) else value
