"""`rlpto trace`: import, describe, generate and calibrate traces."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from rlpto.cli.common import INPUTS, QuietOption, Verb, keep_input, make_console, make_table
from rlpto.workloads.importers import detect_format, format_names, import_trace, recognised_format

app = typer.Typer(help="Import, describe, generate and calibrate traces.", no_args_is_help=True)

_TRACE = "Trace (parquet), a file of any format, or the name of a trace of RLPTO, such as microsoft/cluster04"
OutOption = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write (parquet).")]


@app.command(
    "import",
    epilog="Example: rlpto trace import philly cluster_job_log -o traces/philly.parquet",
    help=f"Read a public trace and write it in RLPTO's form. Formats: {', '.join(format_names())}.",
)
def import_(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help="Format of the file; auto: by its content.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file, also packed as gz, bz2, xz or zip.")],
    out: OutOption,
    skip_bad_lines: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Count and leave out broken lines instead of stopping.")
    ] = False,
    columns: Annotated[
        str | None,
        typer.Option(metavar="NAME=COLUMN,...|FILE.yaml", help="With format table: names of the columns of your csv."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Read a public trace; nothing is written if it has broken lines."""
    from rlpto.workloads.trace import write_trace

    for given in (path, Path(columns or "")):
        keep_input(out, given)
    name = detect_format(path) if format_ == "auto" else format_
    # A csv derived from a trace also has the trace's name.
    if name == "philly" and recognised_format(path) == "philly_csv":
        name = "philly_csv"
    result = import_trace(name, path, skip_bad_lines, columns)
    write_trace(result.trace, out)
    console = make_console(quiet)
    console.print(f"{out}: {len(result.trace):,} jobs")
    if result.cpu_jobs:
        console.print(f"  left out: {result.cpu_jobs:,} jobs without GPUs")
    for reason, count in result.reasons().items():
        console.print(f"  left out: {count:,} x {reason}", markup=False)
    for text, count in result.notes.items():
        console.print(f"  noted: {count:,} x {text}", markup=False)


@app.command(epilog="Example: rlpto trace describe traces/philly.parquet --gpus 2480")
def describe(
    paths: Annotated[list[Path], typer.Argument(metavar="TRACE", help=f"{_TRACE}; several are put in a table.")],
    gpus: Annotated[
        int | None, typer.Option(min=1, max=10**9, metavar="N", help="Also state the load on a cluster of N GPUs.")
    ] = None,
) -> None:
    """Count jobs, and show when they arrive, how many GPUs they want, how long they run."""
    from rich.markup import escape

    from rlpto.workloads.describe import summary, tables
    from rlpto.workloads.files import read_any

    if len(paths) == 1:
        make_console().print(tables(read_any(paths[0]), gpus))
        return
    found = {path: summary(read_any(path), gpus) for path in paths}
    table = make_table("trace", *found[paths[0]])
    for path, figures in found.items():
        table.add_row(escape(str(path)), *figures.values())
    make_console().print(table)


@app.command(epilog="Example: rlpto trace generate --like philly --days 7 -o traces/synthetic.parquet")
def generate(
    out: OutOption,
    like: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Calibration: philly, microsoft02 (03, 04, 05, 07, 09), or a YAML made by `rlpto trace calibrate`.",
        ),
    ] = "philly",
    days: Annotated[float, typer.Option(help="Days to generate, from a Monday at 0:00.")] = 7.0,
    rate: Annotated[float, typer.Option(help="Factor on the number of submissions.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all randomness.")] = 0,
    quiet: QuietOption = False,
) -> None:
    """Draw a synthetic trace with the statistics of a recorded one."""
    from rlpto.workloads.calibration import load_calibration
    from rlpto.workloads.synthetic import generate as draw
    from rlpto.workloads.trace import write_trace

    keep_input(out, Path(like))
    trace = draw(load_calibration(like), days, seed, rate)
    write_trace(trace, out)
    make_console(quiet).print(f"{out}: {len(trace):,} jobs in {days:g} days like {like}")


@app.command(epilog="Example: rlpto trace calibrate traces/philly.parquet --start 2017-10-03 -o philly.yaml")
def calibrate(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help=f"{_TRACE}, to take the statistics from.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write (YAML).")],
    start: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], metavar="DATE", help="Day from which to count.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Where the trace is from, with its licence.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Measure the statistics of a trace that `generate --like FILE` imitates."""
    import pandas as pd

    from rlpto.workloads.calibration import write_calibration
    from rlpto.workloads.files import read_any
    from rlpto.workloads.synthetic import calibrate as measure

    keep_input(out, path)
    first = None if start is None else pd.Timestamp(start)
    calibration = measure(read_any(path), name=out.stem, source=source, start=first)
    write_calibration(calibration, out)
    make_console(quiet).print(f"{out}: statistics of {calibration.days} days")


VERB = Verb(app, INPUTS)
