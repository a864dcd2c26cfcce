"""Configurations for processes on other hosts: with the contents of all files that they name."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import rlpto
from rlpto.core.records import RunRecord
from rlpto.evaluation.runner import Cell
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import run_cell
from rlpto.experiments.on_host import Stored
from rlpto.experiments.run_folder import plugins_of, spec_files
from rlpto.io.errors import ClusterError, ConfigError, RlptoError, refusals_as
from rlpto.io.files import digest
from rlpto.io.paths import EXAMPLES
from rlpto.io.settings import Settings
from rlpto.io.workers import Workers
from rlpto.policies.spec import parse_provisioner, parse_spec
from rlpto.workloads.files import expand

OWN = EXAMPLES, Path(rlpto.__file__).resolve().parent
"""Folders of files that come with RLPTO, which every host has."""
UNPACKED = "rlpto-inputs"
"""Beginning of the name of the folder for unpacked files, among a host's temporary files."""
LIFETIME_S = 7 * 86_400.0
"""Time after which unpacked files that no new process has used are removed [s]."""


@dataclass(frozen=True)
class Inputs:
    """A configuration with the files that it names. config: with absolute paths on the host of origin. policies: its
    policies as they were written. files: a ZIP archive of the files outside RLPTO. own: `OWN` on the host of origin.
    plugins: digests of the packages of its policies and provisioners."""

    config: Config
    policies: tuple[str, ...]
    files: bytes
    own: tuple[Path, ...]
    plugins: dict[str, str]

    @classmethod
    def of(cls, config: Config) -> Inputs:
        """Read all files that a configuration names. Raises ConfigError if one cannot be read."""
        absolute, content = _with_paths(config, os.path.abspath), io.BytesIO()
        plugins = _plugins(_specs(config))
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(set(_files_of(absolute))):
                with refusals_as(ConfigError, f"{path}: cannot read the file"):
                    archive.writestr(zipfile.ZipInfo(str(path).lstrip("/")), path.read_bytes())
        return cls(absolute, config.policies, content.getvalue(), OWN, plugins)

    @cached_property
    def here(self) -> Config:
        """The configuration with paths of this host. Raises ClusterError if its files cannot be written here, or if
        this host lacks a plug-in of its policies."""
        for part, mine in _plugins([*self.policies, *_specs(self.config)[-1:]]).items():
            if mine != self.plugins[part]:
                raise ClusterError(
                    f"host {platform.node()} lacks the plug-in of {part}, or has another version of it: "
                    "expected the same package on all hosts"
                )

        def moved(text: str) -> str:
            path = Path(text)
            for its, mine in zip(self.own, OWN, strict=True):
                if path.is_relative_to(its):
                    return str(mine / path.relative_to(its))
            return str(self.folder / path.relative_to("/"))

        changed: Config = _with_paths(self.config, moved)
        return changed

    @cached_property
    def folder(self) -> Path:
        """The folder of this host with the files, unpacked once, each under its path on the host of origin. Raises
        ClusterError if they cannot be written."""
        parent = Path(tempfile.gettempdir(), f"{UNPACKED}-{os.getuid()}")
        folder = parent / hashlib.sha256(self.files).hexdigest()[:16]
        with refusals_as(ClusterError, f"{parent}: cannot write the files of the configuration there"):
            parent.mkdir(mode=0o700, exist_ok=True)
            if parent.is_symlink() or parent.stat().st_uid != os.getuid():  # others may write to the folder above
                raise ClusterError(f"{parent}: expected a folder of this user, and no link")
            _remove_old(parent)
            if folder.is_dir():
                os.utime(folder)
            else:
                unfinished = Path(tempfile.mkdtemp(dir=parent))
                with zipfile.ZipFile(io.BytesIO(self.files)) as archive:
                    archive.extractall(unfinished)
                try:
                    unfinished.rename(folder)
                except OSError:  # another process was faster
                    shutil.rmtree(unfinished)
        return folder


def runner_for(
    workers: Workers, config: Config, run: Callable[[Config, Cell], RunRecord] = run_cell
) -> Callable[[Cell], RunRecord]:
    """Return the function that runs cells of a configuration by `run`, to be called by the workers."""
    return partial(run, config) if workers.shares_files else partial(run_far, run, Stored.of(Inputs.of(config)))


def run_far(run: Callable[[Config, Cell], RunRecord], stored: Stored[Inputs], cell: Cell) -> RunRecord:
    """Run a cell by `run` on another host. In the record, policies have the labels that they have in the original
    configuration; in errors, files have their original paths."""
    inputs = stored.value
    config = inputs.here
    policy = config.policies[inputs.policies.index(cell.policy)]
    try:
        record = run(config, replace(cell, policy=policy))
    except RlptoError as error:
        raise type(error)(str(error).replace(str(inputs.folder), "")) from None
    mine, its = parse_spec(policy), parse_spec(cell.policy)
    labels = {one.label: other.label for one, other in zip(mine.singles, its.singles, strict=True)}
    labels[mine.label] = its.label
    switches = replace(record.switches, policy=tuple(labels.get(name, name) for name in record.switches.policy))
    return replace(record, policy=labels.get(record.policy, record.policy), switches=switches)


def _specs(config: Config) -> list[str]:
    """Specs of all policies and provisioners of a configuration; `provision` comes last."""
    return [*config.policies, f"fifo@{config.provision}"]


def _plugins(specs: Sequence[str]) -> dict[str, str]:
    """Digest of the package that each policy or provisioner comes from; empty for RLPTO's own."""
    return {part: "".join(map(digest, files)) for spec in specs for part, files in plugins_of(spec).items()}


def _with_paths(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of settings with `change` applied to all paths in them."""
    if isinstance(value, Path):
        return Path(change(str(value)))
    if isinstance(value, tuple):
        return tuple(_with_paths(entry, change) for entry in value)
    if not isinstance(value, Settings):
        return value
    found = {name: _with_paths(getattr(value, name), change) for name in type(value).model_fields}
    if isinstance(value, Config):
        found["policies"] = tuple(str(parse_spec(spec).with_paths(change)) for spec in value.policies)
        found["provision"] = str(parse_provisioner(value.provision).with_paths(change))
        if "/" in value.workload.calibration:
            calibration = change(value.workload.calibration)
            found["workload"] = found["workload"].model_copy(update={"calibration": calibration})
    return value.model_copy(update=found)


def _files_of(config: Config) -> Iterator[Path]:
    """Absolute paths of the files outside RLPTO that a configuration names."""
    named = list[str]()
    _with_paths(config, lambda text: named.append(text) or text)  # type: ignore[func-returns-value]
    specs = _specs(config)
    plugins = {file for spec in specs for files in plugins_of(spec).values() for file in files}
    of_policies = {file for spec in specs for file in spec_files(spec)} - plugins
    for path in {Path(text) for text in named} | of_policies:
        if not any(path.is_relative_to(own) for own in OWN):
            found = [*path.rglob("*")] if path == config.profiles.folder and path.is_dir() else expand(path)
            yield from (file for file in found if file.is_file())


def _remove_old(parent: Path) -> None:
    """Remove unpacked files that no new process has used for long."""
    for folder in parent.iterdir():
        with suppress(FileNotFoundError):  # another process has removed or renamed it
            if folder.stat().st_mtime < time.time() - LIFETIME_S:
                shutil.rmtree(folder, ignore_errors=True)
