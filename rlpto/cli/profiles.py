"""`rlpto profiles`: the measured models, and the fit that made them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlpto.cli.common import INPUTS, QuietOption, Verb, make_console

app = typer.Typer(help="Show the profiles of models, or fit new ones to measurements.", no_args_is_help=True)


@app.command(epilog="Example: rlpto profiles show --folder profiles")
def show(
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of fitted profiles, instead of the built-in ones.")
    ] = None,
) -> None:
    """Tell what each profile is and how far it is from the measurements it was fitted to."""
    from rich.markup import escape
    from rich.table import Table

    from rlpto.errors import ProfileError
    from rlpto.performance.profiles import builtin_profiles, load_folder

    profiles = builtin_profiles() if folder is None else load_folder(folder)
    if not profiles:
        raise ProfileError(f"{folder}: no profiles there, expected a folder with *.yaml")
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("model\n", no_wrap=True)
    table.add_column("\n", ratio=1)
    headings = (
        "samples\nan epoch",
        "epochs\n",
        "batch\nfrom, to",
        "rescale\n[s]",
        "step error\nmedian, p90",
        "accuracy\nrmse",
    )
    for heading in headings:
        table.add_column(heading.replace("[", "\\["), justify="right", no_wrap=True)
    for profile in profiles.values():
        errors = profile.errors
        table.add_row(
            escape(profile.name),
            escape(profile.description),
            f"{profile.samples:,.0f}",
            str(profile.epochs),
            f"{profile.batch.base:,}, {profile.batch.largest:,}",
            f"{profile.rescale_delay:g}",
            f"{errors.throughput_median:.1%}, {errors.throughput_p90:.1%}",
            f"{errors.accuracy_rmse:.3f}",
        )
    console = make_console()
    console.print(table)
    for source in dict.fromkeys(profile.source for profile in profiles.values()):
        console.print(f"\n[dim]source: {escape(source)}[/]")


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


VERB = Verb(app, INPUTS)
