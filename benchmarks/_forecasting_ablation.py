"""What each part of the combination is worth: the tables' cells forecast again without it.

The forecasts of all members are computed once for each series and seed; only what combines them is run again, so a
variant costs seconds. A row says by how much the worst cell and the geometric mean of the cells change. Reads the
inside of `HybridForecaster`, which nothing but a measurement should.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from _forecasting_cases import HORIZON, Case, FloatArray

from rlpto.forecasting import hybrid
from rlpto.forecasting.decision import SHIFTS, THRESHOLDS, Criteria, decide, new_decision
from rlpto.forecasting.features import VALIDATION
from rlpto.forecasting.intervals import at_levels, mean_of, spread_of, with_median
from rlpto.forecasting.network import QUANTILES
from rlpto.forecasting.pool import FEATURES, advance, new_state

KEPT = ("arima_fourier", "gru")
"""Members that stay whatever is measured: an ARIMA and a GRU."""

OPTIONAL = ("without parts corrected", "without a regression", "without the decision", "experts: losses", "decision: ")
"""What else is left out once all members are needed; names of variants begin so."""

MASE, RMSE = "MASE of points", "RMSE of means"
LEVELS = np.array([0.1, 0.9])
WORSE = 1.005
"""A part without which no cell becomes worse by more than this factor is not needed."""


@dataclass(frozen=True)
class Variant:
    """What is left out. parts: names of members. corrected: whether strong parts stand in the pool corrected, too.

    mixed: whether the regression on all parts does. decided: whether candidates are told apart by their errors in
    counts; else the point is the pool's mix, rounded where counts are whole. shifts, thresholds: candidates made of a
    mix, as places in SHIFTS and THRESHOLDS; None: all. conformal: whether the intervals are calibrated.
    """

    parts: tuple[str, ...] = ()
    corrected: bool = True
    mixed: bool = True
    decided: bool = True
    shifts: tuple[int, ...] | None = None
    thresholds: tuple[int, ...] | None = None
    rules: Mapping[str, float] = field(default_factory=dict)
    criteria: Mapping[str, float] = field(default_factory=dict)
    weight: float = hybrid.SIMPLE_WEIGHT
    conformal: bool = True
    plain_mean: bool = False


class Figures(NamedTuple):
    """MASE of the points and RMSE of the means, one step ahead and over all; share within the 80 % interval."""

    mase: tuple[float, float]
    rmse: tuple[float, float]
    coverage: float


def members_of(case: Case, seed: int, kept: Path | None) -> hybrid.Members:
    """All members' forecasts of a series, from a file if there is one."""
    path = None if kept is None else kept / f"{case.name.replace(' ', '-')}-{seed}.npz"
    if path is not None and path.exists():
        with np.load(path) as archive:
            return hybrid.Members(archive["points"], archive["quantiles"])
    model = hybrid.HybridForecaster(seed=seed).fit(case.series.head(case.test))
    found = model._members_on(case.series, HORIZON)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **found._asdict())
    return found


