"""The combination of forecasters against its own parts and against other methods, on real counts.

Split: the last 20 % are tested, the 12 % before select and stop; nothing is fitted again, every origin is scored. h1
is one step ahead, h12 the mean over 1 to 12. MASE: mean absolute error over that of the seasonal naive (24 h) on the
part before the test. `rlpto forecast backtest FILE.csv --methods all` compares it with its parts on any series.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import _common
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from _common import Check
from scipy.optimize import nnls

from rlpto.forecasting.base import targets
from rlpto.forecasting.features import describe, layout_of
from rlpto.forecasting.hybrid import HybridForecaster
from rlpto.forecasting.series import TimeSeries, as_series

FloatArray = npt.NDArray[np.float64]

HORIZON, TESTED, VALIDATED = 12, 0.2, 0.12
BEHIND_PART, BEHIND_RIVAL, AHEAD_SHARE = 1.005, 1.01, 2 / 3
COVERAGE = (0.77, 0.83)
LUCID_MAE, LUCID_R2, LUCID_AGE = 3.70, 0.14, 6
FIT_LOOPS, STEP_LOOPS = 600.0, 0.05
"""Calibration loops that a fit, and an update with a prediction, may take."""
NO_PART = ("stack of the parts", "mean of ARIMA, GRU, LightGBM")


@dataclass(frozen=True)
class SeriesCase:
    """A series, and where its test part begins."""

    name: str
    series: TimeSeries

    @property
    def test(self) -> int:
        return len(self.series) - round(TESTED * len(self.series))

    @property
    def validation(self) -> int:
        return self.test - round(VALIDATED * len(self.series))

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
        """h1 and h12; the mean absolute error where the seasonal naive has none."""
        y = self.series.values[: self.test]
        scale = float(np.abs(y[self.day :] - y[: -self.day]).mean() if self.day < len(y) else 0.0) or 1.0
        error = np.nanmean(np.abs(forecasts - self.truth), axis=0) / scale
        return float(error[0]), float(error.mean())


@dataclass(frozen=True)
class ForecastRun:
    """One seed on one case. scores: MASE (h1, h12) by method; coverage of 80 % intervals; calibration loops to fit, and
    of a step."""

    seed: int
    scores: dict[str, tuple[float, float]]
    coverage: float
    fit: float
    step: float


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    checks: list[Check] = []
    wins: list[bool] = []
    for case in real_series(options.only):
        _common.progress(f"{case.name}, other methods")
        rivals = other_methods(case, options)
        runs = []
        for seed in options.seeds:
            _common.progress(f"{case.name}, seed {seed}")
            runs.append(one_seed(case, rivals, seed))
        show(case, runs)
        checks += checks_of(case, runs, list(rivals), wins)
    if not options.only:
        checks += [check for seed in options.seeds for check in lucid(seed)]
    checks.append(Check("cells ahead of every other method", float(np.mean(wins)), "of cells", AHEAD_SHARE, True))
    _common.finish(checks, options.json)


def arguments() -> argparse.Namespace:
    parser = _common.parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--only", nargs="+", help="only series whose names contain one of these, and no comparison with Lucid"
    )
    parser.add_argument("--statsforecast", default=sys.executable, help="a Python that has statsforecast")
    return parser.parse_args()


def real_series(only: list[str] | None) -> list[SeriesCase]:
    """The six series of docs/forecasting.md, or those whose names contain one of `only`."""
    try:
        folder = _common.real("traces")
    except _common.NoDataError as lack:
        print(f"skipped: {lack}")
        sys.exit(0)
    venus, jobs = venus_counts(folder), pd.read_csv(folder / "philly.csv.gz", parse_dates=["timestamp"])
    jobs = jobs[jobs["timestamp"] >= "2017-10-03"]  # before this day the trace is all but empty, as its notes say
    cases = []
    for every in ("1h", "10min"):
        cases.append(SeriesCase(f"venus {every}", as_series(venus.resample(every).sum())))
        for name, mine in {"philly": jobs, "philly 11cb48": jobs[jobs["cluster"] == "11cb48"]}.items():
            arrivals = pd.Series(1.0, index=pd.DatetimeIndex(mine["timestamp"])).sort_index()
            cases.append(SeriesCase(f"{name} {every}", as_series(arrivals.resample(every).sum())))
    found = [case for case in cases if not only or any(part in case.name for part in only)]
    if not found:
        _common.refuse(f"--only: expected parts of {', '.join(case.name for case in cases)}")
    return found


def venus_counts(folder: Path) -> pd.Series[float]:
    """GPU jobs submitted to Helios' cluster Venus in each ten minutes."""
    table = pd.read_csv(folder / "helios_venus_counts.csv.gz", parse_dates=["time"]).set_index("time")
    return table["submit_gpu_job"].astype(float)


