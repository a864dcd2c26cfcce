"""What decides how a cell of an evaluation comes out: the part of its configuration that results are kept under."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlpto.cluster import ONE_KIND
from rlpto.config import Config
from rlpto.files import digest
from rlpto.workloads.files import KEYS

NEVER = (
    "name",
    "description",
    "policies",
    "evaluation",
    "env",
    "agent",
    "workload.windows.limit",
    "workload.windows.seed",
)
"""Keys that no cell depends on: they choose cells, or are for training, whose result is a policy."""

UNUSED: Mapping[str, Callable[[Config], bool]] = {
    "forecast": lambda config: config.forecast.mode == "off",
    "queue.converging": lambda config: config.queue.converging.gained == 1,
    "ray": lambda config: not config.ray.programs and config.ray.arrivals == 1,
    "simulator.growth": lambda config: config.simulator.growth == "pause",
    "workload.jobs": lambda config: config.workload.source != "jobs",
}
"""Keys of features that may be off, and when they are. Not a word is said of them then, so that results are found
again that were made before there was such a feature. Another one needs a line here, and nothing else."""


def outcome_of(config: Config, traces: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """Plain data that decides how cells of a configuration come out: settings, and digests of the files they name.

    traces: trace files by split. Raises ConfigError if a file cannot be read.
    """
    settings = config.model_dump(mode="json")
    for key in (*NEVER, *(key for key, unused in UNUSED.items() if unused(config))):
        *above, last = key.split(".")
        inside = settings
        for part in above:
            inside = inside[part]
        del inside[last]
    for group in settings["cluster"]["nodes"]:
        if group["gpu"] == ONE_KIND:
            del group["gpu"]
    settings["workload"].update({key: [digest(path) for path in traces[split]] for split, key in KEYS.items()})
    if config.workload.source == "synthetic" and "/" in config.workload.calibration:
        settings["workload"]["calibration"] = digest(Path(config.workload.calibration))
    if "forecast" in settings and config.forecast.model is not None:
        settings["forecast"]["model"] = digest(config.forecast.model)
    if config.profiles.folder is not None:
        settings["profiles"]["folder"] = [digest(path) for path in _files(config.profiles.folder)]
    return settings


def _files(path: Path) -> list[Path]:
    """A file, or all files below a folder."""
    return [path] if path.is_file() else sorted(found for found in path.rglob("*") if found.is_file())