def figures(case: Case, members: hybrid.Members, variant: Variant) -> Figures:
    """The combination of a variant, learning from the validation part on, scored on the test part."""
    names = [name for name in hybrid.NAMES if name not in variant.parts]
    kept = [hybrid.NAMES.index(name) for name in names]
    before = case.series.values[: case.test]
    warm = max(1, case.test - round(VALIDATION * case.test)) - 1
    values = case.series.values[warm:]
    log_parts = np.ascontiguousarray(members.points[warm:, kept])
    quantiles = members.quantiles[warm:]
    strong = [place for place, name in enumerate(names) if hybrid.NAMES.index(name) in hybrid.STRONG]
    simple = [variant.weight if place not in strong else 1.0 for place in range(len(names))]
    corrected = strong if variant.corrected else []
    prior = np.array(simple + [hybrid.CORRECTED_WEIGHT] * len(corrected) + [float(variant.mixed)])
    rules = hybrid.RULES._replace(**variant.rules)
    pool = new_state(HORIZON, prior, len(names), corrected, np.array(QUANTILES), float(before.var()), rules)
    pool.top[0] = np.log1p(before[: max(warm, 1)].max())
    features = mean_features(names, log_parts, quantiles, float(before.mean()))
    whole = bool((before == np.floor(before)).all())
    found = advance(pool, rules, np.log1p(values), log_parts, spread_of(quantiles), features, True)
    if variant.decided:
        own = Criteria(**(hybrid.CRITERIA._asdict() | dict(variant.criteria)))
        decision = new_decision(HORIZON, len(names), whole, own)
        decision = decision._replace(prior=masked(decision.prior, variant, len(names), whole))
        decision.weights[:] = decision.prior
        point = decide(decision, own, values, found.point, found.mixes, log_parts, True)
    else:
        point = np.expm1(found.point)
        point = np.floor(point + THRESHOLDS[1]) if whole else point
    tested = slice(case.test - warm - 1, -1)
    bounds = at_levels(with_median(found.bounds, np.log1p(point)), LEVELS)[tested]
    if not variant.conformal:
        middle = np.log1p(point)[..., None] + np.sign(np.array(QUANTILES) - 0.5) * spread_of(quantiles)
        bounds = at_levels(np.maximum(middle, 0.0), LEVELS)[tested]
    mean = mean_of(quantiles) if variant.plain_mean else found.mean
    known = ~np.isnan(case.truth)
    inside = (case.truth >= bounds[..., 0] - 1e-9) & (case.truth <= bounds[..., 1] + 1e-9)
    squared = np.nanmean(np.square(mean[tested] - case.truth), axis=0) ** 0.5
    return Figures(case.mase(point[tested]), (float(squared[0]), float(squared.mean())), float(inside[known].mean()))


def mean_features(names: Sequence[str], log_parts: FloatArray, quantiles: FloatArray, mean: float) -> FloatArray:
    features = np.zeros((log_parts.shape[0], HORIZON, FEATURES))
    features[..., 1] = mean_of(quantiles)
    for column, name in ((2, "arima_raw"), (3, "mean_24h")):
        if name in names:
            features[..., column] = np.expm1(log_parts[:, names.index(name)])
        else:
            features[..., column] = features[..., 1]
    features[..., 4] = mean
    return features


def masked(prior: FloatArray, variant: Variant, parts: int, whole: bool) -> FloatArray:
    """The decision's prior without the candidates that a variant leaves out."""
    rounded = len(THRESHOLDS) if whole else 1
    shifts = np.isin(np.arange(len(SHIFTS)), range(len(SHIFTS)) if variant.shifts is None else variant.shifts)
    taken = np.isin(
        np.arange(rounded), range(rounded) if variant.thresholds is None or not whole else variant.thresholds
    )
    one: npt.NDArray[np.bool_] = (shifts[:, None] & taken[None, :]).ravel()
    left = prior * np.concatenate([np.tile(one, 3), np.ones(parts, dtype=bool)])
    return np.asarray(left / left.sum())


Cells = dict[str, float]


