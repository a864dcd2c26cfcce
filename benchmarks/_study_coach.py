"""Coach against its acceptance behaviours but C4 (docs/notes/removed.md); about one CPU-minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from _plan import Measured, Plan, Study
from _systems import Row, play

from rlpto.core.cluster import Allocation, ClusterState, Node
from rlpto.core.jobs import Job
from rlpto.core.policy import Policy
from rlpto.io.arrays import FloatArray
from rlpto.performance.compile import compile_tables
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.parameter_server import (
    Form,
    Probes,
    ServerParams,
    SpeedSurface,
    corner_probes,
    fit_speed,
    observed,
    speed_grid,
    spread_probes,
)
from rlpto.performance.profiles import builtin_profiles
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.policies.coach import Limits, allocate
from rlpto.policies.registry import make_policy
from rlpto.simulator.settings import SimulatorSettings

Configurations = Sequence[tuple[int, int]]
"""Workers and servers of each."""

MOST = 10
"""Workers, and servers, that a job on a generated surface may have."""
NOISE = 0.1
"""Standard deviation of the logarithm of a measured speed."""
DRAWS = 20
"""Draws of noise, and of random probes, a surface."""
SMALL = 3
"""Workers and servers together in the original's cluster of three nodes."""
SINGLE_EPOCHS = 19
"""That the original's single jobs took."""

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


def measure(_plan: Plan, _: Study) -> Measured:
    """Claims and tables of all behaviours."""
    found = Measured()
    for title, part in (
        ("C1: choice from four measured configurations", replayed),
        ("C2: speed of the chosen configuration / best", chosen),
        ("C3: three nodes, 19 epochs, probes included", limited),
        ("C5: concurrent jobs, sum of epochs per second", concurrent),
        ("C6: error of the predicted speed of the chosen configuration", tuned),
        ("The policy in the simulator: mean JCT / best static choice", simulated),
    ):
        found.tables[title] = part(found.figures)
    return found


def replayed(figures: dict[str, float]) -> list[Row]:
    """C1: the choice from the four measured configurations."""
    rows: list[Row] = []
    reached = 0
    for case, speeds in MEASURED.items():
        probes = _probes(FOUR, np.array(speeds))
        row: Row = {"runs": case, "measured best": _name(best_configuration(observed(np.zeros((3, 3)), probes)))}
        for form in ("sync", "async", "parabola"):
            fitted = _fitted(form, probes, 2)
            choice = _greedy(observed(fitted, probes))
            row |= {form: _name(choice), f"{form}, fit alone": _name(_greedy(fitted))}
            reached += form == "sync" and choice == ACCEPTED.get(case)
        rows.append(row)
    figures["C1 single jobs for which the measured best is chosen, of 2"] = reached
    return rows


def chosen(figures: dict[str, float]) -> list[Row]:
    """C2: speed of the chosen configuration on eight surfaces, relative to the best."""
    rows: list[Row] = []
    plans: dict[str, Callable[[np.random.Generator], Configurations]] = {
        "4 corners (original)": lambda _: corner_probes(MOST, MOST),
        "8 random": partial(_random_probes, count=8),
        "12 random": partial(_random_probes, count=12),
        "8 spread (ours)": lambda _: spread_probes(8, MOST, MOST),
    }

    def share(draw: Callable[[np.random.Generator], Configurations], label: str, i: int, k: int) -> float:
        (own, surface), rng = SURFACES[i], _rng(i, k)
        grid, probes = speed_grid(surface, MOST, MOST), _noisy(surface, draw(rng), rng)
        return float(grid[best_configuration(observed(_fitted(_form(label, own), probes), probes))] / grid.max())

    for plan, draw in plans.items():
        for label in ("own Optimus form", "other Optimus form", "parabola"):
            ratio = _over_surfaces(partial(share, draw, label))
            means = ratio.mean(axis=1)
            row: Row = {"probes": plan, "form": label, "mean": _round(means.mean())}
            rows.append(row | {"worst surface": _round(means.min()), "worst draw": _round(ratio.min())})
            if label == "own Optimus form" and plan.startswith("8"):
                figures[f"C2 {plan} probes: chosen / best, worst surface"] = float(means.min())
                figures[f"C2 {plan} probes: chosen / best, mean"] = float(means.mean())
    return rows