# Other methods ------------------------------------------------------------------------------------------------------


def other_methods(case: SeriesCase, options: argparse.Namespace) -> dict[str, FloatArray]:
    """[N, HORIZON] forecasts by method, of those that are installed."""
    found = {}
    if options.statsforecast == sys.executable and find_spec("statsforecast") is None:
        print("statsforecast is not installed: AutoARIMA, AutoETS and AutoTheta are left out")
    else:
        found |= automatic(case, options.statsforecast)
    if find_spec("lightgbm") is None:
        print("LightGBM is not installed: left out")
    else:
        found["LightGBM"] = boosted(case)
    return found


def automatic(case: SeriesCase, python: str) -> dict[str, FloatArray]:
    """Forecasts of statsforecast's automatic models, by another Python."""
    program = Path(__file__).with_name("_forecasting_rivals.py")
    with tempfile.TemporaryDirectory() as folder:
        source, destination = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(source, y=case.series.values, test=case.test, day=case.day, horizon=HORIZON)
        ended = subprocess.run([python, program, source, destination], capture_output=True, text=True, check=False)
        if ended.returncode:
            _common.refuse(f"{python} {program}: {ended.stderr.strip().splitlines()[-1]}")
        with np.load(destination) as answer:
            return dict(answer)


def boosted(case: SeriesCase) -> FloatArray:
    """LightGBM, absolute error, on log1p counts relative to a recent level: the features of our own linear member."""
    import lightgbm

    series, layout = case.series, layout_of(case.series, HORIZON)
    origins = np.arange(1, len(series))
    seen = describe(layout, series, origins, HORIZON)
    truth = np.log1p(targets(series.values, origins, HORIZON)) - seen.level[:, None]
    found = np.empty((len(case.origins), HORIZON))
    every = describe(layout, series, case.origins, HORIZON)
    rules = {"objective": "l1", "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 20, "seed": 0}
    rules |= {"verbosity": -1, "num_threads": 1, "deterministic": True}
    for h in range(HORIZON):
        columns = np.concatenate([seen.recent, seen.targets[:, h], seen.ahead[:, h]], axis=1)
        ends = origins + h
        parts = [
            lightgbm.Dataset(columns[chosen], truth[chosen, h])
            for chosen in ((ends < case.validation), (origins >= case.validation) & (ends < case.test))
        ]
        stopping = [lightgbm.early_stopping(30, verbose=False)]
        model = lightgbm.train(rules, parts[0], 400, valid_sets=[parts[1]], callbacks=stopping)
        asked = np.concatenate([every.recent, every.targets[:, h], every.ahead[:, h]], axis=1)
        found[:, h] = np.asarray(model.predict(asked)) + every.level
    return np.expm1(np.maximum(found, 0.0))


# The combination ----------------------------------------------------------------------------------------------------


def one_seed(case: SeriesCase, rivals: dict[str, FloatArray], seed: int) -> ForecastRun:
    series, model = case.series, HybridForecaster(seed=seed)
    fit = _common.timed(lambda: model.fit(series.head(case.test))).loops
    methods = model.parts(series, case.origins, HORIZON)
    made = model.batch_forecasts(series, case.origins, HORIZON, (0.1, 0.9))
    methods["combination"] = made.point
    compared = methods | rivals
    if rivals:
        compared |= mixed(case, model, rivals.get("LightGBM"), methods)
    bounds = made.quantiles
    known = ~np.isnan(case.truth)
    inside = (case.truth >= bounds[..., 0] - 1e-9) & (case.truth <= bounds[..., 1] + 1e-9)
    scores = {name: case.mase(forecasts) for name, forecasts in compared.items()}
    new = series.values[case.test : case.test + 100].tolist()
    updates = _common.timed(lambda: [(model.update(one), model.predict(HORIZON, (0.1, 0.5, 0.9))) for one in new])
    return ForecastRun(seed, scores, float(inside[known].mean()), fit, updates.loops / len(new))


def mixed(
    case: SeriesCase, model: HybridForecaster, trees: FloatArray | None, parts: dict[str, FloatArray]
) -> dict[str, FloatArray]:
    """Combinations that are fixed before the test: the mean of three, and weights fitted on the validation part."""
    before = model.parts(case.series.head(case.test), np.arange(case.validation, case.test), HORIZON)
    truth = np.log1p(targets(case.series.values[: case.test], np.arange(case.validation, case.test), HORIZON))
    stacked = np.empty((len(case.origins), HORIZON))
    for h in range(HORIZON):
        known = ~np.isnan(truth[:, h])
        columns = np.stack([np.log1p(part[known, h]) for part in before.values()], axis=1)
        weights, _ = nnls(columns, truth[known, h])
        stacked[:, h] = np.stack([np.log1p(part[:, h]) for part in parts.values()][: len(before)], axis=1) @ weights
    found = {NO_PART[0]: np.expm1(stacked)}
    if trees is not None:
        found[NO_PART[1]] = (parts["arima_fourier"] + parts["gru"] + trees) / 3
    return found


def show(case: SeriesCase, runs: list[ForecastRun]) -> None:
    print(f"\n{case.name}: {len(case.series):,} intervals of {case.series.step:g} s, {len(case.origins):,} tested")
    counts, times = np.unique(case.series.values[case.test :], return_counts=True)
    # Few counts that come again and again are what coverage cannot be fine-tuned on.
    print(f"  the most common count, {counts[times.argmax()]:g}, is {times.max() / times.sum():.3f} of those tested")
    print(f"  {'MASE h1 / h12':34}" + "".join(f"{f'seed {run.seed}':>18}" for run in runs))
    for name in sorted(runs[0].scores, key=lambda name: runs[0].scores[name][1]):
        print(f"  {name:34}" + "".join("{:>11.4f} /{:.4f}".format(*run.scores[name]) for run in runs))
    for run in runs:
        print(f"  seed {run.seed}: 80 % intervals cover {run.coverage:.3f}")
    sys.stdout.flush()


def checks_of(case: SeriesCase, runs: list[ForecastRun], rivals: list[str], wins: list[bool]) -> list[Check]:
    """What is wanted of a case. wins: takes, of each cell, whether the combination is ahead of all others."""
    checks = []
    others = {*rivals, *NO_PART}
    for run in runs:
        label = f"{case.name} seed {run.seed}"
        for at, horizon in enumerate(("h1", "h12")):
            own = run.scores["combination"][at]
            parts = [score[at] for name, score in run.scores.items() if name not in others | {"combination"}]
            rest = [score[at] for name, score in run.scores.items() if name in others]
            checks.append(Check(f"{label} {horizon}: of best part", ratio(own, min(parts)), "", BEHIND_PART, False))
            if rest:
                wins.append(own < min(rest + parts))
                checks.append(
                    Check(f"{label} {horizon}: of best other", ratio(own, min(rest)), "", BEHIND_RIVAL, False)
                )
        checks.append(Check(f"{label}: coverage", run.coverage, "", COVERAGE[0], True))
        checks.append(Check(f"{label}: coverage", run.coverage, "", COVERAGE[1], False))
        checks.append(Check(f"{label}: fit", run.fit, "calibration loops", FIT_LOOPS, False))
        checks.append(Check(f"{label}: update and predict", run.step, "calibration loops", STEP_LOOPS, False))
    return checks


def ratio(own: float, best: float) -> float:
    """How far behind the best; 1 where both are without error."""
    if best < 1e-12:
        return 1.0 if own < 1e-9 else math.inf
    return own / best


def lucid(seed: int) -> list[Check]:
    """September of Venus, fitted on April to August, from data at least an hour old, as Lucid's were published."""
    counts = venus_counts(_common.data_folder() / "traces")
    series = as_series(counts)
    first = int((counts.index < "2020-09-01").sum())
    model = HybridForecaster(seed=seed).fit(series.head(first))
    # The newest count known began an hour before the target does.
    origins = np.arange(first, len(series)) - LUCID_AGE + 1
    truth = series.values[first:]
    median = model.forecasts(series, origins, LUCID_AGE)[:, -1]
    mean = model.batch_forecasts(series, origins, LUCID_AGE).mean[:, -1]
    error = float(np.abs(truth - median).mean())
    explained = 1 - float(np.square(truth - mean).sum() / np.square(truth - truth.mean()).sum())
    return [
        Check(f"venus September seed {seed}: MAE", error, "jobs", LUCID_MAE, False),
        Check(f"venus September seed {seed}: R2 of the mean", explained, "", LUCID_R2, True),
    ]


if __name__ == "__main__":
    main()