def cells(
    cases: Iterable[Case], seeds: Sequence[int], kept: Path | None, variants: Mapping[str, Variant]
) -> dict[str, Cells]:
    """By variant, every cell's MASE, RMSE and coverage, means over the seeds."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in variants}
    for case in cases:
        for seed in seeds:
            members = members_of(case, seed, kept)
            for name, variant in variants.items():
                own = figures(case, members, variant)
                for at, label in enumerate(("h1", "h12")):
                    found[name].setdefault(f"{case.name} {label} {MASE}", []).append(own.mase[at])
                    found[name].setdefault(f"{case.name} {label} {RMSE}", []).append(own.rmse[at])
                found[name].setdefault(f"{case.name} coverage", []).append(own.coverage)
    return {name: {cell: float(np.mean(each)) for cell, each in own.items()} for name, own in found.items()}


def variants() -> dict[str, Variant]:
    """Everything that can be left out by itself, by the name it gets in the table."""
    every = tuple(range(len(SHIFTS)))
    found = {"all": Variant()}
    found |= {f"without {name}": Variant(parts=(name,)) for name in hybrid.NAMES}
    found |= {
        "without parts corrected by their recent errors": Variant(corrected=False),
        "without a regression among the experts": Variant(mixed=False),
        "experts: losses of each step ahead alone": Variant(rules={"pooled": 0.0}),
        "experts: no share for the prior": Variant(rules={"floor": 0.0}),
        "experts: weights that learn nothing": Variant(rules={"rate": 0.0}),
        "experts: all parts start alike": Variant(weight=1.0),
        "without the decision (the pool's mix, rounded)": Variant(decided=False),
        "decision: no parts": Variant(criteria={"parts": 0.0}),
        "decision: no regression": Variant(criteria={"regression": 0.0}),
        "decision: no middle of pool and regressions": Variant(criteria={"middle": 0.0}),
        "decision: neither of the two": Variant(criteria={"regression": 0.0, "middle": 0.0}),
        "decision: mixes not moved": Variant(shifts=tuple(at for at in every if SHIFTS[at] == 0)),
        "decision: one way to round": Variant(thresholds=(1,)),
        "decision: losses of each step ahead alone": Variant(criteria={"pooled": 0.0}),
        "decision: no share for the prior": Variant(criteria={"floor": 0.0}),
        "intervals: not calibrated": Variant(conformal=False),
        "mean: of the GRU's quantiles": Variant(plain_mean=True),
    }
    return found


def change(own: Cells, full: Cells, what: tuple[str, ...] = (MASE, RMSE)) -> tuple[str, float, float]:
    """The worst cell, its ratio to the full combination's, and the geometric mean of the ratios."""
    names = [name for name in full if name.endswith(what)]
    ratios = np.array([own[name] / full[name] for name in names])
    return names[int(ratios.argmax())], float(ratios.max()), float(np.exp(np.log(ratios).mean()))


def ablate(cases: Sequence[Case], seeds: Sequence[int], kept: Path | None) -> None:
    """Print what each variant costs; then leave out member after member, the least missed first, while none is."""
    found = cells(cases, seeds, kept, variants())
    full = found["all"]
    print("| | worst cell | there | mean of cells | RMSE, worst | RMSE, mean | 80 % interval covers |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, own in found.items():
        cell, worst, mean = change(own, full, (MASE,))
        _, rmse, rmses = change(own, full, (RMSE,))
        shares = [share for label, share in own.items() if label.endswith("coverage")]
        print(
            f"| {name} | {worst - 1:+.2%} | {cell} | {mean - 1:+.2%} | {rmse - 1:+.2%} | {rmses - 1:+.2%} "
            f"| {min(shares):.2f} to {max(shares):.2f} |"
        )
    parts = {name: Variant(parts=(name,)) for name in hybrid.NAMES if name not in KEPT}
    steps = {name: variant for name, variant in variants().items() if name.startswith(OPTIONAL)}
    base = Variant()
    for left in (parts, steps):
        base = leave_out(cases, seeds, kept, full, base, dict(left))


def leave_out(
    cases: Sequence[Case], seeds: Sequence[int], kept: Path | None, full: Cells, base: Variant, left: dict[str, Variant]
) -> Variant:
    """Leave out one thing after the other, the least missed first, until each of those left would be missed."""
    while left:
        tried = {name: both(base, variant) for name, variant in left.items()}
        found = cells(cases, seeds, kept, tried)
        name = min(left, key=lambda name: change(found[name], full)[1:])
        cell, worst, mean = change(found[name], full)
        if worst > WORSE:
            print(f"next would be {name}: {worst - 1:+.2%} in {cell}, {mean - 1:+.2%} in the mean of the cells")
            break
        print(f"also gone: {name}: {worst - 1:+.2%} in {cell}, {mean - 1:+.2%} in the mean of the cells", flush=True)
        base = tried[name]
        del left[name]
    return base


def both(one: Variant, other: Variant) -> Variant:
    """Without what either leaves out."""
    blank = Variant()
    changed = {name: value for name, value in vars(other).items() if value != getattr(blank, name)}
    joined = {name: {**getattr(one, name), **value} for name, value in changed.items() if isinstance(value, dict)}
    return replace(one, **changed | joined | {"parts": (*one.parts, *other.parts)})
