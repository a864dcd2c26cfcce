"""Speed of training with parameter servers over (workers, servers): three surfaces, and their fits to probes.

Workers compute gradients, servers hold the parameters and apply them. Optimus's two forms (Peng et al., EuroSys 2018,
section 3.2) give the time of a step, for asynchronous and for synchronous training; Coach's parabola (Sundkvist,
Umeå University 2021, code DLScheduler) is the form of the original scheduler. Speeds are work per second: steps, epochs
or samples, in the unit of the probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field

from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.errors import ProfileError

Form = Literal["async", "sync", "parabola"]
"""Optimus's form of asynchronous training, that of synchronous training, and Coach's parabola."""
Coefficient = Annotated[float, Field(ge=0)]


class SpeedSurface(Protocol):
    """Speed over (workers, servers)."""

    def speed(self, workers: ArrayLike, servers: ArrayLike) -> FloatArray:
        """Work per second by workers and servers; 0 without workers or without servers. Shapes broadcast."""
        ...


@dataclass(frozen=True)
class AsyncSurface:
    """Optimus's asynchronous training: w workers do w / (a + b w/p + c w + d p) steps a second with p servers.

    a: seconds of computing. b: of moving gradients through a server that w/p workers share. c, d: of each further
    worker and server.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    a: Coefficient
    b: Coefficient
    c: Coefficient
    d: Coefficient

    def speed(self, workers: ArrayLike, servers: ArrayLike) -> FloatArray:
        """See SpeedSurface."""
        terms = async_terms(np.maximum(workers, 1), np.maximum(servers, 1))
        return _speed(workers, terms @ [self.a, self.b, self.c, self.d], workers, servers)


