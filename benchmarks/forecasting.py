"""The combination of forecasters against its own parts and against other methods, on real or on given counts.

Split: the last 20 % are tested, the 12 % before select and stop; nothing is fitted again, every origin is scored. h1
is one step ahead, h12 the mean over 1 to 12. MASE: mean absolute error over that of the seasonal naive (24 h) on the
part before the test. With --series, the same table for any counts. Exit code 1 where something falls
short; with --series and --others, where the combination is more than .5 % behind its best part.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import _common
import numpy as np
import torch
from _forecasting_cases import HORIZON, FloatArray, SeriesCase, given, others, ratio, real, venus_counts
from scipy.optimize import nnls

from rlpto.forecasting.base import targets
from rlpto.forecasting.features import describe, layout_of
from rlpto.forecasting.hybrid import HybridForecaster
from rlpto.forecasting.series import ForecastError, as_series

BEHIND_PART, BEHIND_RIVAL, AHEAD_SHARE = 1.005, 1.01, 2 / 3
COVERAGE = (0.77, 0.83)
LUCID_MAE, LUCID_R2, LUCID_AGE = 3.70, 0.14, 6
STEP_LIMIT, FIT_LIMIT = 5.0, 60.0


@dataclass(frozen=True)
class ForecastRun:
    """One seed on one case. scores: MASE (h1, h12) by method; coverage of 80 % intervals; CPU-s to fit; ms a step."""

    seed: int
    scores: dict[str, tuple[float, float]]
    coverage: float
    fit: float
    step: float


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    try:
        cases = wanted(options)
    except ForecastError as error:
        _common.refuse(str(error))
    checks: list[_common.Check] = []
    wins: list[bool] = []
    own = bool(options.series or options.others)
    for case in cases:
        rivals = {} if options.others else other_methods(case, options)
        runs = [one_seed(case, rivals, seed) for seed in options.seeds]
        show(case, runs)
        found = checks_of(case, runs, list(rivals), wins)
        # Of any series, only that no part is far ahead can be promised; the rest is printed above.
        checks += [check for check in found if not own or check.name.endswith("of best part")]
    if options.lucid and not own:
        checks += [check for seed in options.seeds for check in lucid(seed)]
    if wins and not own:
        share = sum(wins) / len(wins)
        checks.append(_common.Check("cells ahead of every other method", share, "of cells", AHEAD_SHARE, True))
    _common.finish(checks, options.json)


def wanted(options: argparse.Namespace) -> list[SeriesCase]:
    if options.series:
        return [given(options.series, options.time, options.value, options.every)]
    return others(options.only) if options.others else real(options.only)


def arguments() -> argparse.Namespace:
    parser = _common.parser(__doc__.split("\n")[0])
    parser.add_argument("--series", type=Path, help="csv file with one row an interval or an arrival")
    parser.add_argument("--time", default="time", help="its column of timestamps")
    parser.add_argument("--value", help="its column of counts; without it every row counts as one")
    parser.add_argument("--every", default="1h", help="interval to count in")
    parser.add_argument("--others", action="store_true", help="series that constants were chosen on; our parts alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", help="only series whose names contain one of these")
    parser.add_argument("--statsforecast", default=sys.executable, help="a Python that has statsforecast")
    parser.add_argument("--keep", type=Path, help="folder to keep forecasts of the other methods in")
    parser.add_argument("--no-lucid", dest="lucid", action="store_false", help="leave out the comparison with Lucid")
    return parser.parse_args()


def other_methods(case: SeriesCase, options: argparse.Namespace) -> dict[str, FloatArray]:
    """[N, HORIZON] forecasts by method; taken from the folder of --keep if they were put there before."""
    kept = options.keep / f"{case.name.replace(' ', '-')}.npz" if options.keep else None
    if kept is not None and kept.exists():
        with np.load(kept) as archive:
            found = dict(archive)
        if any(forecasts.shape != case.truth.shape for forecasts in found.values()):
            _common.refuse(f"{kept}: forecasts of another series, expected {case.truth.shape} of each method")
        return found
    found = {}
    if options.statsforecast == sys.executable and find_spec("statsforecast") is None:
        print("statsforecast is not installed: AutoARIMA, AutoETS and AutoTheta are left out")
    else:
        found |= automatic(case, options.statsforecast)
    if find_spec("lightgbm") is None:
        print("LightGBM is not installed: left out")
    else:
        found["LightGBM"] = boosted(case)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **found)
    return found


def automatic(case: SeriesCase, python: str) -> dict[str, FloatArray]:
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
    validation = case.test - round(0.12 * len(series))
    found = np.empty((len(case.origins), HORIZON))
    every = describe(layout, series, case.origins, HORIZON)
    for h in range(HORIZON):
        columns = np.concatenate([seen.recent, seen.targets[:, h], seen.ahead[:, h]], axis=1)
        ends = origins + h
        parts = [
            lightgbm.Dataset(columns[chosen], truth[chosen, h])
            for chosen in ((ends < validation), (origins >= validation) & (ends < case.test))
        ]
        rules = {"objective": "l1", "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 20, "seed": 0}
        model = lightgbm.train(
            rules | {"verbosity": -1, "num_threads": 1, "deterministic": True},
            parts[0],
            400,
            valid_sets=[parts[1]],
            callbacks=[lightgbm.early_stopping(30, verbose=False)],
        )
        asked = np.concatenate([every.recent, every.targets[:, h], every.ahead[:, h]], axis=1)
        found[:, h] = np.asarray(model.predict(asked)) + every.level
    return np.expm1(np.maximum(found, 0.0))


def one_seed(case: SeriesCase, rivals: dict[str, FloatArray], seed: int) -> ForecastRun:
    series = case.series
    begin = time.process_time()
    model = HybridForecaster(seed=seed).fit(series.head(case.test))
    fit = time.process_time() - begin
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
    return ForecastRun(seed, scores, float(inside[known].mean()), fit, milliseconds(model, series.values[case.test :]))


def mixed(
    case: SeriesCase, model: HybridForecaster, trees: FloatArray | None, parts: dict[str, FloatArray]
) -> dict[str, FloatArray]:
    """Combinations that are fixed before the test: the mean of three, and weights fitted on the validation part."""
    validation = np.arange(case.test - round(0.12 * len(case.series)), case.test)
    before = model.parts(case.series.head(case.test), validation, HORIZON)
    truth = np.log1p(targets(case.series.values[: case.test], validation, HORIZON))
    stacked = np.empty((len(case.origins), HORIZON))
    for h in range(HORIZON):
        known = ~np.isnan(truth[:, h])
        columns = np.stack([np.log1p(part[known, h]) for part in before.values()], axis=1)
        weights, _ = nnls(columns, truth[known, h])
        stacked[:, h] = np.stack([np.log1p(part[:, h]) for part in parts.values()][: len(before)], axis=1) @ weights
    found = {"stack of the parts": np.expm1(stacked)}
    if trees is not None:
        found["mean of ARIMA, GRU, LightGBM"] = (parts["arima_fourier"] + parts["gru"] + trees) / 3
    return found


def milliseconds(model: HybridForecaster, new: FloatArray) -> float:
    """Median CPU time of an update and a prediction of 12 steps with three quantiles [ms]."""
    taken = []
    for value in new[:100]:
        begin = time.process_time()
        model.update(float(value))
        model.predict(HORIZON, (0.1, 0.5, 0.9))
        taken.append((time.process_time() - begin) * 1e3)
    return statistics.median(taken)


def show(case: SeriesCase, runs: list[ForecastRun]) -> None:
    print(f"\n{case.name}: {len(case.series):,} intervals of {case.series.step:g} s, {len(case.origins):,} tested")
    counts, times = np.unique(case.series.values[case.test :], return_counts=True)
    # Few counts that come again and again are what coverage cannot be fine-tuned on.
    print(f"  the most common count, {counts[times.argmax()]:g}, is {times.max() / times.sum():.3f} of those tested")
    print(f"  {'MASE h1 / h12':34}" + "".join(f"{f'seed {run.seed}':>18}" for run in runs))
    ranked = sorted(runs[0].scores, key=lambda name: runs[0].scores[name][1])
    for name in ranked:
        print(f"  {name:34}" + "".join("{:>11.4f} /{:.4f}".format(*run.scores[name]) for run in runs))
    for run in runs:
        print(f"  seed {run.seed}: 80 % intervals cover {run.coverage:.3f}, fit {run.fit:.1f} CPU-s, {run.step:.2f} ms")
    sys.stdout.flush()


def checks_of(case: SeriesCase, runs: list[ForecastRun], rivals: list[str], wins: list[bool]) -> list[_common.Check]:
    checks = []
    beside = {name for run in runs for name in run.scores if name in rivals or name.startswith(("stack", "mean of"))}
    for run in runs:
        for at, label in enumerate(("h1", "h12")):
            own = run.scores["combination"][at]
            parts = [score[at] for name, score in run.scores.items() if name not in beside | {"combination"}]
            rest = [run.scores[name][at] for name in beside]
            name = f"{case.name} {label} seed {run.seed}"
            checks.append(_common.Check(f"{name}: of best part", ratio(own, min(parts)), "", BEHIND_PART, False))
            if rest:
                wins.append(own < min(rest + parts))
                checks.append(_common.Check(f"{name}: of best other", ratio(own, min(rest)), "", BEHIND_RIVAL, False))
        label = f"{case.name} seed {run.seed}"
        checks.append(_common.Check(f"{label}: coverage", run.coverage, "", COVERAGE[0], True))
        checks.append(_common.Check(f"{label}: coverage", run.coverage, "", COVERAGE[1], False))
        checks.append(_common.Check(f"{label}: fit", run.fit, "CPU-s", FIT_LIMIT, False))
        checks.append(_common.Check(f"{label}: update and predict", run.step, "ms", STEP_LIMIT, False))
    return checks


def lucid(seed: int) -> list[_common.Check]:
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
        _common.Check(f"venus September seed {seed}: MAE", error, "jobs", LUCID_MAE, False),
        _common.Check(f"venus September seed {seed}: R2 of the mean", explained, "", LUCID_R2, True),
    ]


if __name__ == "__main__":
    main()
