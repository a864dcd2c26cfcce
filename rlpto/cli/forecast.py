"""`rlpto forecast`: accuracy of predictions of a trace's task volume, and fitting a forecaster to it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlpto.cli.common import INPUTS, QuietOption, Verb, keep_input, make_console, make_progress, make_table
from rlpto.io.errors import ConfigError, TraceError
from rlpto.io.interrupts import Interrupted

if TYPE_CHECKING:
    from rich.table import Table

    from rlpto.forecasting.backtest import Backtest

app = typer.Typer(help="Predict how many jobs arrive in the next intervals.", no_args_is_help=True)


TraceArgument = Annotated[
    Path, typer.Argument(metavar="TRACE", help="Trace of any known format; with --value, a CSV of counts.")
]
EveryOption = Annotated[str, typer.Option(metavar="TIME", help="Length of an interval, such as 10min or 1h.")]
TimeOption = Annotated[str, typer.Option(metavar="COLUMN", help="Column of a CSV of counts with their times.")]
ValueOption = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column with the counts: TRACE is such a CSV.")]
EndOption = Annotated[
    str | None,
    typer.Option(
        metavar="DATE|SHARE|train",
        help="Fit to what comes before: a day, a share of the time covered such as 80%, or train: the share that "
        "workload.windows gives to training if nothing else is set.",
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of all randomness.")]
DemandOption = Annotated[
    bool, typer.Option("--demand", help="Jobs and GPUs that arrive in the next 5, 10 and 15 minutes, minute by minute.")
]
StartOption = Annotated[
    str | None, typer.Option(metavar="DATE", help="With --demand: leave out the jobs before a day.")
]


@app.command(epilog="Example: rlpto forecast backtest traces/philly.parquet --every 1h --horizon 12 --methods all")
def backtest(
    context: typer.Context,
    path: TraceArgument,
    every: EveryOption = "1h",
    horizon: Annotated[int, typer.Option(min=1, max=10_000, help="Intervals ahead.")] = 12,
    methods: Annotated[
        str, typer.Option(metavar="NAMES", help="Methods separated by commas; all: every one there is.")
    ] = "hybrid,arima_log,season_24h,naive",
    test: Annotated[float, typer.Option(min=0.01, max=0.9, metavar="SHARE", help="Share to score, at the end.")] = 0.2,
    time: TimeOption = "time",
    value: ValueOption = None,
    seed: SeedOption = 0,
    demand: DemandOption = False,
    start: StartOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="FOLDER", help="Where results go; runs/forecast-TRACE if not given."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Forecast the end of a series from every moment of it, and score the forecasts.

    Each method is fitted on the data before the test part. Then it takes in counts as they
    arrive. Writes scores.csv, forecasts.csv and plots; with --demand, which scores the last 30 %, demand.csv.
    """
    from rlpto.forecasting.backtest import backtest as run
    from rlpto.forecasting.backtest import write_report
    from rlpto.forecasting.registry import METHODS, make_forecaster
    from rlpto.workloads.arrival_counts import error_named, read_series

    names = list(METHODS) if methods == "all" else list(dict.fromkeys(name.strip() for name in methods.split(",")))
    folder = Path("runs") / f"forecast-{path.name.partition('.')[0]}" if out is None else out
    if _only_demand(context, demand):
        _backtest_demand(path, start, seed, folder, quiet)
        return
    forecasters = {name: make_forecaster(name, seed) for name in names}
    series = read_series(path, every, None, time, value)
    with error_named(str(path)), make_progress(quiet) as bar:
        task = bar.add_task("methods", total=len(names))
        try:
            result = run(
                forecasters,
                series,
                horizon=horizon,
                start=len(series) - max(1, round(test * len(series))),
                on_done=lambda name: bar.update(task, description=name, advance=1),
            )
        except KeyboardInterrupt:
            raise Interrupted("nothing was written") from None
    write_report(result, folder)
    console = make_console(quiet)
    console.print(_table(result, f"{path}: {value or 'jobs'} per {every}"))
    console.print(f"scores, forecasts and plots: {folder}", style="bold", markup=False)