def limited(figures: dict[str, float]) -> list[Row]:
    """C3: three nodes, one process each: total time with four mini-epochs, relative to the best static choice."""
    rows: list[Row] = []
    worst, largest = 0.0, 0
    cases: dict[str, FloatArray] = {
        name: observed(np.zeros((3, 3)), _probes(FOUR, np.array(speeds))) for name, speeds in MEASURED.items()
    }
    cases |= {f"generated {i + 1}": speed_grid(surface, 2, 2) for i, (_, surface) in enumerate(SURFACES)}
    within = [at for at in FOUR if sum(at) <= SMALL]
    for i, (name, grid) in enumerate(cases.items()):
        ratios = []
        speeds = np.array([grid[at] for at in within])
        for rng in _draws(i):
            probes = _probes(within, speeds * np.exp(NOISE * rng.standard_normal(len(within))))
            choice = best_configuration(observed(_fitted("sync", probes, 2), probes), SMALL)
            total = float(np.sum(1 / speeds)) + (SINGLE_EPOCHS - len(within)) / grid[choice]
            ratios.append(total / (SINGLE_EPOCHS / speeds.max()))
            largest = max(largest, sum(choice))
        rows.append({"speeds": name, "mean time / best static": _round(np.mean(ratios)), "worst": _round(max(ratios))})
        worst = max(worst, float(np.mean(ratios)))
    figures["C3 workers and servers together, at most"] = largest
    figures["C3 mean time / best static, worst case"] = worst
    return rows


