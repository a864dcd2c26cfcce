"""`rlpto forecast`: how well the task volume of a trace can be predicted, and a forecaster fitted to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlpto.cli.common import QuietOption, interrupted, make_console, make_progress

if TYPE_CHECKING:
    from rich.table import Table

    from forecasting.backtest import Backtest
    from forecasting.series import TimeSeries

app = typer.Typer(help="Predict how many jobs, or GPUs, arrive in the next intervals.", no_args_is_help=True)


class What(StrEnum):
    """What is counted: jobs, or the GPUs they ask for."""

    jobs = "jobs"
    gpus = "gpus"


TraceArgument = Annotated[
    Path, typer.Argument(metavar="TRACE", help="Trace of any known format; with --value, a CSV of counts.")
]
EveryOption = Annotated[str, typer.Option(metavar="TIME", help="Length of an interval, such as 10min or 1h.")]
WhatOption = Annotated[What, typer.Option(help="Count jobs, or the GPUs they ask for.")]
GroupOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only jobs of this group (virtual cluster, queue).")
]
StartOption = Annotated[
    datetime | None, typer.Option(formats=["%Y-%m-%d"], metavar="DATE", help="Day from which to count.")
]
TimeOption = Annotated[str, typer.Option(metavar="COLUMN", help="Column of a CSV of counts with their times.")]
ValueOption = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column with the counts: TRACE is such a CSV.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of all randomness.")]


@app.callback()
def forecast() -> None:
    """Predict how many jobs, or GPUs, arrive in the next intervals."""


@app.command(epilog="Example: rlpto forecast backtest traces/philly.parquet --every 1h --horizon 12 --methods all")
def backtest(
    path: TraceArgument,
    every: EveryOption = "1h",
    horizon: Annotated[int, typer.Option(min=1, help="Intervals ahead.")] = 12,
    methods: Annotated[
        str, typer.Option(metavar="NAMES", help="Methods separated by commas; all: every one there is.")
    ] = "hybrid,arima_log,season_24h,naive",
    test: Annotated[
        float, typer.Option(min=0.01, max=0.9, metavar="SHARE", help="Share of the series, at its end, to score.")
    ] = 0.2,
    step_size: Annotated[int, typer.Option(min=1, help="Intervals from one origin to the next.")] = 1,
    windows: Annotated[int | None, typer.Option(min=1, help="At most so many origins.")] = None,
    refit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Fit again every N origins; never if not given.")
    ] = None,
    what: WhatOption = What.jobs,
    group: GroupOption = None,
    start: StartOption = None,
    time: TimeOption = "time",
    value: ValueOption = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="FOLDER", help="Where results go; runs/forecast-TRACE if not given."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Forecast the end of a series from every moment of it, and score what was forecast.

    Each method is fitted on what comes before the test part and then only told the counts as they
    come. Writes scores.csv, forecasts.csv and plots.
    """
    from forecasting.backtest import backtest as run
    from forecasting.registry import METHODS, make_method

    names = list(METHODS) if methods == "all" else list(dict.fromkeys(name.strip() for name in methods.split(",")))
    folder = Path("runs") / f"forecast-{_stem(path)}" if out is None else out
    with _bad_input():
        forecasters = {name: make_method(name, seed) for name in names}
    series = _series(path, every, what, group, start, time, value)
    with _bad_input(f"{path}: "), make_progress(quiet) as bar:
        task = bar.add_task("methods", total=len(names))
        try:
            result = run(
                forecasters,
                series,
                horizon=horizon,
                start=len(series) - max(1, round(test * len(series))),
                step_size=step_size,
                windows=windows,
                refit=refit,
                told=lambda name: bar.update(task, description=name, advance=1),
            )
        except KeyboardInterrupt:
            bar.stop()
            interrupted("nothing was written")
    _write(result, folder)
    console = make_console(quiet)
    console.print(_table(result, f"{path}: {what.value} per {every}"))
    console.print(f"scores, forecasts and plots: {folder}", style="bold", markup=False)


