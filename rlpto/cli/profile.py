"""`rlpto profile`: measure the training programs of an experiment on a Ray cluster, for the simulator."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlpto.cli.common import (
    CLUSTERS,
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
from rlpto.io.errors import ConfigError
from rlpto.io.interrupts import Interrupted

if TYPE_CHECKING:
    from rlpto.performance.profiles import Profile
    from rlpto.ray_cluster.measuring.commanded_job import Change
    from rlpto.ray_cluster.measuring.profiling import ProgramMeasurements


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
        float, typer.Option(min=1.0, help="Longest time in seconds for the training that measures the accuracy curve.")
    ] = 300.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Also measure programs that are already in the file.")] = False,
    seed: SeedOption = None,
    set_: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Measure training programs: speed by workers and placement, start-up and pauses, accuracy, gradient noise.

    Every program really trains: on its own through all its epochs, on its own moved from one worker to as many as the
    cluster has and back, and up to four times at once, handing GPUs from job to job. The file is input for
    `profiles.folder` and `rlpto evaluate --profiles`. It is written after every program; the same command measures
    programs that are missing from it, or whose settings have changed.
    """
    settled = read_config(config, set_, seed)
    if out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {out}: expected a file that ends in .yaml")
    from rlpto.experiments.profile import chosen_programs, measure_programs, measured_before

    wanted = chosen_programs(settled, programs)
    known = {} if fresh else measured_before(out, settled.ray.programs)
    missing = {name: program for name, program in wanted.items() if name not in known}
    console = make_console(quiet)

    def measured(profile: Profile, found: ProgramMeasurements) -> None:
        console.print(summary(profile))
        for change in found.changes:
            console.print(f"  {change_text(change)}", style="dim")
        for change in found.handed:
            console.print(f"  on GPUs of another job: {change_text(change)}", style="dim")

    if missing:
        with make_progress(quiet) as bar, waiting(quiet, bar.console) as on_wait:
            task = bar.add_task("starting", total=None)

            def advance(stage: str, total: int) -> None:
                bar.update(task, advance=1, description=stage, total=total)

            try:
                measure_programs(settled, missing, known, out, address, seconds, learning, advance, measured, on_wait)
            except KeyboardInterrupt:
                kept = ", ".join(sorted(known)) or "nothing"
                raise Interrupted(
                    f"measured and kept in {out}: {kept}; the same command goes on with the others"
                ) from None
    console.print(f"{len(known)} profiles in {out}: {', '.join(sorted(known))}", style="bold")
    console.print(f"use them:  rlpto evaluate {config} --profiles {out}")


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
    pause = "" if math.isnan(change.pause) else f", of them {1000 * change.pause:.0f} ms without training"
    return f"{change.kind} to {change.workers} workers, {change.new} of them new: {change.seconds:.1f} s{pause}"


VERB = Verb(profile, CLUSTERS, "rlpto profile ray -o profiles/here.yaml")