def concurrent(figures: dict[str, float]) -> list[Row]:
    """C5: one to three jobs on eight GPUs and eight CPU slots, relative to the best configuration for all alike."""
    rows: list[Row] = []
    over, worst, gpus, slots = 0, np.inf, 8, 8
    for count in (1, 2, 3):
        ratios: list[list[float]] = []
        for first in range(len(SURFACES)):
            jobs = [SURFACES[(first + step) % len(SURFACES)] for step in range(count)]
            grids = np.stack([speed_grid(surface, MOST, MOST) for _, surface in jobs])
            alike = grids.sum(axis=0)[: gpus // count + 1, : slots // count + 1].max()
            for rng in _draws(first):
                probed = [(form, _noisy(surface, spread_probes(8, gpus, slots), rng)) for form, surface in jobs]
                fitted = [_fitted(form, probes) for form, probes in probed]
                known = [observed(grid, probes) for grid, (_, probes) in zip(fitted, probed, strict=True)]
                shares = []
                for believed in (known, fitted):
                    workers, servers = allocate(np.stack(believed), _limits(count, MOST), gpus, slots)
                    over = max(over, int(workers.sum()) - gpus, int(servers.sum()) - slots)
                    shares.append(float(grids[np.arange(count), workers, servers].sum()) / alike)
                ratios.append(shares)
        (mean, blind_mean), (least, blind_least) = np.mean(ratios, axis=0), np.min(ratios, axis=0)
        row: Row = {"jobs": count, "mean speed / best static": _round(mean), "worst draw": _round(least)}
        rows.append(row | {"mean, fit alone": _round(blind_mean), "worst draw, fit alone": _round(blind_least)})
        worst = min(worst, float(mean))
    figures["C5 GPUs or CPU slots given beyond those there are"] = over
    figures["C5 sum of epochs per second / best static, mean, worst number of jobs"] = worst
    return rows


def tuned(figures: dict[str, float]) -> list[Row]:
    """C6: predicted speed of the chosen configuration with and without the run that looked for a portion of data."""
    rows: list[Row] = []

    def error(left_out: bool, i: int, k: int) -> float:
        (form, surface), rng = SURFACES[i], _rng(i, k)
        probes = _noisy(surface, spread_probes(8, MOST, MOST), rng)
        # The tuning run is too short an epoch on 1w1s, by the factor that it then asks for.
        apparent = float(surface.speed(1, 1)) * rng.uniform(1.5, 4.0)
        with_it = (np.append(probes.workers, 1), np.append(probes.servers, 1), np.append(probes.speed, apparent))
        fitted = _fitted(form, probes if left_out else Probes(*with_it))
        at = best_configuration(fitted)
        return float(abs(fitted[at] / float(surface.speed(*at)) - 1))

    for label, left_out in (("left out (ours)", True), ("fitted as an epoch (original)", False)):
        found = _over_surfaces(partial(error, left_out))
        worst = float(found.mean(axis=1).max())
        row: Row = {"tuning run": label, "mean error": _round(found.mean()), "worst surface": _round(worst)}
        rows.append(row | {"worst draw": _round(found.max())})
        if left_out:
            figures["C6 error of the predicted speed, mean, worst surface"] = worst
    return rows


def simulated(figures: dict[str, float]) -> list[Row]:
    """The policy in the simulator on the synchronous surfaces, probes and restarts included."""
    rows = trained([surface for _, surface in SURFACES if surface.form == "sync"])
    longest = [float(str(row["coach"])) for row in rows if row["epochs"] == max(EPOCHS)]
    figures["policy: mean JCT / best static choice, long jobs, worst number of jobs"] = max(longest)
    return rows


# The policy in the simulator ----------------------------------------------------------------------------------------

NODES = (Node(4, 4), Node(4, 4))
MOST_PROCESSES = 8
"""Workers, and servers, of a job in the simulator."""
BATCH = 128
"""Samples: the model's own batch, at which progress is counted in epochs of data."""
RESTART_SECONDS = 30.0
INTERVAL_SECONDS = 60.0
EPOCHS = (19.0, 95.0)
"""Of a job: as many as the original's single jobs took, and five times that."""


class Static:
    """Every job the same workers and servers."""

    def __init__(self, workers: int, servers: int) -> None:
        self.name = f"{workers}w{servers}s"
        self.workers, self.servers = workers, servers

    def reset(self, seed: int) -> None:
        pass

    def __call__(self, state: ClusterState) -> Allocation:
        count = len(state.jobs)
        return Allocation(np.full(count, self.workers), servers=np.full(count, self.servers))


def trained(surfaces: Sequence[SpeedSurface]) -> list[Row]:
    """Rows: one to three jobs at once, mean completion time of coach relative to that of the best static choice."""
    tables = _tables(surfaces)
    rows: list[Row] = []
    for epochs in EPOCHS:
        for count in (1, 2, 3):
            ratios: dict[str, list[float]] = {"coach": [], "coach:probes=corners": []}
            changes = []
            for first in range(len(surfaces)):
                models = [(first + step) % len(surfaces) for step in range(count)]
                best = min(
                    _mean_jct(tables, models, epochs, Static(w, p))[0]
                    for w in range(1, MOST_PROCESSES // count + 1)
                    for p in range(1, MOST_PROCESSES // count + 1)
                )
                for spec, found in ratios.items():
                    mean, restarts = _mean_jct(tables, models, epochs, make_policy(spec))
                    found.append(mean / best)
                    if spec == "coach":
                        changes.append(restarts / count)
            rows.append(
                {
                    "jobs": count,
                    "epochs": int(epochs),
                    **{spec: round(float(np.mean(of)), 3) for spec, of in ratios.items()},
                    "restarts a job with coach": round(float(np.mean(changes)), 1),
                }
            )
    return rows


def _tables(surfaces: Sequence[SpeedSurface]) -> SpeedTables:
    """Speeds of one model a surface, whose seconds are those of an epoch with the whole data in one step."""
    base = builtin_profiles()["cifar10"]
    steps = base.samples / BATCH
    profiles = {}
    for i, surface in enumerate(surfaces):
        a, b, c, d, e = (value / steps for value in surface.parameters)
        profiles[f"m{i}"] = replace(
            base, name=f"m{i}", throughput=ServerParams(a / BATCH, b, c, d, e, 1, MOST_PROCESSES)
        )
    types = [JobType(name, BATCH) for name in profiles]
    compiled = compile_tables(FittedProfiles(profiles), types, MOST_PROCESSES, 4, choose_servers=True)
    return compiled.with_rescale_delay(RESTART_SECONDS)


def _mean_jct(tables: SpeedTables, models: list[int], epochs: float, policy: Policy) -> tuple[float, int]:
    """Mean completion time [s] of jobs submitted at once, and their restarts in all."""
    jobs = [
        Job(
            name=f"job{i}",
            submit_time=0.0,
            model=f"m{model}",
            batch_size=BATCH,
            epochs=epochs,
            data_size=float(tables.samples[model]),
            requested_gpus=1,
            min_gpus=1,
            max_gpus=MOST_PROCESSES,
        )
        for i, model in enumerate(models)
    ]
    record = play(NODES, jobs, tables, policy, SimulatorSettings(interval=INTERVAL_SECONDS))
    return float(np.mean(record.jobs.finish_time)), int(record.jobs.rescales.sum())


# Surfaces and probes ------------------------------------------------------------------------------------------------


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


def _over_surfaces(figure: Callable[[int, int], float]) -> FloatArray:
    """[surfaces, draws] a figure of each surface and draw."""
    return np.array([[figure(i, k) for k in range(DRAWS)] for i in range(len(SURFACES))])


def _fitted(form: Form, probes: Probes, most: int = MOST) -> FloatArray:
    """Speeds by the fit of a form to probes, up to `most` workers and servers."""
    return speed_grid(fit_speed(form, probes), most, most)


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


def _probes(at: Configurations, speed: FloatArray) -> Probes:
    workers, servers = np.array(at).T
    return Probes(workers, servers, speed)


def _noisy(surface: SpeedSurface, at: Configurations, rng: np.random.Generator) -> Probes:
    workers, servers = np.array(at).T
    return _probes(at, surface.speed(workers, servers) * np.exp(NOISE * rng.standard_normal(len(at))))


def _random_probes(rng: np.random.Generator, count: int) -> Configurations:
    """Different configurations, all alike likely."""
    chosen = rng.choice(MOST * MOST, count, replace=False)
    return [(int(k) // MOST + 1, int(k) % MOST + 1) for k in chosen]


def _rng(case: int, draw: int) -> np.random.Generator:
    return np.random.default_rng((case, draw))


def _draws(case: int) -> Iterator[np.random.Generator]:
    return (_rng(case, draw) for draw in range(DRAWS))


def _form(label: str, own: Form) -> Form:
    if label == "parabola":
        return "parabola"
    other: Form = "async" if own == "sync" else "sync"
    return own if label == "own Optimus form" else other


def _name(configuration: tuple[int, int]) -> str:
    return f"{configuration[0]}w{configuration[1]}s"


def _round(value: float | np.floating) -> float:
    return round(float(value), 3)


SURFACES = _surfaces()
