"""The series that benchmarks/forecasting.py forecasts: real, given, and others that nothing was measured on."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import _common
import numpy as np
import numpy.typing as npt
import pandas as pd

from rlpto.forecasting.base import targets
from rlpto.forecasting.series import MONDAY, TimeSeries, as_series, seconds

FloatArray = npt.NDArray[np.float64]

HORIZON = 12
HOURS = 2400
OTHERS = 6
"""Virtual clusters of Philly, besides the one in the table, that are forecast hour by hour."""


@dataclass(frozen=True)
class SeriesCase:
    """A series, and where its test part begins."""

    name: str
    series: TimeSeries
    test: int

    @property
    def origins(self) -> npt.NDArray[np.int64]:
        return np.arange(self.test, len(self.series))

    @property
    def truth(self) -> FloatArray:
        return targets(self.series.values, self.origins, HORIZON)

    @property
    def day(self) -> int:
        return self.series.lag(86400)

    @property
    def scale(self) -> float:
        """Error of the seasonal naive before the test; 1, so that MASE is MAE, if there is none or no day of data."""
        y = self.series.values[: self.test]
        return float(np.abs(y[self.day :] - y[: -self.day]).mean() if self.day < len(y) else 0.0) or 1.0

    def mase(self, forecasts: FloatArray) -> tuple[float, float]:
        error = np.nanmean(np.abs(forecasts - self.truth), axis=0) / self.scale
        return float(error[0]), float(error.mean())


def ratio(own: float, best: float) -> float:
    """How far behind the best; 1 where both are without error."""
    if best < 1e-12:
        return 1.0 if own < 1e-9 else math.inf
    return own / best


def split(name: str, series: TimeSeries) -> SeriesCase:
    return SeriesCase(name, series, len(series) - tested(series))


def tested(series: TimeSeries) -> int:
    """Points of the test part."""
    return round(0.2 * len(series))


def given(path: Path, time: str, value: str | None, every: str) -> SeriesCase:
    """A csv file of counts, or of arrivals if there is no column of values. Ends the program over bad input."""
    try:
        table = pd.read_csv(_common.needed(path))
    except (OSError, ValueError) as wrong:
        _common.refuse(f"{path}: no csv file ({' '.join(str(wrong).split())})")
    for column in filter(None, (time, value)):
        if column not in table:
            _common.refuse(f"{path}: no column {column!r}, there are {', '.join(table.columns)}")
    stamps = pd.to_datetime(table[time], errors="coerce")
    values = pd.Series(1.0, index=table.index)
    if value:
        values = pd.to_numeric(table[value], errors="coerce")
    found = (
        (time, stamps.isna(), "a time"),
        (value or "", ~(np.isfinite(values) & (values >= 0)), "a count, 0 or more"),
    )
    for column, bad, expected in found:
        if bad.any():
            row = int(np.argmax(bad))
            _common.refuse(f"{path}:{row + 2}: {column} {table[column].iloc[row]}, expected {expected}")
    step = seconds(every)
    apart = float(stamps.sort_values().diff().dt.total_seconds().median())
    if value and apart > step:
        _common.refuse(f"{path}: a row every {apart:g} s, expected --every to be at least that")
    counts = pd.Series(values.to_numpy(dtype=float), index=pd.DatetimeIndex(stamps)).sort_index()
    return split(path.stem, as_series(counts.resample(f"{step:g}s").sum(), min_points=100))


def real(only: list[str] | None) -> list[SeriesCase]:
    """The six series of the reference page, or those whose names contain one of `only`."""
    folder = _common.needed(None, "traces")
    venus = venus_counts(folder)
    philly = philly_jobs(folder)
    arrivals = {"philly": philly, "philly 11cb48": philly[philly["cluster"] == "11cb48"]}
    cases = []
    for every in ("1h", "10min"):
        cases.append(split(f"venus {every}", as_series(venus.resample(every).sum())))
        for name, jobs in arrivals.items():
            cases.append(split(f"{name} {every}", counted(jobs, every)))
    return chosen(cases, only)


def chosen(cases: list[SeriesCase], only: list[str] | None) -> list[SeriesCase]:
    return [case for case in cases if not only or any(part in case.name for part in only)]


def venus_counts(folder: Path) -> pd.Series[float]:
    """GPU jobs submitted to Helios' cluster Venus in each ten minutes."""
    table = pd.read_csv(folder / "helios_venus_counts.csv.gz", parse_dates=["time"]).set_index("time")
    return table["submit_gpu_job"].astype(float)


