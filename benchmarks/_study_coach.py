"""Coach against its acceptance behaviours C1 to C6; about one CPU-minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from _coach_runs import EPOCHS, trained
from _common import Check
from _loss_fit import LossCurve, fit_loss

from rlpto.io.arrays import FloatArray
from rlpto.performance.parameter_server import (
    Form,
    Probes,
    SpeedSurface,
    corner_probes,
    fit_speed,
    observed,
    speed_grid,
    spread_probes,
)
from rlpto.policies.marginal_utility import Limits, allocate

Row = dict[str, object]

MOST = 10
"""Workers, and servers, that a job on a generated surface may have."""
NOISE = 0.1
"""Standard deviation of the logarithm of a measured speed."""
DRAWS = 20
"""Draws of noise, and of random probes, a surface."""
SMALL = 3
"""Workers and servers together in the original's cluster of three nodes."""

MEASURED = {
    "LeNet x1": (0.0402, 0.0319, 0.0225, 0.0312),
    "LeNet x2": (0.0338, 0.0360, 0.0239, 0.0181),
    "LeNet x3": (0.0367, 0.0366, 0.0161, 0.0261),
    "ResNet18 x1": (0.0308, 0.0319, 0.0191, 0.0186),
    "ResNet18 x2": (0.0269, 0.0442, 0.0280, 0.0293),
    "ResNet18 x3": (0.0332, 0.0399, 0.0267, 0.0292),
}
"""Mean epochs per second of the original's static runs with 1w1s, 1w2s, 2w1s, 2w2s (reference, section 4.4)."""
FOUR = ((1, 1), (1, 2), (2, 1), (2, 2))
ACCEPTED = {"LeNet x1": (1, 1), "ResNet18 x1": (1, 2)}
"""What the original's fits to its recorded mini-epochs chose, and what was measured to be best."""


def measure(data: Path | None) -> tuple[list[Check], dict[str, list[Row]]]:  # noqa: ARG001
    """Checks and tables; `data` is not needed."""
    checks: list[Check] = []
    tables: dict[str, list[Row]] = {}
    for part in (replayed, chosen, limited, ends, concurrent, tuned, simulated):
        found, name, rows = part()
        checks += found
        tables[name] = rows
    return checks, tables


def replayed() -> tuple[list[Check], str, list[Row]]:
    """C1: the choice from the four measured configurations."""
    rows: list[Row] = []
    reached = 0
    for case, speeds in MEASURED.items():
        probes = _probes(FOUR, np.array(speeds))
        grid = np.zeros((3, 3))
        row: Row = {"runs": case, "measured best": _name(best_configuration(observed(grid, probes)))}
        for form in ("sync", "async", "parabola"):
            fitted = speed_grid(fit_speed(form, probes), 2, 2)
            known = observed(fitted, probes)
            choice, blind = _greedy(known), _greedy(fitted)
            row[f"{form}"] = _name(choice)
            row[f"{form}, fit alone"] = _name(blind)
            if form == "sync" and case in ACCEPTED:
                reached += choice == ACCEPTED[case]
        rows.append(row)
    check = Check("C1 single jobs for which the measured best is chosen, of 2", reached, "jobs", 2, True)
    return [check], "C1: choice from four measured configurations", rows


def chosen() -> tuple[list[Check], str, list[Row]]:
    """C2: speed of the chosen configuration on eight surfaces, relative to the best."""
    rows: list[Row] = []
    checks = []
    plans: dict[str, Callable[[np.random.Generator], list[tuple[int, int]]]] = {
        "4 corners (original)": lambda _: corner_probes(MOST, MOST),
        "8 random": lambda rng: _random_probes(rng, 8),
        "12 random": lambda rng: _random_probes(rng, 12),
        "8 spread (ours)": lambda _: spread_probes(8, MOST, MOST),
    }
    for plan, draw in plans.items():
        for label in ("own Optimus form", "other Optimus form", "parabola"):
            ratio = np.zeros((len(SURFACES), DRAWS))
            for i, (own, surface) in enumerate(SURFACES):
                form = _form(label, own)
                grid = speed_grid(surface, MOST, MOST)
                for k, rng in enumerate(_draws(i)):
                    probes = _noisy(surface, draw(rng), rng)
                    fitted = speed_grid(fit_speed(form, probes), MOST, MOST)
                    ratio[i, k] = grid[best_configuration(observed(fitted, probes))] / grid.max()
            means = ratio.mean(axis=1)
            rows.append(
                {
                    "probes": plan,
                    "form": label,
                    "mean": _round(means.mean()),
                    "worst surface": _round(means.min()),
                    "worst draw": _round(ratio.min()),
                }
            )
            if label == "own Optimus form" and plan.startswith("8"):
                checks.append(Check(f"C2 {plan} probes: chosen / best, worst surface", means.min(), "", 0.80, True))
                checks.append(Check(f"C2 {plan} probes: chosen / best, mean", means.mean(), "", 0.87, True))
    return checks, "C2: speed of the chosen configuration / best", rows