@dataclass(frozen=True)
class SyncSurface:
    """Optimus's synchronous training: 1 / (a M/w + b + c w/p + d w + e p) steps a second with w workers, p servers.

    a: seconds of computing per sample. b: of every step. c: of moving gradients through a server that w/p workers
    share. d, e: of each further worker and server. batch_size: M, samples of a step; with the default, 1, a is the
    seconds that one worker computes at the step's own batch.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    a: Coefficient
    b: Coefficient
    c: Coefficient
    d: Coefficient
    e: Coefficient
    batch_size: Annotated[float, Field(gt=0)] = 1.0

    def speed(self, workers: ArrayLike, servers: ArrayLike) -> FloatArray:
        """See SpeedSurface."""
        terms = sync_terms(np.maximum(workers, 1), np.maximum(servers, 1), self.batch_size)
        return _speed(1.0, terms @ [self.a, self.b, self.c, self.d, self.e], workers, servers)


@dataclass(frozen=True)
class Parabola:
    """Coach's -curvature_w (w - best_w)^2 - curvature_p (p - best_p)^2 + highest, never below 0.

    best_workers, best_servers: position of the maximum. workers_curvature, servers_curvature: how fast speed falls from
    there.
    highest: the maximum speed.
    """

    best_workers: float
    best_servers: float
    workers_curvature: float
    servers_curvature: float
    highest: float

    def speed(self, workers: ArrayLike, servers: ArrayLike) -> FloatArray:
        """See SpeedSurface."""
        w, p = np.asarray(workers, dtype=np.float64), np.asarray(servers, dtype=np.float64)
        fall = self.workers_curvature * (w - self.best_workers) ** 2
        fall = fall + self.servers_curvature * (p - self.best_servers) ** 2
        return np.where((w > 0) & (p > 0), np.maximum(self.highest - fall, 0.0), 0.0)


PARAMETERS: Mapping[Form, int] = {"async": 4, "sync": 5, "parabola": 5}
"""Number of parameters of a form: the fewest different configurations that can determine it."""


@dataclass(frozen=True)
class Probes:
    """N measured speeds: workers, servers [N] int64; speed [N] work per second.

    tuning: [N] True for runs that searched for a batch size or a portion of data and did not measure training; None
    if there are no such runs. `fit_speed` and `observed` leave them out.
    """

    workers: IntArray
    servers: IntArray
    speed: FloatArray
    tuning: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.speed)

    def training(self) -> Probes:
        """Those that measured training."""
        if self.tuning is None:
            return self
        kept = ~self.tuning
        return Probes(self.workers[kept], self.servers[kept], self.speed[kept])


@dataclass(frozen=True)
class SurfaceFit:
    """A surface fitted to probes.

    points: number of different configurations. determined: False if the probes do not determine the parameters, such as
    five parameters on four points; the surface then agrees with the probes but predicts other configurations poorly.
    """

    surface: SpeedSurface
    points: int
    determined: bool


def fit_speed(form: Form, probes: Probes, batch_size: float = 1.0) -> SurfaceFit:
    """The surface of a form with the best fit to the probes; tuning runs are left out.

    Optimus's forms are linear in their parameters in the time of a step: nonnegative least squares of the relative
    error of that time. If the probes do not determine all parameters, the terms share the time as evenly as the probes
    allow. The parabola is fitted as in Coach: least squares of the speed, parameters of at least 0, all starting from
    1; undetermined parameters stay near 1. batch_size: M of the synchronous form.
    Deterministic. Raises ProfileError without probes of training, or if one of them is impossible.
    """
    probes = probes.training()
    _check(probes)
    points = len(np.unique(np.stack([probes.workers, probes.servers]), axis=1).T)
    if form == "parabola":
        w, p = probes.workers.astype(np.float64), probes.servers.astype(np.float64)
        terms = np.stack([np.ones(len(w)), w, w**2, p, p**2], axis=1)
        determined = bool(np.linalg.matrix_rank(terms) == PARAMETERS[form])
        return SurfaceFit(_fit_parabola(w, p, probes.speed), points, determined)
    if form == "async":
        terms, seconds = async_terms(probes.workers, probes.servers), probes.workers / probes.speed
    else:
        terms, seconds = sync_terms(probes.workers, probes.servers, batch_size), 1.0 / probes.speed
    determined = bool(np.linalg.matrix_rank(terms / terms.mean(axis=0)) == PARAMETERS[form])
    values = _fit_terms(terms, seconds, determined)
    if form == "async":
        return SurfaceFit(AsyncSurface(*values), points, determined)
    a, b, c, d, e = values
    return SurfaceFit(SyncSurface(a, b, c, d, e, batch_size), points, determined)


def async_terms(workers: ArrayLike, servers: ArrayLike) -> FloatArray:
    """[..., 4] factors of a, b, c and d of the asynchronous form; shapes broadcast."""
    w, p = np.broadcast_arrays(np.asarray(workers, dtype=np.float64), np.asarray(servers, dtype=np.float64))
    return np.stack([np.ones_like(w), w / p, w, p], axis=-1)


def sync_terms(workers: ArrayLike, servers: ArrayLike, batch_size: float = 1.0) -> FloatArray:
    """[..., 5] factors of a to e of the synchronous form; shapes broadcast."""
    w, p = np.broadcast_arrays(np.asarray(workers, dtype=np.float64), np.asarray(servers, dtype=np.float64))
    return np.stack([batch_size / w, np.ones_like(w), w / p, w, p], axis=-1)


def speed_grid(surface: SpeedSurface, max_workers: int, max_servers: int) -> FloatArray:
    """[max_workers + 1, max_servers + 1] work per second with 0, 1, ... workers and servers."""
    return surface.speed(np.arange(max_workers + 1)[:, None], np.arange(max_servers + 1)[None, :])


def observed(grid: FloatArray, probes: Probes) -> FloatArray:
    """A grid like that of `speed_grid` with observed speeds in place of predictions (as in Optimus).

    A configuration probed several times gets its mean; tuning runs and probes beyond the grid are ignored.
    """
    probes = probes.training()
    inside = (probes.workers < grid.shape[0]) & (probes.servers < grid.shape[1])
    at = (probes.workers[inside], probes.servers[inside])
    count, total = np.zeros(grid.shape), np.zeros(grid.shape)
    np.add.at(count, at, 1.0)
    np.add.at(total, at, probes.speed[inside])
    return np.where(count > 0, total / np.maximum(count, 1.0), grid)


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


def corner_probes(max_workers: int, max_servers: int, min_workers: int = 1) -> list[tuple[int, int]]:
    """Coach's mini-epochs: the fewest (workers, servers), one more of either, and one more of both, as far as
    allowed."""
    return [
        (w, p)
        for w in range(min_workers, min(min_workers + 1, max_workers) + 1)
        for p in range(1, min(2, max_servers) + 1)
    ]


def spread_probes(count: int, max_workers: int, max_servers: int, min_workers: int = 1) -> list[tuple[int, int]]:
    """Up to `count` different (workers, servers): the fewest first, then always the one farthest from all before.

    Distances are Euclidean in the logarithms of both numbers, so that doubling either counts the same; ties go to the
    first, ordered by workers.
    """
    w, p = np.mgrid[min_workers : max_workers + 1, 1 : max_servers + 1].reshape(2, -1)
    place = np.log(np.stack([w, p], axis=1))
    chosen, distance = [0], np.full(len(place), np.inf)
    while len(chosen) < min(count, len(place)):
        distance = np.minimum(distance, np.round(np.linalg.norm(place - place[chosen[-1]], axis=1), 9))
        chosen.append(int(distance.argmax()))
    return [(int(w[i]), int(p[i])) for i in chosen]


_OPEN_WEIGHT = 1e-3
"""Weight of each term's size relative to the relative errors, for undetermined parameters: small against any noise."""


