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
    ConfigArgument,
    QuietOption,
    SeedOption,
    SetOption,
    interrupted,
    make_console,
    make_progress,
    read_config,
)
from rlpto.errors import ConfigError, ProfileError

if TYPE_CHECKING:
    from rlpto.config import Config
    from rlpto.performance.profiles import Profile
    from rlpto.ray_cluster.measuring.job_mover import Change
    from rlpto.ray_cluster.measuring.profiling import Effort
    from rlpto.ray_cluster.settings import ProgramSettings


def profile(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="YAML file for the profiles.")],
    programs: Annotated[
        str | None, typer.Option(metavar="A,B", help="Programs to measure, instead of all of ray.programs.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|auto", help="A Ray cluster that is there; else a local one is started."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Seconds of training at every size and placement.")] = 10.0,
    learning: Annotated[
        float, typer.Option(min=1.0, help="Longest time in seconds for the training that tells the accuracy curve.")
    ] = 300.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure also what the file has already.")] = False,
    seed: SeedOption = None,
    set_: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Measure training programs: speed by workers and placement, start-up and pauses, accuracy, gradient noise.

    Every program really trains: on its own through all its epochs, on its own moved from one worker to as many as the
    cluster has and back, and up to four times at once, handing GPUs from job to job. The file is what `profiles.folder`
    and `rlpto evaluate --profiles` take. It is written after every program; the same command measures those that are
    missing from it, or have other settings by now.
    """
    settled = read_config(config, set_, seed)
    wanted = chosen_programs(settled, programs)
    if out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {out}: expected a file that ends in .yaml")
    known = {} if fresh else measured_before(out, settled.ray.programs)
    missing = {name: program for name, program in wanted.items() if name not in known}
    console = make_console(quiet)
    if missing:
        from rlpto.ray_cluster.measuring.profiling import Effort

        try:
            _measure(settled, missing, known, out, address, Effort(seconds, learning), quiet)
        except KeyboardInterrupt:
            kept = ", ".join(sorted(known)) or "nothing"
            interrupted(f"measured and kept in {out}: {kept}; the same command goes on with the others")
    console.print(f"{len(known)} profiles in {out}: {', '.join(sorted(known))}", style="bold")
    console.print(f"use them:  rlpto evaluate {config} --profiles {out}")


def chosen_programs(config: Config, names: str | None) -> Mapping[str, ProgramSettings]:
    """Programs to measure. Raises ConfigError if there are none, or one that is named does not exist."""
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
    """Profiles of a file that are of programs as they are set now. Raises ProfileError if the file is no profiles."""
    from rlpto.performance.profiles import load_file
    from rlpto.ray_cluster.measuring.measured_profile import describe

    if not path.exists():
        return {}
    return {
        name: found
        for name, found in load_file(path).items()
        if name not in programs
        or (found.description, found.samples, found.epochs)
        == (describe(programs[name]), programs[name].samples, programs[name].epochs)
    }


def _measure(
    config: Config,
    missing: Mapping[str, ProgramSettings],
    known: dict[str, Profile],
    out: Path,
    address: str | None,
    effort: Effort,
    quiet: bool,
) -> None:
    """Measure programs one after the other, each in the file as soon as it is measured, and in `known`."""
    from rlpto.files import write_text
    from rlpto.performance.profiles import profiles_yaml
    from rlpto.ray_cluster.measuring.measured_profile import fit_program
    from rlpto.ray_cluster.measuring.profiling import measure_program, stages
    from rlpto.ray_cluster.scheduler.backend import RayBackend
    from rlpto.ray_cluster.scheduler.connection import check_training
    from rlpto.ray_cluster.scheduler.workload import program_spec
    from rlpto.runs.real import real_nodes

    console = make_console(quiet)
    with real_nodes(config, address), tempfile.TemporaryDirectory(prefix="rlpto-profile-") as folder:
        gpus = {node.id: node.gpus for node in RayBackend("").nodes()}
        most = sum(gpus.values())
        session = f"profile-{os.getpid()}"
        specs = {
            name: program_spec(number, name, program, config.ray, session, Path(folder), config.seed)
            for number, (name, program) in enumerate(missing.items())
        }
        check_training(list(specs.values()))
        with make_progress(quiet) as bar:
            task = bar.add_task("", total=len(specs) * stages(gpus, most))
            for name, spec in specs.items():

                def tell(stage: str, name: str = name) -> None:
                    bar.update(task, advance=1, description=f"{name}: {stage}")

                measured = measure_program(spec, gpus, most, effort, tell)
                known[name] = fit_program(name, missing[name], measured, _source(gpus))
                text = profiles_yaml(known[key] for key in sorted(known))
                write_text(out, text, "profiles", ProfileError)
                console.print(summary(known[name]))
                for change in measured.changes:
                    console.print(f"  {told(change)}", style="dim")
                for change in measured.handed:
                    console.print(f"  on GPUs of another job: {told(change)}", style="dim")


def _source(gpus: Mapping[str, int]) -> str:
    """Where a program was measured, in words."""
    import ray
    import torch

    kind = "CUDA" if torch.cuda.is_available() else "logical"
    return (
        f"rlpto profile on {len(gpus)} nodes with {sum(gpus.values())} {kind} GPUs, "
        f"Ray {ray.__version__}, torch {torch.__version__}"
    )


def summary(found: Profile) -> str:
    """What was found out about a program, in one line."""
    errors, curve = found.errors, found.accuracy
    return (
        f"{found.name}: accuracy {curve.untrained:.3f} to {curve.final:.3f} (rmse {errors.accuracy_rmse:.3f}), "
        f"step error median {errors.throughput_median:.1%}, p90 {errors.throughput_p90:.1%}, "
        f"training {found.rescale_delay:.1f} s after a decision"
    )


def told(change: Change) -> str:
    """A change of workers in one line."""
    pause = "" if math.isnan(change.pause) else f", of them {1000 * change.pause:.0f} ms without training"
    return f"{change.kind} to {change.workers} workers, {change.new} of them new: {change.seconds:.1f} s{pause}"