def limited() -> tuple[list[Check], str, list[Row]]:
    """C3: three nodes, one process each: total time with four mini-epochs, relative to the best static choice."""
    rows: list[Row] = []
    worst, largest = 0.0, 0
    cases: dict[str, FloatArray] = {
        name: observed(np.zeros((3, 3)), _probes(FOUR, np.array(speeds))) for name, speeds in MEASURED.items()
    }
    cases |= {f"generated {i + 1}": speed_grid(surface, 2, 2) for i, (_, surface) in enumerate(SURFACES)}
    for i, (name, grid) in enumerate(cases.items()):
        epochs = 19  # that the original's single jobs took
        within = [at for at in FOUR if sum(at) <= SMALL]
        ratios = []
        for rng in _draws(i):
            speeds = np.array([grid[at] for at in within])
            probes = _probes(within, speeds * np.exp(NOISE * rng.standard_normal(len(within))))
            known = observed(speed_grid(fit_speed("sync", probes), 2, 2), probes)
            choice = best_configuration(known, SMALL)
            total = float(np.sum(1 / speeds)) + (epochs - len(within)) / grid[choice]
            ratios.append(total / (epochs / speeds.max()))
            largest = max(largest, sum(choice))
        rows.append({"speeds": name, "mean time / best static": _round(np.mean(ratios)), "worst": _round(max(ratios))})
        worst = max(worst, float(np.mean(ratios)))
    checks = [
        Check("C3 workers and servers together, at most", largest, "", SMALL, False),
        Check("C3 mean time / best static, worst case", worst, "", 1.10, False),
    ]
    return checks, "C3: three nodes, 19 epochs, probes included", rows