def _check(probes: Probes) -> None:
    if len(probes) == 0:
        raise ProfileError("no probes of training to fit a speed surface to (tuning runs do not count)")
    if not (np.all(np.isfinite(probes.speed)) and np.all(probes.speed > 0)):
        raise ProfileError("speeds of probes must be positive numbers")
    if np.any(probes.workers < 1) or np.any(probes.servers < 1):
        raise ProfileError("a probe needs at least 1 worker and 1 server")


def _fit_terms(terms: FloatArray, seconds: FloatArray, determined: bool) -> list[float]:
    """Nonnegative coefficients of terms [N, P] that fit seconds [N] with the least relative error."""
    from scipy.optimize import nnls

    relative = terms / seconds[:, None]
    unit = relative.mean(axis=0)  # a coefficient of 1 / unit makes its term explain all of the time
    rows, target = relative / unit, np.ones(len(seconds))
    if not determined:
        rows = np.concatenate([rows, _OPEN_WEIGHT * np.eye(len(unit))])
        target = np.append(target, np.zeros(len(unit)))
    found, _ = nnls(rows, target)
    return [float(value) for value in found / unit]


def _fit_parabola(workers: FloatArray, servers: FloatArray, speed: FloatArray) -> Parabola:
    """Coach's fit."""
    from scipy.optimize import least_squares

    def residuals(x: FloatArray) -> FloatArray:
        return np.asarray(x[4] - x[2] * (workers - x[0]) ** 2 - x[3] * (servers - x[1]) ** 2 - speed)

    # Speeds of some hundredths of an epoch a second differ by less than the usual tolerances of a start at 1.
    found = least_squares(residuals, np.ones(5), bounds=(0.0, np.inf), xtol=1e-12, ftol=1e-12, gtol=1e-12)
    return Parabola(*(float(value) for value in found.x))


def _speed(work: ArrayLike, seconds: FloatArray, workers: ArrayLike, servers: ArrayLike) -> FloatArray:
    """work / seconds if there are workers and servers, else 0."""
    some = (np.asarray(workers) > 0) & (np.asarray(servers) > 0)
    with np.errstate(divide="ignore"):
        return np.where(some, np.asarray(work, dtype=np.float64) / seconds, 0.0)
