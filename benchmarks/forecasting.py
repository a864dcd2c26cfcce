"""The combination of forecasters against its own parts, on real counts.

The last 20 % are tested without another fit, and every origin is scored. h1 is one step ahead, h12 the mean over 1 to
12. MASE: mean absolute error divided by the same error of the seasonal naive (24 h) before the test part.
`rlpto forecast backtest FILE.csv --methods all` compares them on any series.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import _common
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from _common import Check

from rlpto.forecasting.base import targets
from rlpto.forecasting.hybrid import HybridForecaster
from rlpto.forecasting.series import TimeSeries, as_series

FloatArray = npt.NDArray[np.float64]

HORIZON, TESTED = 12, 0.2
BEHIND_PART, COVERAGE = 1.005, (0.77, 0.83)
FIT_LOOPS, STEP_LOOPS = 600.0, 0.05
"""Largest number of calibration loops for a fit, and for an update with a prediction."""


@dataclass(frozen=True)
class SeriesCase:
    """A series, and the beginning of its test part."""

    name: str
    series: TimeSeries

    @property
    def test(self) -> int:
        return len(self.series) - round(TESTED * len(self.series))

    @property
    def origins(self) -> npt.NDArray[np.int64]:
        return np.arange(self.test, len(self.series))

    @property
    def truth(self) -> FloatArray:
        return targets(self.series.values, self.origins, HORIZON)

    @property
    def day(self) -> int:
        return self.series.lag(86400)

    def mase(self, forecasts: FloatArray) -> tuple[float, float]:
        """MASE for h1 and h12, or the mean absolute error if the seasonal naive has none."""
        y = self.series.values[: self.test]
        scale = float(np.abs(y[self.day :] - y[: -self.day]).mean() if self.day < len(y) else 0.0) or 1.0
        error = np.nanmean(np.abs(forecasts - self.truth), axis=0) / scale
        return float(error[0]), float(error.mean())


@dataclass(frozen=True)
class ForecastRun:
    """One seed on one case. scores: MASE (h1, h12) by method. coverage: share of values in 80 % intervals. fit, step:
    calibration loops of a fit, and of a step."""

    seed: int
    scores: dict[str, tuple[float, float]]
    coverage: float
    fit: float
    step: float


def main() -> None:
    parser = _common.OneLineParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=_common.at_least(0), nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    checks: list[Check] = []
    for case in real_series():
        runs = []
        for seed in options.seeds:
            _common.progress(f"{case.name}, seed {seed}")
            runs.append(one_seed(case, seed))
        show(case, runs)
        checks += [check for run in runs for check in checks_of(case, run)]
    _common.finish(checks)


def real_series() -> list[SeriesCase]:
    """The six series of docs/forecasting.md."""
    try:
        folder = _common.real("traces")
    except _common.NoDataError as lack:
        print(f"skipped: {lack}")
        sys.exit(0)
    table = pd.read_csv(folder / "helios_venus_counts.csv.gz", parse_dates=["time"])
    venus = table.set_index("time")["submit_gpu_job"].astype(float)  # GPU jobs in each ten minutes
    jobs = pd.read_csv(folder / "philly.csv.gz", parse_dates=["timestamp"])
    jobs = jobs[jobs["timestamp"] >= "2017-10-03"]  # before this day the trace is all but empty, as its notes say
    cases = []
    for every in ("1h", "10min"):
        cases.append(SeriesCase(f"venus {every}", as_series(venus.resample(every).sum())))
        for name, mine in {"philly": jobs, "philly 11cb48": jobs[jobs["cluster"] == "11cb48"]}.items():
            arrivals = pd.Series(1.0, index=pd.DatetimeIndex(mine["timestamp"])).sort_index()
            cases.append(SeriesCase(f"{name} {every}", as_series(arrivals.resample(every).sum())))
    return cases


def one_seed(case: SeriesCase, seed: int) -> ForecastRun:
    series, model = case.series, HybridForecaster(seed=seed)
    fit = _common.timed(lambda: model.fit(series.head(case.test))).loops
    parts = model.parts(series, case.origins, HORIZON)
    made = model.batch(series, case.origins, HORIZON, np.array([0.1, 0.9]))
    bounds = made.quantiles
    known = ~np.isnan(case.truth)
    inside = (case.truth >= bounds[..., 0] - 1e-9) & (case.truth <= bounds[..., 1] + 1e-9)
    scores = {name: case.mase(forecasts) for name, forecasts in (parts | {"combination": made.point}).items()}
    new = series.values[case.test : case.test + 100].tolist()
    updates = _common.timed(lambda: [(model.update(one), model.predict(HORIZON, (0.1, 0.5, 0.9))) for one in new])
    return ForecastRun(seed, scores, float(inside[known].mean()), fit, updates.loops / len(new))


def show(case: SeriesCase, runs: list[ForecastRun]) -> None:
    print(f"\n{case.name}: {len(case.series):,} intervals of {case.series.step:g} s, {len(case.origins):,} tested")
    counts, times = np.unique(case.series.values[case.test :], return_counts=True)
    # If a few counts make up most of the series, coverage cannot be fine-tuned.
    print(f"  the most common count, {counts[times.argmax()]:g}, is {times.max() / times.sum():.3f} of those tested")
    print(f"  {'MASE h1 / h12':34}" + "".join(f"{f'seed {run.seed}':>18}" for run in runs))
    for name in sorted(runs[0].scores, key=lambda name: runs[0].scores[name][1]):
        print(f"  {name:34}" + "".join("{:>11.4f} /{:.4f}".format(*run.scores[name]) for run in runs))
    for run in runs:
        print(f"  seed {run.seed}: 80 % intervals cover {run.coverage:.3f}")
    sys.stdout.flush()


def checks_of(case: SeriesCase, run: ForecastRun) -> list[Check]:
    """Checks of one case with one seed."""
    label = f"{case.name} seed {run.seed}"
    checks = []
    for at, horizon in enumerate(("h1", "h12")):
        part = min(score[at] for name, score in run.scores.items() if name != "combination")
        behind = run.scores["combination"][at] / part
        checks.append(Check(f"{label} {horizon}: of best part", behind, "", BEHIND_PART, False))
    return [
        *checks,
        Check(f"{label}: coverage", run.coverage, "", COVERAGE[0], True),
        Check(f"{label}: coverage", run.coverage, "", COVERAGE[1], False),
        Check(f"{label}: fit", run.fit, "calibration loops", FIT_LOOPS, False),
        Check(f"{label}: update and predict", run.step, "calibration loops", STEP_LOOPS, False),
    ]


if __name__ == "__main__":
    main()