def philly_jobs(folder: Path) -> pd.DataFrame:
    """Jobs of Philly; before this day the trace is all but empty, as its notes say."""
    jobs = pd.read_csv(folder / "philly.csv.gz", parse_dates=["timestamp"])
    return jobs[jobs["timestamp"] >= "2017-10-03"]


def counted(jobs: pd.DataFrame, every: str) -> TimeSeries:
    times = pd.DatetimeIndex(jobs["timestamp"])
    return as_series(pd.Series(1.0, index=times).sort_index().resample(every).sum())


def others(only: list[str] | None) -> list[SeriesCase]:
    """Series to choose constants on: synthetic ones, and what comes before the test parts of real ones."""
    cases = [split(name, TimeSeries(synthetic(name), 3600.0, MONDAY)) for name in SYNTHETIC]
    folder = _common.needed(None, "traces")
    venus, jobs = venus_counts(folder), philly_jobs(folder)
    clusters = [name for name in jobs["cluster"].value_counts().index if name != "11cb48"][:OTHERS]
    groups = {f"philly {name}": jobs[jobs["cluster"] == name] for name in ("11cb48", *clusters)} | {"philly": jobs}
    wanted = [
        ("1h", list(groups)),
        ("10min", ["philly", "philly 11cb48", *(f"philly {name}" for name in clusters[:3])]),
    ]
    for every, names in wanted:
        series = {"venus": as_series(venus.resample(every).sum())}
        series |= {name: counted(groups[name], every) for name in names}
        cases += [
            split(f"start of {name} {every}", whole.head(len(whole) - tested(whole))) for name, whole in series.items()
        ]
    return chosen(cases, only)


def synthetic(name: str) -> FloatArray:
    """[HOURS] counts per hour of some kind, the same each time."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return np.asarray(SYNTHETIC[name](rng), dtype=np.float64)


T = np.arange(HOURS)
DAY = np.sin(2 * np.pi * (T - 6) / 24)
WORKDAY = T // 24 % 7 < 5


def _bursts(rng: np.random.Generator) -> npt.ArrayLike:
    rates = np.full(HOURS, 3.0)
    for begin in rng.choice(HOURS, 120, replace=False):
        rates[begin : begin + rng.integers(1, 6)] += rng.lognormal(3, 1)
    return rng.poisson(rates)


def _wandering(rng: np.random.Generator) -> npt.ArrayLike:
    level = np.zeros(HOURS)
    for at in range(1, HOURS):
        level[at] = 0.95 * level[at - 1] + rng.normal(0, 0.3)
    return rng.poisson(np.exp(2 + level))


SYNTHETIC: Mapping[str, Callable[[np.random.Generator], npt.ArrayLike]] = {
    "diurnal": lambda rng: rng.poisson(8 * np.exp(DAY) * np.where(WORKDAY, 1, 0.5)),
    "bursty": _bursts,
    "shifts": lambda rng: rng.poisson(np.repeat(rng.lognormal(2, 1, 12), HOURS // 12) * np.exp(0.4 * DAY)),
    "intermittent": lambda rng: rng.poisson(3, HOURS) * (rng.random(HOURS) < 0.12),
    "noise": lambda rng: rng.poisson(10, HOURS),
    "trend": lambda rng: rng.poisson((3 + 20 * T / HOURS) * np.exp(0.5 * DAY)),
    "ar": _wandering,
    "walk": lambda rng: np.maximum(0, np.round(40 + np.cumsum(rng.normal(0, 2, HOURS)))),
    "nightbatch": lambda rng: rng.poisson(np.where(T % 24 == 2, 60, 2) * np.where(WORKDAY, 1, 0.2)),
    "rare": lambda rng: rng.poisson(0.15 * np.exp(DAY)),
    "period8": lambda rng: rng.poisson(10 + 8 * np.sin(2 * np.pi * T / 8)),
    "deterministic": lambda rng: np.round(20 + 15 * DAY),  # noqa: ARG005
    "constant": lambda rng: np.full(HOURS, 7.0),  # noqa: ARG005
    "fractions": lambda rng: 0.37 * rng.poisson(8 * np.exp(DAY)),
}
"""Counts per hour by kind, of `walk` most are 0 in the end."""
