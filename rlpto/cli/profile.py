"""`rlpto profile`: measure the training programs of an experiment on a Ray cluster, for the simulator."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlpto.cli.common import (
    CLUSTERS,
    AddressOption,
    ConfigArgument,
    QuietOption,
    SeedOption,
    SetOption,
    Verb,
    make_console,
    make_progress,
    read_config,
    waiting,
)
from rlpto.io.errors import ConfigError, ProfileError
from rlpto.io.interrupts import Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from rlpto.experiments.config import Config
    from rlpto.performance.profiles import Profile
    from rlpto.ray_cluster.measuring import Change
    from rlpto.ray_cluster.settings import ProgramSettings


def profile(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="YAML file for the profiles.")],
    address: AddressOption = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Seconds of training at every size and placement.")] = 10.0,
    learning: Annotated[
        float, typer.Option(min=1.0, help="Longest time in seconds for the training that measures the accuracy curve.")
    ] = 300.0,
    seed: SeedOption = None,
    set_: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Measure training programs: speed by workers and placement, start-up and pauses, accuracy, gradient noise.

    Every program really trains: through all its epochs, and moved from one worker to as many as the cluster has and
    back. The file is input for `profiles.folder` and `rlpto evaluate --profiles`. It is written after every program;
    the same command measures programs that are missing from it, or whose settings have changed.
    """
    settings = read_config(config, set_, seed)
    if out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {out}: expected a file that ends in .yaml")
    if not settings.ray.programs:
        raise ConfigError("ray.programs: there are none, expected at least one program to measure")
    if split := sorted(name for name, program in settings.ray.programs.items() if program.model_parallel > 1):
        raise ConfigError(f"ray.programs.{split[0]}.model_parallel: profiles begin with one worker, expected 1")
    known = measured_before(out, settings.ray.programs)
    missing = {name: program for name, program in settings.ray.programs.items() if name not in known}
    console = make_console(quiet)
    if missing:
        try:
            measure_programs(settings, missing, known, out, address, seconds, learning, console)
        except KeyboardInterrupt:
            kept = ", ".join(sorted(known)) or "nothing"
            raise Interrupted(f"measured and kept in {out}: {kept}; the same command measures the others") from None
    console.print(f"{len(known)} profiles in {out}: {', '.join(sorted(known))}", style="bold")
    console.print(f"use them:  rlpto evaluate {config} --profiles {out}")


def measured_before(path: Path, programs: Mapping[str, ProgramSettings]) -> dict[str, Profile]:
    """Profiles of a file that match the programs' current settings. Raises ProfileError for any other kind of file."""
    from rlpto.io.files import is_there

    if not is_there(path):
        return {}
    from rlpto.performance.profiles import load_file
    from rlpto.ray_cluster.measuring import describe

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
    console: Console,
) -> None:
    """Measure programs one after the other, each in the file as soon as it is measured, and in `known`.

    address: of a Ray cluster that is there; None: a local one. seconds, learning: as in `measure_program`.
    """
    from rlpto.experiments.on_ray import real_nodes
    from rlpto.io.files import write_text
    from rlpto.performance.profiles import profiles_yaml
    from rlpto.ray_cluster.measuring import fit_program, measure_program, stages
    from rlpto.ray_cluster.scheduler.backend import RayBackend
    from rlpto.ray_cluster.scheduler.connection import check_training
    from rlpto.ray_cluster.settings import program_spec

    with (
        make_progress(console.quiet) as bar,
        waiting(console.quiet, bar.console) as on_wait,
        real_nodes(config, address, out.absolute().parent, on_wait),
        tempfile.TemporaryDirectory(prefix="rlpto-profile-") as folder,
    ):
        gpus = {node.id: node.gpus for node in RayBackend("").nodes()}
        session = f"profile-{os.getpid()}"
        specs = {
            name: program_spec(number, name, program, config.ray, session, Path(folder), config.seed)
            for number, (name, program) in enumerate(missing.items())
        }
        on_wait("importing training programs on the cluster")
        check_training(list(specs.values()))
        on_wait("")
        task = bar.add_task("starting", total=len(specs) * stages(gpus))
        for name, spec in specs.items():

            def advance(stage: str, name: str = name) -> None:
                bar.update(task, advance=1, description=f"{name}: {stage}")

            measured = measure_program(spec, gpus, seconds, learning, advance)
            known[name] = fit_program(name, missing[name], measured, measured_on(gpus))
            write_text(out, profiles_yaml(known[key] for key in sorted(known)), "profiles", ProfileError)
            console.print(summary(known[name]))
            for change in measured.changes:
                console.print(f"  {change_text(change)}", style="dim")


def measured_on(gpus: Mapping[str, int]) -> str:
    """Where a program was measured, in words. gpus: of every node."""
    import ray
    import torch

    kind = "CUDA" if torch.cuda.is_available() else "logical"
    return (
        f"rlpto profile on {len(gpus)} nodes with {sum(gpus.values())} {kind} GPUs, "
        f"Ray {ray.__version__}, torch {torch.__version__}"
    )


def summary(found: Profile) -> str:
    """The measurements of a program in one line."""
    errors, curve = found.errors, found.accuracy
    return (
        f"{found.name}: accuracy {curve.untrained:.3f} to {curve.final:.3f} (rmse {errors.accuracy_rmse:.3f}), "
        f"step error median {errors.throughput_median:.1%}, p90 {errors.throughput_p90:.1%}, "
        f"training {found.rescale_delay:.1f} s after a decision"
    )


def change_text(change: Change) -> str:
    """A change of workers in one line."""
    pause = "" if math.isnan(change.pause) else f"; {1000 * change.pause:.0f} ms without training"
    return f"{change.kind} to {change.workers} workers, {change.new} new: {change.seconds:.1f} s{pause}"


VERB = Verb(profile, CLUSTERS, "rlpto profile ray -o profiles/here.yaml")
