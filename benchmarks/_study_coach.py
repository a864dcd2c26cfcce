"""Coach against its acceptance behaviours except C4 (docs/notes/removed.md); about one CPU-minute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
from _studies import Part, Plan, Row, play, server_tables

from rlpto.core.cluster import Allocation, ClusterState, Node
from rlpto.core.jobs import Job
from rlpto.core.policy import Policy
from rlpto.io.arrays import FloatArray, IntArray
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
from rlpto.performance.tables import SpeedTables
from rlpto.policies.coach import Limits, allocate
from rlpto.policies.registry import make_policy
from rlpto.simulator.settings import SimulatorSettings

Configurations = Sequence[tuple[int, int]]
"""Numbers of workers and servers, one pair for each configuration."""

NAME = "{}w{}s"
"""Name of a configuration, from its workers and servers."""
MOST = 10
"""Most workers, and most servers, of a job on a generated surface."""
NOISE = 0.1
"""Standard deviation of the logarithm of a measured speed."""
DRAWS = 20
"""Draws of noise, and of random probes, for each surface."""
SMALL = 3
"""Most processes, workers and servers together, in the original's cluster of three nodes."""
SINGLE_EPOCHS = 19
"""Epochs of the original's single jobs."""
GPUS = SLOTS = 8
"""GPUs, and CPU slots, of the cluster on which jobs run at the same time."""

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
"""Choice of the original's fits to its recorded mini-epochs, which was also measured to be best."""
PROBES: dict[str, Callable[[np.random.Generator], Configurations]] = {
    "4 corners (original)": lambda _: corner_probes(MOST, MOST),
    "8 random": lambda rng: random_probes(rng, 8),
    "12 random": lambda rng: random_probes(rng, 12),
    "8 spread (ours)": lambda _: spread_probes(8, MOST, MOST),
}
FITTED_FORMS: dict[str, dict[Form, Form]] = {
    "own Optimus form": {"async": "async", "sync": "sync"},
    "other Optimus form": {"async": "sync", "sync": "async"},
    "parabola": {"async": "parabola", "sync": "parabola"},
}
"""Fitted form for surfaces of each form."""


def replayed(_: Plan) -> Part:
    """C1: the choice from the four measured configurations."""
    rows: list[Row] = []
    reached = 0
    for case, speeds in MEASURED.items():
        probes = probes_of(FOUR, np.array(speeds))
        row = {"runs": case, "measured best": NAME.format(*best_configuration(measured_grid(case)))}
        for form in ("sync", "async", "parabola"):
            grid = fitted(form, probes, 2)
            choice = greedy(observed(grid, probes))
            row |= {form: NAME.format(*choice), f"{form}, fit alone": NAME.format(*greedy(grid))}
            reached += form == "sync" and choice == ACCEPTED.get(case)
        rows.append(row)
    return Part({"C1 single jobs for which the measured best is chosen, of 2": reached}, rows)


def chosen(_: Plan) -> Part:
    """C2: speed of the chosen configuration on eight surfaces, relative to the best."""
    found = Part()

    def share(label: str, plan: str, surface: SpeedSurface, rng: np.random.Generator) -> float:
        grid, probes = speed_grid(surface, MOST, MOST), measured(surface, PROBES[plan](rng), rng)
        believed = observed(fitted(FITTED_FORMS[label][surface.form], probes), probes)
        return float(grid[best_configuration(believed)] / grid.max())

    for plan in PROBES:
        for label in FITTED_FORMS:
            ratio = over_surfaces(partial(share, label, plan))
            found.rows.append({"probes": plan, "form": label, "mean": rounded(ratio.mean()), **worst_of(ratio, np.min)})
            if label == "own Optimus form" and plan.startswith("8"):
                found.figures[f"C2 {plan} probes: chosen / best, worst surface"] = float(ratio.mean(axis=1).min())
                found.figures[f"C2 {plan} probes: chosen / best, mean"] = float(ratio.mean())
    return found