@app.command(epilog="Example: rlpto forecast fit traces/philly.parquet --every 10min -o forecasters/philly.safetensors")
def fit(
    context: typer.Context,
    path: TraceArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write.")],
    every: EveryOption = "10min",
    method: Annotated[str, typer.Option(metavar="NAME", help="Method to fit.")] = "hybrid",
    end: EndOption = None,
    time: TimeOption = "time",
    value: ValueOption = None,
    seed: SeedOption = 0,
    demand: DemandOption = False,
    start: StartOption = None,
    quiet: QuietOption = False,
) -> None:
    """Fit a forecaster to a series, or its beginning, and write it as one file.

    A model must not be fitted on the windows that it is evaluated on: --end leaves them out.
    `--set forecast.model=FILE` gives its forecasts to policies and agents; naming a model turns forecasts on.
    """
    from rlpto.forecasting.registry import make_forecaster
    from rlpto.workloads.arrival_counts import error_named, read_demand, read_series

    keep_input(out, path)
    console = make_console(quiet)
    if _only_demand(context, demand):
        from rlpto.forecasting.demand import DemandForecaster

        counts, first = read_demand(path, end, start)
        with error_named(str(path)):
            fitted = DemandForecaster(seed).fit(counts, first)
        fitted.save(out)
        console.print(f"{out}: demand fitted to {len(counts):,} minutes", markup=False)
        return
    forecaster = make_forecaster(method, seed)
    series = read_series(path, every, end, time, value)
    with error_named(str(path)):
        forecaster.fit(series)
    forecaster.save(out)
    until = "" if end is None else f", up to {series.shown(len(series))[:16]}"
    console.print(f"{out}: {method} fitted to {len(series):,} intervals of {every}{until}", markup=False)


def _only_demand(context: typer.Context, demand: bool) -> bool:
    """Whether demand is requested. Raises ConfigError for options that do not fit the answer."""
    others = ("every", "horizon", "methods", "method", "test", "time", "value") if demand else ("start",)
    for name in others:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise ConfigError(f"--{name}: expected {'no such option with' if demand else 'it only with'} --demand")
    return demand


def _backtest_demand(path: Path, start: str | None, seed: int, folder: Path, quiet: bool) -> None:
    """Score forecasts of demand by minute, print a table for jobs and one for GPUs, and write all figures."""
    from rlpto.forecasting.demand_backtest import backtest_demand
    from rlpto.io.files import whole_file
    from rlpto.workloads.arrival_counts import error_named, read_demand

    with error_named(str(path)):
        scores = backtest_demand(*read_demand(path, None, start), seed)
        with whole_file(folder / "demand.csv", "demand", TraceError) as unfinished:
            scores.to_csv(unfinished, index=False, na_rep="nan", lineterminator="\n")
    console = make_console(quiet)
    figures = ["explained", "pinball_80", "pinball_90", "pinball_95", "covered", "covered_above_0"]
    caption = "explained: share of the variance; pinball: relative to a constant; all but explained of 10 minutes"
    for of, kind in scores.groupby("of", sort=False):
        table = make_table("method", title=f"{path}: {of} in the next minutes", caption=caption)
        wide = kind.pivot_table(index="method", columns="minutes", values=figures, sort=False, dropna=False)
        columns = [("explained", minutes) for minutes in (5, 10, 15)] + [(figure, 10) for figure in figures[1:]]
        for figure, minutes in columns:
            name = f"{figure} {minutes}" if figure == "explained" else figure.replace("_", " ")
            table.add_column(name, justify="right", no_wrap=True)
        for method, row in wide.iterrows():
            table.add_row(str(method), *(_number(row[column]) for column in columns))
        console.print(table)
    console.print(f"all figures: {folder / 'demand.csv'}", style="bold", markup=False)


def _table(result: Backtest, title: str) -> Table:
    """A line per method, one step ahead and on average over all steps; the smallest errors in bold."""
    from rlpto.forecasting.backtest import NOMINAL

    last = f"1-{result.horizon}"
    near = {score.forecaster: score for score in result.scores() if score.ahead == "1"}
    mean = {score.forecaster: score for score in result.scores() if score.ahead == last} or near
    caption = (
        f"{len(result.origins):,} origins; MASE is scaled by the seasonal naive (24 h) before them; "
        f"RMSE and R2 are of the means, all others of medians"
    )
    table = make_table("method", title=title, caption=caption)
    covered = f"in {NOMINAL:.0%}"
    for head in ("MASE 1", f"MASE {last}", "MAE 1", f"MAE {last}", f"RMSE {last}", f"R2 {last}", covered, "pinball"):
        table.add_column(head, justify="right", no_wrap=True)
    least = [min(score.mase for score in scores.values()) for scores in (near, mean)]
    for name, one in near.items():
        many = mean[name]
        errors = [
            f"[bold]{score.mase:.3f}[/bold]" if score.mase == low else _number(score.mase)
            for score, low in zip((one, many), least, strict=True)
        ]
        rest = [_number(figure) for figure in (one.mae, many.mae, many.rmse, many.r2)]
        table.add_row(name, *errors, *rest, _number(many.coverage, ".1%"), _number(many.pinball))
    return table


def _number(figure: float, form: str = ".3f") -> str:
    return "–" if math.isnan(figure) else f"{figure:{form}}"  # noqa: RUF001


VERB = Verb(app, INPUTS)