def ends() -> tuple[list[Check], str, list[Row]]:
    """C4: the end epoch predicted half-way, and whether the prediction is trusted."""
    rows: list[Row] = []
    checks = []
    for noise in (0.0, 0.002, 0.005, 0.01, 0.02):
        for kind, curves in LOSSES.items():
            near, trusted, both = [], [], []
            for i, (curve, epochs) in enumerate(curves):
                for rng in _draws(i):
                    losses = curve(np.arange(1.0, epochs + 1))
                    target = float(losses[-1])
                    fall = float(losses[0] - target)
                    fit = fit_loss((losses + noise * fall * rng.standard_normal(epochs))[: epochs // 2])
                    close = abs(fit.curve.end_epoch(target) / epochs - 1) <= 0.2
                    near.append(close)
                    trusted.append(fit.reliable)
                    both.append(close and fit.reliable)
            rows.append(
                {
                    "curve": kind,
                    "noise / fall": noise,
                    "end within 20 %": _round(np.mean(near)),
                    "trusted": _round(np.mean(trusted)),
                    "of the trusted within 20 %": _round(sum(both) / sum(trusted)) if any(trusted) else "-",
                }
            )
            if noise in (0.0, 0.002):
                if kind == HYPERBOLA:
                    name = f"C4 noise {noise:g}: ends of 1/k curves within 20 %"
                    checks.append(Check(name, float(np.mean(near)), "of runs", 0.95, True))
                else:
                    name = f"C4 noise {noise:g}: slow tails called unreliable"
                    checks.append(Check(name, 1 - float(np.mean(trusted)), "of runs", 0.90, True))
    return checks, "C4: end epoch predicted half-way", rows


def concurrent() -> tuple[list[Check], str, list[Row]]:
    """C5: one to three jobs on eight GPUs and eight CPU slots, relative to the best configuration for all alike."""
    rows: list[Row] = []
    over, worst = 0, np.inf
    gpus = slots = 8
    for count in (1, 2, 3):
        ratios: list[float] = []
        blind: list[float] = []
        for first in range(len(SURFACES)):
            jobs = [SURFACES[(first + step) % len(SURFACES)] for step in range(count)]
            grids = np.stack([speed_grid(surface, MOST, MOST) for _, surface in jobs])
            alike = grids.sum(axis=0)[: gpus // count + 1, : slots // count + 1].max()
            for rng in _draws(first):
                fitted, known = [], []
                for form, surface in jobs:
                    probes = _noisy(surface, spread_probes(8, gpus, slots), rng)
                    fitted.append(speed_grid(fit_speed(form, probes), MOST, MOST))
                    known.append(observed(fitted[-1], probes))
                for found, believed in ((ratios, known), (blind, fitted)):
                    workers, servers = allocate(np.stack(believed), _limits(count, MOST), gpus, slots)
                    over = max(over, int(workers.sum()) - gpus, int(servers.sum()) - slots)
                    found.append(float(grids[np.arange(count), workers, servers].sum()) / alike)
        rows.append(
            {
                "jobs": count,
                "mean speed / best static": _round(np.mean(ratios)),
                "worst draw": _round(min(ratios)),
                "mean, fit alone": _round(np.mean(blind)),
                "worst draw, fit alone": _round(min(blind)),
            }
        )
        worst = min(worst, float(np.mean(ratios)))
    checks = [
        Check("C5 GPUs or CPU slots given beyond those there are", over, "", 0, False),
        Check("C5 sum of epochs per second / best static, mean, worst number of jobs", worst, "", 0.95, True),
    ]
    return checks, "C5: concurrent jobs, sum of epochs per second", rows


def tuned() -> tuple[list[Check], str, list[Row]]:
    """C6: predicted speed of the chosen configuration with and without the run that looked for a portion of data."""
    errors: dict[str, FloatArray] = {}
    for label, marked in (("left out (ours)", True), ("fitted as an epoch (original)", False)):
        errors[label] = np.zeros((len(SURFACES), DRAWS))
        for i, (form, surface) in enumerate(SURFACES):
            for k, rng in enumerate(_draws(i)):
                probes = _noisy(surface, spread_probes(8, MOST, MOST), rng)
                # The tuning run is too short an epoch on 1w1s, by the factor that it then asks for.
                apparent = float(surface.speed(1, 1)) * rng.uniform(1.5, 4.0)
                tuning = np.zeros(len(probes) + 1, dtype=bool)
                tuning[-1] = marked
                probes = Probes(
                    np.append(probes.workers, 1),
                    np.append(probes.servers, 1),
                    np.append(probes.speed, apparent),
                    tuning,
                )
                fitted = speed_grid(fit_speed(form, probes), MOST, MOST)
                at = best_configuration(fitted)
                errors[label][i, k] = abs(fitted[at] / float(surface.speed(*at)) - 1)
    rows: list[Row] = [
        {"tuning run": label, "mean error": _round(found.mean()), "worst surface": _round(found.mean(axis=1).max()),
         "worst draw": _round(found.max())}
        for label, found in errors.items()
    ]  # fmt: skip
    worst = float(errors["left out (ours)"].mean(axis=1).max())
    check = Check("C6 error of the predicted speed, mean, worst surface", worst, "", 0.20, False)
    return [check], "C6: error of the predicted speed of the chosen configuration", rows


def simulated() -> tuple[list[Check], str, list[Row]]:
    """The policy in the simulator on the synchronous surfaces, probes and restarts included."""
    rows = trained([surface for _, surface in SURFACES if surface.form == "sync"])
    longest = [float(str(row["coach"])) for row in rows if row["epochs"] == max(EPOCHS)]
    check = Check(
        "policy: mean JCT / best static choice, long jobs, worst number of jobs", max(longest), "", 1.10, False
    )
    return [check], "The policy in the simulator: mean JCT / best static choice", rows


def _surfaces() -> list[tuple[Form, SpeedSurface]]:
    """Four asynchronous and four synchronous surfaces in epochs per second; ranges are those of the page."""
    rng = np.random.default_rng(17)
    found: list[tuple[Form, SpeedSurface]] = []
    for _ in range(4):
        a = rng.uniform(10, 40)
        found.append(("async", SpeedSurface("async", (a, *(a * rng.uniform((0.2, 0.01, 0.01), (1.5, 0.1, 0.2)))))))
    for _ in range(4):
        a = rng.uniform(40, 120)
        low, high = (0.02, 0.02, 0.005, 0.005), (0.3, 0.3, 0.05, 0.05)
        found.append(("sync", SpeedSurface("sync", (a, *(a * rng.uniform(low, high))))))
    return found


def _loss_curves() -> dict[str, list[tuple[Callable[[FloatArray], FloatArray], int]]]:
    """Loss curves and the epochs until their targets; ranges are those of the page."""
    rng = np.random.default_rng(18)
    right: list[tuple[Callable[[FloatArray], FloatArray], int]] = []
    slow: list[tuple[Callable[[FloatArray], FloatArray], int]] = []
    for _ in range(8):
        epochs = int(rng.integers(18, 41))
        right.append((LossCurve(rng.uniform(0.1, 0.5), rng.uniform(0.3, 0.6), rng.uniform(0.0, 0.3)), epochs))
        slow.append((_slow_tail(rng.uniform(1.0, 2.0), rng.uniform(0.1, 0.2), epochs), epochs))
    return {HYPERBOLA: right, "fast fall, slow tail (LeNet)": slow}


def _slow_tail(time: float, tail: float, epochs: int) -> Callable[[FloatArray], FloatArray]:
    """A loss that falls exponentially in so many epochs, and then by `tail` in a straight line."""
    return lambda k: 0.8 + 1.5 * np.exp(-k / time) + tail * (1 - k / epochs)


def best_configuration(grid: FloatArray, most: int | None = None) -> tuple[int, int]:
    """(workers, servers) with the highest speed of a grid, at least one of each; ties: fewest in all, then workers.

    most: limit of workers plus servers; None: the size of the grid. Raises ValueError if (1, 1) exceeds the limit.
    """
    workers, servers = np.meshgrid(*(np.arange(size) for size in grid.shape), indexing="ij")
    possible = (workers > 0) & (servers > 0) & (workers + servers <= (np.inf if most is None else most))
    if not possible.any():
        raise ValueError(f"no worker and server within {most} together on a grid of shape {grid.shape}")
    w, p, speed = workers[possible], servers[possible], grid[possible]
    first = np.lexsort((-w, w + p, -speed))[0]
    return int(w[first]), int(p[first])


def _greedy(grid: FloatArray) -> tuple[int, int]:
    """What the greedy allocation gives one job with room for all."""
    most = len(grid) - 1
    workers, servers = allocate(grid[None], _limits(1, most), most, most)
    return int(workers[0]), int(servers[0])


def _limits(count: int, most: int) -> Limits:
    one, all_of_them = np.ones(count, dtype=np.int64), np.full(count, most)
    return Limits(one, all_of_them, one, all_of_them)


def _probes(at: list[tuple[int, int]] | tuple[tuple[int, int], ...], speed: FloatArray) -> Probes:
    workers, servers = np.array(at).T
    return Probes(workers, servers, speed)


def _noisy(surface: SpeedSurface, at: list[tuple[int, int]], rng: np.random.Generator) -> Probes:
    workers, servers = np.array(at).T
    return Probes(workers, servers, surface.speed(workers, servers) * np.exp(NOISE * rng.standard_normal(len(at))))


def _random_probes(rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """Different configurations, all alike likely."""
    chosen = rng.choice(MOST * MOST, count, replace=False)
    return [(int(k) // MOST + 1, int(k) % MOST + 1) for k in chosen]


def _draws(case: int) -> Iterator[np.random.Generator]:
    return (np.random.default_rng((case, draw)) for draw in range(DRAWS))


def _form(label: str, own: Form) -> Form:
    if label == "parabola":
        return "parabola"
    other: Form = "async" if own == "sync" else "sync"
    return own if label == "own Optimus form" else other


def _name(configuration: tuple[int, int]) -> str:
    return f"{configuration[0]}w{configuration[1]}s"


def _round(value: float | np.floating) -> float:
    return round(float(value), 3)


HYPERBOLA = "1/(a k + b) + c"
SURFACES = _surfaces()
LOSSES = _loss_curves()