def limited(_: Plan) -> Part:
    """C3: three nodes, one process each: total time with four mini-epochs, relative to the best static choice."""
    rows: list[Row] = []
    worst, largest = 0.0, 0
    cases = {name: measured_grid(name) for name in MEASURED}
    cases |= {f"generated {i + 1}": speed_grid(surface, 2, 2) for i, surface in enumerate(surfaces())}
    within = [at for at in FOUR if sum(at) <= SMALL]
    for i, (name, grid) in enumerate(cases.items()):
        ratios = []
        speeds = np.array([grid[at] for at in within])
        for rng in draws(i):
            probes = probes_of(within, speeds * np.exp(NOISE * rng.standard_normal(len(within))))
            choice = best_configuration(observed(fitted("sync", probes, 2), probes), SMALL)
            total = float(np.sum(1 / speeds)) + (SINGLE_EPOCHS - len(within)) / grid[choice]
            ratios.append(total / (SINGLE_EPOCHS / speeds.max()))
            largest = max(largest, sum(choice))
        mean = float(np.mean(ratios))
        rows.append({"speeds": name, "mean time / best static": rounded(mean), "worst": rounded(max(ratios))})
        worst = max(worst, mean)
    figures = {"C3 workers and servers together, at most": largest, "C3 mean time / best static, worst case": worst}
    return Part(figures, rows)


