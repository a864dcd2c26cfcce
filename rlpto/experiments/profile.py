"""Profiles of training programs, measured on a Ray cluster and kept in one file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from rlpto.experiments.config import Config
from rlpto.experiments.on_ray import real_nodes
from rlpto.io.errors import ConfigError, ProfileError
from rlpto.io.files import is_there, write_text
from rlpto.performance.profiles import Profile, load_file, profiles_yaml
from rlpto.ray_cluster.measuring.profiling import ProgramMeasurements, describe, fit_program, measure_program, stages
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.connection import check_training
from rlpto.ray_cluster.settings import ProgramSettings, program_spec


def chosen_programs(config: Config, names: str | None) -> Mapping[str, ProgramSettings]:
    """Programs to measure. Raises ConfigError if there are none, or a named one does not exist."""
    programs = config.ray.programs
    if not programs:
        raise ConfigError("ray.programs: there are none, expected at least one program to measure")
    if names is None:
        return programs
    listed = [name.strip() for name in names.split(",")]
    unknown = next((name for name in listed if name not in programs), None)
    if unknown is not None:
        raise ConfigError(f"--programs: {unknown!r} is none of ray.programs: {', '.join(sorted(programs))}")
    return {name: programs[name] for name in listed}


def measured_before(path: Path, programs: Mapping[str, ProgramSettings]) -> dict[str, Profile]:
    """Profiles of a file that match the programs' current settings. Raises ProfileError for any other kind of file."""
    if not is_there(path):
        return {}
    return {
        name: found
        for name, found in load_file(path).items()
        if name not in programs
        or (found.description, found.samples, found.epochs)
        == (describe(programs[name]), programs[name].samples, programs[name].epochs)
    }


def measure_programs(
    config: Config,
    missing: Mapping[str, ProgramSettings],
    known: dict[str, Profile],
    out: Path,
    address: str | None,
    seconds: float,
    learning: float,
    on_progress: Callable[[str, int], object],
    on_measured: Callable[[Profile, ProgramMeasurements], object],
    on_wait: Callable[[str], None],
) -> None:
    """Measure programs one after the other, each in the file as soon as it is measured, and in `known`.

    address: of a Ray cluster that is there; None: a local one. seconds, learning: as in `measure_program`.
    on_progress: called with each stage before it begins, and the number of all stages. on_measured: called with a
    finished profile and its measurements. on_wait: as in `rlpto.experiments.on_ray.RealRun`.
    """
    with (
        real_nodes(config, address, out.absolute().parent, on_wait),
        tempfile.TemporaryDirectory(prefix="rlpto-profile-") as folder,
    ):
        gpus = {node.id: node.gpus for node in RayBackend("").nodes()}
        most = sum(gpus.values())
        session = f"profile-{os.getpid()}"
        specs = {
            name: program_spec(number, name, program, config.ray, session, Path(folder), config.seed)
            for number, (name, program) in enumerate(missing.items())
        }
        on_wait("importing training programs on the cluster")
        check_training(list(specs.values()))
        on_wait("")
        total = len(specs) * stages(gpus, most)
        for name, spec in specs.items():

            def say(stage: str, name: str = name) -> None:
                on_progress(f"{name}: {stage}", total)

            measured = measure_program(spec, gpus, most, seconds, learning, say)
            known[name] = fit_program(name, missing[name], measured, _source(gpus))
            text = profiles_yaml(known[key] for key in sorted(known))
            write_text(out, text, "profiles", ProfileError)
            on_measured(known[name], measured)


def _source(gpus: Mapping[str, int]) -> str:
    """Where a program was measured, in words."""
    import ray
    import torch

    kind = "CUDA" if torch.cuda.is_available() else "logical"
    return (
        f"rlpto profile on {len(gpus)} nodes with {sum(gpus.values())} {kind} GPUs, "
        f"Ray {ray.__version__}, torch {torch.__version__}"
    )
