"""`rlpto profiles`: the measured models, the fit behind them, and their predictions for a training; `rlpto profile`:
measure the training programs of an experiment on a Ray cluster."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlpto.cli.common import (
    CLUSTERS,
    INPUTS,
    AddressOption,
    ConfigArgument,
    QuietOption,
    SeedOption,
    SetOption,
    Verb,
    make_console,
    make_progress,
    make_table,
    read_config,
    waiting,
)
from rlpto.io.errors import ConfigError, ProfileError
from rlpto.io.interrupts import Interrupted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rlpto.experiments.config import Config
    from rlpto.performance.metrics import UtilityBand
    from rlpto.performance.profiles import Profile
    from rlpto.performance.solo import TrainingEstimate
    from rlpto.ray_cluster.measuring import Change
    from rlpto.ray_cluster.settings import ProgramSettings

app = typer.Typer(help="Show the profiles of models, or fit new ones to measurements.", no_args_is_help=True)


@app.command(epilog="Example: rlpto profiles show --folder profiles")
def show(
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of fitted profiles, instead of the built-in ones.")
    ] = None,
) -> None:
    """List the profiles, with their errors against the measurements they were fitted to."""
    from rich.markup import escape

    from rlpto.performance.profiles import builtin_profiles, load_folder

    profiles = builtin_profiles() if folder is None else load_folder(folder)
    if not profiles:
        raise ProfileError(f"{folder}: no profiles there, expected a folder with *.yaml")
    table = make_table()
    table.add_column("model\n", no_wrap=True)
    table.add_column("\n", ratio=1)
    figures = ("samples\nan epoch", "epochs\n", "batch\nfrom, to", "rescale\n\\[s]")
    for heading in (*figures, "step error\nmedian, p90", "accuracy\nrmse"):
        table.add_column(heading, justify="right", no_wrap=True)
    for profile in profiles.values():
        errors = profile.errors
        table.add_row(
            escape(profile.name),
            escape(profile.description),
            f"{profile.samples:,.0f}",
            str(profile.epochs),
            f"{profile.batch.base:,}, {profile.batch.largest:,}",
            f"{profile.rescale_delay:g}",
            _percent(errors.throughput_median, errors.throughput_p90),
            "" if errors.accuracy_rmse is None else f"{errors.accuracy_rmse:.3f}",
        )
    console = make_console()
    console.print(table)
    for source in dict.fromkeys(profile.source for profile in profiles.values()):
        console.print(f"\nsource: {source}", style="dim")


_SizesOption = Annotated[
    Path, typer.Option("--folder", metavar="FOLDER", help="Profiles; llm: those of large models that come with RLPTO.")
]


def _with_tables(folder: Path) -> dict[str, Profile]:
    """Profiles of a folder, by name, that have tables of sizes. Raises ProfileError if there are none."""
    from rlpto.performance.compile import load_profiles
    from rlpto.performance.fitted import FittedProfiles

    source = load_profiles(folder)
    every = source.profiles if isinstance(source, FittedProfiles) else {}
    found = {name: profile for name, profile in every.items() if profile.tables()}
    if not found:
        raise ProfileError(f"{folder}: no profiles with tables of sizes there (throughput.law: table)")
    return found


@app.command("plot", epilog="Example: rlpto profiles plot mpt-7b mpt-70b -o sizes.png")
def plot_sizes(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The picture: a .png file.")],
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL", help="Of these; all, if none.")] = None,
    folder: _SizesOption = Path("llm"),
    quiet: QuietOption = False,
) -> None:
    """Plot the throughput per GPU by number of GPUs of profiles by tables: a panel a model, a line a GPU type."""
    from rlpto.evaluation.plots import Plot, throughput_panels, write_plots

    found = _with_tables(folder)
    for model in models or ():
        if model not in found:
            raise ProfileError(f"{model}: no profile with a table in {folder}; `rlpto profiles list` names them")
    if out.suffix != ".png":
        raise ConfigError(f"--out {out}: expected a file that ends in .png")
    shown = {model: found[model] for model in models or found}
    write_plots([Plot(out.stem, "", "", throughput_panels(shown))], out.parent)
    make_console(quiet).print(f"{len(shown)} profiles: {out}", style="bold")


@app.command("list", epilog="Example: rlpto profiles list --folder llm")
def list_sizes(folder: _SizesOption = Path("llm")) -> None:
    """List GPU types, allowed sizes and sources of profiles by tables, and how well held-out sizes are predicted."""
    from rich.markup import escape

    profiles = _with_tables(folder)
    shown = make_table(
        caption="error of a step's time where its size is held out: median, 90 %; not of outermost sizes"
    )
    for heading in ("model", "GPU type", "GPUs", "error"):
        shown.add_column(heading, no_wrap=heading != "GPUs")
    by_source: dict[str, list[float]] = {}
    for name, profile in profiles.items():
        for number, (gpu_type, law) in enumerate(profile.tables().items()):
            errors = law.held_out_errors()
            by_source.setdefault(profile.source, []).extend(errors)
            sizes = ", ".join(map(str, law.sizes))
            shown.add_row("" if number else escape(name), escape(gpu_type), sizes, _shares(errors))
    console = make_console()
    console.print(shown)
    for text, errors in [*by_source.items(), ("all", [error for some in by_source.values() for error in some])]:
        console.print(f"{text}: {len(errors)} sizes held out, error {_shares(errors) or 'not known'}")


def _shares(errors: list[float]) -> str:
    """Median and 90 % quantile of errors in percent; empty if there are none."""
    import numpy as np

    return _percent(*np.quantile(errors, [0.5, 0.9]).tolist()) if errors else ""


def _percent(median: float | None, high: float | None) -> str:
    return "" if median is None or high is None else f"{median:.1%}, {high:.1%}"


@app.command(epilog="Example: rlpto profiles fit shared/profiles -o profiles")
def fit(
    measured: Annotated[
        Path, typer.Argument(metavar="MEASURED", help="Folder with a folder of measurements for each model.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the YAML files go.")],
    quiet: QuietOption = False,
) -> None:
    """Fit throughput, noise scale and accuracy of every model to measurements, and state the errors."""
    from rlpto.performance.fit import fit_folder

    paths = fit_folder(measured, out)
    make_console(quiet).print(f"{len(paths)} profiles in {out}: {', '.join(path.stem for path in paths)}")
    if not quiet:
        show(out)


@app.command(epilog="Example: rlpto profiles preview cifar10 --gpus 1..16")
def preview(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model that has a profile.")],
    gpus: Annotated[str, typer.Option(metavar="RANGE", help="Numbers of GPUs, such as 1..16, or 1,2,4,8.")] = "1..16",
    metric: Annotated[
        Literal["goodput", "throughput", "efficiency", "all"], typer.Option(help="What the batch size is chosen by.")
    ] = "all",
    profiles: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Profiles or measurements, instead of the built-in profiles.")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(min=1, max=1024, metavar="N", help="GPUs of a node.")] = 4,
    min_util: Annotated[float | None, typer.Option(help="Least utility of a GPU, else each metric's own.")] = None,
    max_util: Annotated[float | None, typer.Option(help="Most utility of a GPU, likewise; both or none.")] = None,
) -> None:
    """Predict time and GPU-hours of a whole training that adapts its batch size, by metric and number of GPUs."""
    from rlpto.performance.compile import load_profiles
    from rlpto.performance.metrics import METRIC_NAMES
    from rlpto.performance.solo import parse_gpus, predict_training

    chosen = METRIC_NAMES if metric == "all" else (metric,)
    counts, band = parse_gpus(gpus), _band(min_util, max_util)
    found = predict_training(load_profiles(profiles), model, counts, chosen, gpus_per_node, band)
    make_console().print(_preview_table(found))


def _band(min_util: float | None, max_util: float | None) -> UtilityBand | None:
    """Bounds on a GPU's utility. Raises ConfigError if only one is given, or if they are out of order."""
    from rlpto.performance.metrics import UtilityBand

    if min_util is None and max_util is None:
        return None
    if min_util is None or max_util is None:
        raise ConfigError("--min-util and --max-util: expected both or none")
    try:
        return UtilityBand(min_util, max_util)
    except ValueError as wrong:
        raise ConfigError(f"--min-util, --max-util: {wrong}") from None