def concurrent(_: Plan) -> Part:
    """C5: one to three jobs on eight GPUs and eight CPU slots, relative to the best common configuration."""
    rows: list[Row] = []
    over, worst = 0, np.inf
    for count in (1, 2, 3):
        ratios: list[list[float]] = []
        for first in range(len(surfaces())):
            jobs = (surfaces() * 2)[first : first + count]
            grids = np.stack([speed_grid(surface, MOST, MOST) for surface in jobs])
            alike = grids.sum(axis=0)[: GPUS // count + 1, : SLOTS // count + 1].max()
            for rng in draws(first):
                probed = [measured(surface, spread_probes(8, GPUS, SLOTS), rng) for surface in jobs]
                fits = [fitted(surface.form, probes) for surface, probes in zip(jobs, probed, strict=True)]
                known = [observed(grid, probes) for grid, probes in zip(fits, probed, strict=True)]
                shares = []
                for believed in (known, fits):
                    workers, servers = allocate(np.stack(believed), limits(count, MOST), GPUS, SLOTS)
                    over = max(over, int(workers.sum()) - GPUS, int(servers.sum()) - SLOTS)
                    shares.append(float(grids[np.arange(count), workers, servers].sum()) / alike)
                ratios.append(shares)
        (mean, fit_mean), (least, fit_least) = np.mean(ratios, axis=0), np.min(ratios, axis=0)
        row = {"jobs": count, "mean speed / best static": rounded(mean), "worst draw": rounded(least)}
        rows.append(row | {"mean, fit alone": rounded(fit_mean), "worst draw, fit alone": rounded(fit_least)})
        worst = min(worst, float(mean))
    name = "C5 sum of epochs per second / best static, mean, worst number of jobs"
    return Part({"C5 GPUs or CPU slots given beyond those there are": over, name: worst}, rows)


def tuned(_: Plan) -> Part:
    """C6: predicted speed of the chosen configuration, with and without the tuning run as a probe."""
    found = Part()

    def error(left_out: bool, surface: SpeedSurface, rng: np.random.Generator) -> float:
        probes = measured(surface, spread_probes(8, MOST, MOST), rng)
        # The tuning run looks like an epoch on 1w1s, shortened by the factor that it then asks for.
        apparent = float(surface.speed(1, 1)) * rng.uniform(1.5, 4.0)
        with_it = (np.append(probes.workers, 1), np.append(probes.servers, 1), np.append(probes.speed, apparent))
        grid = fitted(surface.form, probes if left_out else Probes(*with_it))
        at = best_configuration(grid)
        return float(abs(grid[at] / float(surface.speed(*at)) - 1))

    for label, left_out in (("left out (ours)", True), ("fitted as an epoch (original)", False)):
        errors = over_surfaces(partial(error, left_out))
        found.rows.append({"tuning run": label, "mean error": rounded(errors.mean()), **worst_of(errors, np.max)})
        if left_out:
            figure = "C6 error of the predicted speed, mean, worst surface"
            found.figures[figure] = float(errors.mean(axis=1).max())
    return found


# The policy in the simulator ----------------------------------------------------------------------------------------

NODES = (Node(4, 4), Node(4, 4))
MOST_PROCESSES = 8
"""Most workers, and most servers, of a job in the simulator."""
BATCH = 128
"""Default batch size of the model [samples], at which progress is counted in epochs of data."""
RESTART_SECONDS = 30.0
INTERVAL_SECONDS = 60.0
EPOCHS = (19.0, 95.0)
"""Epochs of a job: the number of the original's single jobs, and five times as many."""


class Static:
    """A policy that gives every job the same workers and servers."""

    name = "static"

    def __init__(self, workers: int, servers: int) -> None:
        self.workers, self.servers = workers, servers

    def reset(self, seed: int) -> None:
        pass

    def __call__(self, state: ClusterState) -> Allocation:
        count = len(state.jobs)
        return Allocation(np.full(count, self.workers), servers=np.full(count, self.servers))


def simulated(_: Plan) -> Part:
    """The policy in the simulator on the synchronous surfaces, probes and restarts included.

    One to three jobs at once: mean completion time under coach relative to the best static choice.
    """
    tables = surface_tables([surface for surface in surfaces() if surface.form == "sync"])
    rows: list[Row] = []
    longest = []
    for epochs in EPOCHS:
        for count in (1, 2, 3):
            ratios: dict[str, list[float]] = {"coach": [], "coach:probes=corners": []}
            restarts = []
            sizes = range(1, MOST_PROCESSES // count + 1)
            for first in range(len(tables.types)):
                models = ([job_type.model for job_type in tables.types] * 2)[first : first + count]
                best = min(completion(tables, models, epochs, Static(w, p))[0] for w in sizes for p in sizes)
                for spec, found in ratios.items():
                    mean, changes = completion(tables, models, epochs, make_policy(spec))
                    found.append(mean / best)
                    if spec == "coach":
                        restarts.append(changes / count)
            means = {spec: rounded(np.mean(found)) for spec, found in ratios.items()}
            often = {"restarts a job with coach": round(float(np.mean(restarts)), 1)}
            rows.append({"jobs": count, "epochs": int(epochs), **means, **often})
            if epochs == max(EPOCHS):
                longest.append(means["coach"])
    return Part({"policy: mean JCT / best static choice, long jobs, worst number of jobs": max(longest)}, rows)


def surface_tables(of: Sequence[SpeedSurface]) -> SpeedTables:
    """Speeds of one model for each surface. A surface's seconds are for an epoch with the whole data in one step."""
    steps = builtin_profiles()["cifar10"].samples / BATCH
    laws = {}
    for i, surface in enumerate(of):
        a, b, c, d, e = (value / steps for value in surface.parameters)
        laws[f"m{i}"] = ServerParams(a / BATCH, b, c, d, e, 1, MOST_PROCESSES)
    return server_tables(laws, BATCH, MOST_PROCESSES, rescale_delay=RESTART_SECONDS)


def completion(tables: SpeedTables, models: Sequence[str], epochs: float, policy: Policy) -> tuple[float, int]:
    """Mean completion time [s] of jobs submitted at once, and the sum of their restarts."""
    data = float(tables.samples[0])
    jobs = [
        Job(f"job{i}", 0.0, model, epochs, data, 1, 1, MOST_PROCESSES, batch_size=BATCH)
        for i, model in enumerate(models)
    ]
    record = play(NODES, jobs, tables, policy, SimulatorSettings(interval=INTERVAL_SECONDS))
    return float(np.mean(record.jobs.finish_time)), int(record.jobs.rescales.sum())


# Surfaces and probes ------------------------------------------------------------------------------------------------


@cache
def surfaces() -> list[SpeedSurface]:
    """Four asynchronous and four synchronous surfaces in epochs per second, with parameter ranges from the page."""
    rng = np.random.default_rng(17)
    ranges: dict[Form, tuple[tuple[float, float], tuple[float, ...], tuple[float, ...]]] = {
        "async": ((10, 40), (0.2, 0.01, 0.01), (1.5, 0.1, 0.2)),
        "sync": ((40, 120), (0.02, 0.02, 0.005, 0.005), (0.3, 0.3, 0.05, 0.05)),
    }
    found = []
    for form, (first, low, high) in ranges.items():
        for _ in range(4):
            a = rng.uniform(*first)
            found.append(SpeedSurface(form, (a, *(a * rng.uniform(low, high)))))
    return found


def over_surfaces(figure: Callable[[SpeedSurface, np.random.Generator], float]) -> FloatArray:
    """[surfaces, draws] a figure of each surface and draw."""
    return np.array([[figure(surface, rng) for rng in draws(i)] for i, surface in enumerate(surfaces())])


def worst_of(found: FloatArray, worst: Callable[[FloatArray], float]) -> dict[str, float]:
    """The worst mean of a surface, and the worst draw, of a figure [surfaces, draws]."""
    return {"worst surface": rounded(worst(found.mean(axis=1))), "worst draw": rounded(worst(found))}


def draws(case: int) -> list[np.random.Generator]:
    return [np.random.default_rng((case, draw)) for draw in range(DRAWS)]


def measured_grid(case: str) -> FloatArray:
    return observed(np.zeros((3, 3)), probes_of(FOUR, np.array(MEASURED[case])))


def fitted(form: Form, probes: Probes, most: int = MOST) -> FloatArray:
    """Speeds of a form fitted to probes, up to `most` workers and servers."""
    return speed_grid(fit_speed(form, probes), most, most)


def best_configuration(grid: FloatArray, most: int | None = None) -> tuple[int, int]:
    """(workers, servers) with the highest speed of a grid, both at least 1. Ties go to the fewest processes, then to
    the fewest servers.

    most: limit of workers plus servers.
    """
    grids: IntArray = np.indices(grid.shape)
    w, p = grids[0], grids[1]
    possible = (w > 0) & (p > 0) & (w + p <= (grid.size if most is None else most))
    w, p, speed = w[possible], p[possible], grid[possible]
    first = np.lexsort((-w, w + p, -speed))[0]
    return int(w[first]), int(p[first])


def greedy(grid: FloatArray) -> tuple[int, int]:
    """Configuration that the greedy allocation gives a single job."""
    most = len(grid) - 1
    workers, servers = allocate(grid[None], limits(1, most), most, most)
    return int(workers[0]), int(servers[0])


def limits(count: int, most: int) -> Limits:
    one, all_of_them = np.ones(count, dtype=np.int64), np.full(count, most)
    return Limits(one, all_of_them, one, all_of_them)


def probes_of(at: Configurations, speed: FloatArray) -> Probes:
    workers, servers = np.array(at).T
    return Probes(workers, servers, speed)


def measured(surface: SpeedSurface, at: Configurations, rng: np.random.Generator) -> Probes:
    """Probes of a surface, with noise."""
    return probes_of(at, surface.speed(*np.array(at).T) * np.exp(NOISE * rng.standard_normal(len(at))))


def random_probes(rng: np.random.Generator, count: int) -> Configurations:
    """Different configurations, drawn with equal probability."""
    found = rng.choice(MOST * MOST, count, replace=False)
    return [(int(k) // MOST + 1, int(k) % MOST + 1) for k in found]


def rounded(value: float | np.floating) -> float:
    return round(float(value), 3)