@app.command(epilog="Example: rlpto forecast fit traces/philly.parquet --every 10min -o forecasters/philly.pt")
def fit(
    path: TraceArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write.")],
    every: EveryOption = "10min",
    method: Annotated[str, typer.Option(metavar="NAME", help="Method to fit.")] = "hybrid",
    what: WhatOption = What.jobs,
    group: GroupOption = None,
    start: StartOption = None,
    time: TimeOption = "time",
    value: ValueOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Fit a forecaster to a whole series and write it as one file.

    `--set forecast.model=FILE` gives its forecasts to policies and agents; naming a model turns forecasts on.
    """
    from forecasting.registry import make_method

    with _bad_input():
        forecaster = make_method(method, seed)
    series = _series(path, every, what, group, start, time, value)
    with _bad_input(f"{path}: "):
        forecaster.fit(series)
    with _bad_input():
        forecaster.save(out)
    console = make_console(quiet)
    console.print(f"{out}: {method} fitted to {len(series):,} intervals of {every}", markup=False)
    note = getattr(forecaster, "fallback", "")
    if note:
        console.print(f"  {note}", markup=False)


def _series(
    path: Path, every: str, what: What, group: str | None, start: datetime | None, time: str, value: str | None
) -> TimeSeries:
    """Counts per interval of a trace or, with the name of a column of counts, of a CSV."""
    import numpy as np
    import pandas as pd

    from forecasting.series import as_series, seconds
    from rlpto.errors import ConfigError, TraceError
    from rlpto.experiment import read_any
    from rlpto.workloads.volume import task_volume

    with _bad_input("--every: "):
        step = seconds(every)
    first = None if start is None else pd.Timestamp(start)
    if value is not None:
        if group is not None or what != What.jobs:
            raise ConfigError("--value: a CSV of counts has neither groups nor GPUs to count, expected no such option")
        return _read_counts(path, step, time, value, first)
    trace = read_any(path)
    if group is not None:
        rows = np.array([name == group for name in trace.texts("group")])
        if not rows.any():
            known = sorted(set(trace.texts("group")))
            raise TraceError(f"{path}: no jobs of group {group!r}, expected one of {', '.join(map(repr, known[:20]))}")
        trace = trace.take(rows)
    volume = task_volume(trace, step, what.value, first)
    with _bad_input(f"{path}: "):
        return as_series(volume.counts, step, volume.start)


def _read_counts(path: Path, step: float, time: str, value: str, start: object) -> TimeSeries:
    """A CSV with a row per interval; rows of shorter intervals are added up."""
    import numpy as np
    import pandas as pd

    from forecasting.series import TimeSeries, as_series
    from rlpto.errors import TraceError

    try:
        rows = pd.read_csv(path)
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file, expected a CSV of counts") from None
    except (OSError, ValueError) as wrong:
        raise TraceError(f"{path}: no CSV of counts ({' '.join(str(wrong).split())})") from None
    for column in (time, value):
        if column not in rows.columns:
            raise TraceError(f"{path}: column {column!r} missing, expected one of {', '.join(map(str, rows.columns))}")
    stamps = pd.to_datetime(rows[time], errors="coerce", format="ISO8601")
    counts = pd.to_numeric(rows[value], errors="coerce")
    for column, parsed, expected in ((time, stamps, "a time such as 2020-04-01 00:00:00"), (value, counts, "a number")):
        bad = parsed.isna()
        if bad.any():
            row = int(np.argmax(bad))
            raise TraceError(f"{path}:{row + 2}: {column} {rows[column].iloc[row]}, expected {expected}")
    table = pd.Series(counts.to_numpy(dtype=float), index=pd.DatetimeIndex(stamps))
    table = table if start is None else table[table.index >= start]
    with _bad_input(f"{path}: "):
        fine = as_series(table)
        parts = step / fine.step
        if math.isclose(parts, 1.0):
            return fine
        if parts < 1 or not math.isclose(parts, round(parts)):
            raise TraceError(f"{path}: a row every {fine.step:g} s, expected --every to be a multiple of it")
        width = round(parts)
        whole = len(fine) // width * width
        return as_series(TimeSeries(fine.values[:whole].reshape(-1, width).sum(axis=1), step, fine.start))


def _write(result: Backtest, folder: Path) -> None:
    """Tables and plots into a folder."""
    from forecasting.backtest import write_forecasts, write_scores
    from forecasting.plots import plot_errors, plot_forecasts, plot_weights

    best = "hybrid" if "hybrid" in result.forecasts else next(iter(result.forecasts))
    with _bad_input():
        write_scores(result, folder / "scores.csv")
        write_forecasts(result, folder / "forecasts.csv")
        plot_forecasts(result, best, folder / "forecasts.png")
        plot_errors(result, folder / "errors.png")
        if best == "hybrid":
            from forecasting.hybrid import LABELS, HybridForecaster

            hybrid = result.fitted["hybrid"]
            assert isinstance(hybrid, HybridForecaster)
            weights = hybrid.weights(result.series, result.origins)[:, 0]
            plot_weights(result, weights, LABELS, folder / "weights.png")


def _table(result: Backtest, title: str) -> Table:
    """A line per method, one step ahead and on average over all steps; the least errors in bold."""
    from rich import box
    from rich.table import Table

    last = f"1-{result.horizon}"
    near = {score.forecaster: score for score in result.scores() if score.ahead == "1"}
    mean = {score.forecaster: score for score in result.scores() if score.ahead == last} or near
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("method", no_wrap=True)
    covered = f"in {result.nominal:.0%}"
    heads = ("MASE 1", f"MASE {last}", "MAE 1", f"MAE {last}", f"RMSE {last}", f"R2 {last}", covered, "pinball")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    least = [min(score.mase for score in scores.values()) for scores in (near, mean)]
    for name, one in near.items():
        many = mean[name]
        errors = [
            f"[bold]{score.mase:.3f}[/bold]" if score.mase == low else _number(score.mase)
            for score, low in zip((one, many), least, strict=True)
        ]
        rest = [_number(figure) for figure in (one.mae, many.mae, many.rmse, many.r2)]
        covers = "–" if math.isnan(many.coverage) else f"{many.coverage:.1%}"  # noqa: RUF001
        table.add_row(name, *errors, *rest, covers, _number(many.pinball))
    table.caption = (
        f"{len(result.origins):,} origins; MASE is scaled by the seasonal naive (24 h) before them; "
        f"RMSE and R2 are of the means, all others of medians"
    )
    return table


def _number(figure: float) -> str:
    return "–" if math.isnan(figure) else f"{figure:.3f}"  # noqa: RUF001


def _stem(path: Path) -> str:
    """Name of a file without its endings."""
    return path.name.split(".")[0]


@contextmanager
def _bad_input(prefix: str = "") -> Iterator[None]:
    """What forecasting refuses becomes the one line, with the name of the file or option, that ends a verb."""
    from forecasting.errors import ForecastError
    from rlpto.errors import TraceError

    try:
        yield
    except ForecastError as wrong:
        raise TraceError(f"{prefix}{wrong}") from None
