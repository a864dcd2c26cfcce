"""`rlpto profiles`: the measured models, the fit behind them, and their predictions for a training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlpto.cli.common import INPUTS, QuietOption, Verb, make_console, make_table
from rlpto.io.errors import ConfigError, ProfileError

if TYPE_CHECKING:
    from rich.table import Table

    from rlpto.performance.metrics import UtilityBand
    from rlpto.performance.profiles import Profile
    from rlpto.performance.solo import TrainingEstimate

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
            _shares(errors.throughput_median, errors.throughput_p90),
            "" if errors.accuracy_rmse is None else f"{errors.accuracy_rmse:.3f}",
        )
    console = make_console()
    console.print(table)
    for source in dict.fromkeys(profile.source for profile in profiles.values()):
        console.print(f"\n[dim]source: {escape(source)}[/]")


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
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="Of these; all, if none.")] = None,
    folder: _SizesOption = Path("llm"),
    quiet: QuietOption = False,
) -> None:
    """Plot the throughput per GPU by number of GPUs of profiles by tables: a panel a model, a line a kind of GPU."""
    from rlpto.evaluation.plots import Plot, write_plots
    from rlpto.evaluation.profile_plots import throughput_panels

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
    """List kinds of GPU, allowed sizes and sources of profiles by tables, and how well held-out sizes are predicted."""
    from rich.markup import escape

    from rlpto.performance.size_table import held_out

    profiles = _with_tables(folder)
    shown = make_table(
        caption="error of a step's time where its size is held out: median, 90 %; not of outermost sizes"
    )
    for heading in ("model", "kind", "GPUs", "error"):
        shown.add_column(heading, no_wrap=heading != "GPUs")
    by_source: dict[str, list[float]] = {}
    for name, profile in profiles.items():
        for number, (kind, law) in enumerate(profile.tables().items()):
            errors = law.held_out_errors()
            by_source.setdefault(profile.source, []).extend(errors)
            sizes = ", ".join(map(str, law.sizes))
            shown.add_row("" if number else escape(name), kind, sizes, _shares(*held_out(errors)))
    console = make_console()
    console.print(shown)
    for text, errors in [*by_source.items(), ("all", [error for some in by_source.values() for error in some])]:
        shares = _shares(*held_out(errors))
        console.print(f"{escape(text)}: {len(errors)} sizes held out, error {shares or 'not known'}")


def _shares(median: float | None, high: float | None) -> str:
    """A median and a 90 % quantile in percent; empty if they are not known."""
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
        str,
        typer.Option(metavar="METRIC", help="What the batch size is chosen by: goodput, throughput, efficiency, all."),
    ] = "all",
    profiles: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Profiles or measurements, instead of the built-in profiles.")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(min=1, max=1024, metavar="N", help="GPUs of a node.")] = 4,
    min_util: Annotated[float | None, typer.Option(help="Least utility of a GPU, else each metric's own.")] = None,
    max_util: Annotated[float | None, typer.Option(help="Most utility of a GPU, likewise; both or none.")] = None,
) -> None:
    """Predict time and GPU-hours of a whole training that adapts its batch size, by metric and number of GPUs."""
    from difflib import get_close_matches

    from rlpto.performance.compile import load_profiles
    from rlpto.performance.metrics import METRIC_NAMES
    from rlpto.performance.solo import parse_gpus, predict_training

    chosen = METRIC_NAMES if metric == "all" else tuple(name for name in METRIC_NAMES if name == metric)
    if not chosen:
        near = get_close_matches(metric, METRIC_NAMES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"--metric {metric[:60]}: expected one of {', '.join(METRIC_NAMES)}, all{hint}")
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
    from rich.markup import escape

    table = make_table(
        title=f"{escape(found[0].model)}: a whole training, alone, without rescales",
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


VERB = Verb(app, INPUTS)