def _preview_table(found: list[TrainingEstimate]) -> Table:
    """A row for every number of GPUs, three columns for every metric."""
    table = make_table(
        title=f"{found[0].model}: a whole training, alone, without rescales",
        caption="utility: speed-up / GPUs by the metric's score; * within the metric's bounds, > what they ask for",
    )
    table.add_column("\nGPUs", justify="right")
    for name in dict.fromkeys(row.metric for row in found):
        for heading in (f"{name}\nhours", "\nGPU-hours", "\nutility"):
            table.add_column(heading, justify="right", no_wrap=True)
    by_gpus: dict[int, list[str]] = {}
    for row in found:
        mark = ("> " if row.chosen else "") + ("*" if row.within_band else " ")
        figures = [f"{row.hours:,.2f}", f"{row.gpu_hours:,.1f}", f"{mark} {row.utility:.2f}"]
        by_gpus.setdefault(row.gpus, [str(row.gpus)]).extend(figures)
    for figures in by_gpus.values():
        table.add_row(*figures)
    return table


def profile(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="YAML file for the profiles.")],
    address: AddressOption = None,
    seconds: Annotated[
        float, typer.Option(min=1.0, max=1e9, help="Seconds of training at every size and placement.")
    ] = 10.0,
    learning: Annotated[
        float,
        typer.Option(
            min=1.0,
            max=1e9,
            help="Longest time in seconds for the training that measures the accuracy curve.",
        ),
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
    """Profiles of a file that match the programs' current settings. Raises ProfileError for any other file."""
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
    """Measure programs one after the other, and add each to the file and to `known` when it is measured.

    address: address of a running Ray cluster. Default: a local one. seconds: duration of each measurement. learning:
    longest training for the accuracy curve [s].
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
    """Description of the cluster on which a program was measured. gpus: GPUs of every node."""
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


VERBS = {"profiles": Verb(app, INPUTS), "profile": Verb(profile, CLUSTERS, "rlpto profile ray -o profiles/here.yaml")}
