"""Speed of training through parameter servers over (workers, servers): Optimus's law, and surfaces fitted to probes.

Workers compute gradients, servers hold the parameters and apply them. A step of M samples on w workers with p servers
takes a M/w + b + c w/p + d w + e p seconds (Optimus, Peng et al., EuroSys 2018, section 3.2): workers compute, w/p of
them share a server's connection, and every worker and server adds some overhead. Samples per second are the same
whether workers wait for each other or not: an asynchronous worker needs that time for its own M/w samples, and the
paper's w / (a' + b' w/p + c' w + d' p) batches per second are the same with a' = a M/w + b.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field

from rlpto.io.arrays import FloatArray, IntArray

MOST_SERVERS = 1024
"""Largest number of parameter servers in a profile."""
Form = Literal["async", "sync", "parabola"]
"""Optimus's forms of asynchronous and of synchronous training, and Coach's parabola (Sundkvist, Umeå University 2021,
code DLScheduler)."""
PARAMETERS: Mapping[Form, int] = {"async": 4, "sync": 5, "parabola": 5}
"""Number of parameters of a form: the fewest different configurations that can determine it."""


@dataclass(frozen=True)
class ServerParams:
    """Optimus's law as the `throughput` of a profile, by its parameters; times in seconds.

    a: time to compute the gradients of one sample. b: constant time per step. c: time to move the gradients and weights
    of one worker through a server's connection. d, e: overhead of each worker and of each server.
    servers: default number of parameter servers of a job. most_servers: largest number that a scheduler may give it.
    Raises ValueError if servers exceed most_servers.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    a: Annotated[float, Field(gt=0)]
    b: Annotated[float, Field(ge=0)]
    c: Annotated[float, Field(ge=0)]
    d: Annotated[float, Field(ge=0)]
    e: Annotated[float, Field(ge=0)]
    servers: Annotated[int, Field(ge=1, le=MOST_SERVERS)] = 1
    most_servers: Annotated[int, Field(ge=1, le=MOST_SERVERS)] = 1
    law: Literal["parameter_server"] = field(default="parameter_server", kw_only=True)

    def __post_init__(self) -> None:
        if self.servers > self.most_servers:
            raise ValueError(f"servers {self.servers} exceeds most_servers {self.most_servers}")

    def step_time(
        self, nodes: ArrayLike, replicas: ArrayLike, local_batch: ArrayLike, accumulation: ArrayLike = 0
    ) -> FloatArray:
        """Implement `rlpto.performance.throughput.ThroughputLaw`; servers have their own nodes, so `nodes` has no
        effect. Every accumulated computation costs a and b; gradients are exchanged once a step."""
        workers = np.asarray(replicas, dtype=np.float64)
        compute = (np.asarray(accumulation) + 1) * (self.a * np.asarray(local_batch, dtype=np.float64) + self.b)
        exchange = self.c * workers / self.servers + self.d * workers + self.e * self.servers
        return np.asarray(compute + exchange + 0.0 * np.asarray(nodes))


@dataclass(frozen=True)
class SpeedSurface:
    """Work per second (steps, epochs or samples) over (workers w, servers p): a form and its parameters, each >= 0.

    async: w / (a + b w/p + c w + d p). sync: 1 / (a/w + b + c w/p + d w + e p), with a the seconds that one worker
    computes at the step's whole batch. parabola: highest - u (w - best_w)^2 - v (p - best_p)^2, at least 0, with
    parameters (best_w, best_p, u, v, highest).
    determined: False if the probes behind the fit do not determine the parameters, such as five parameters on four
    configurations; the surface then agrees with the probes but predicts other configurations poorly.
    """

    form: Form
    parameters: tuple[float, ...]
    determined: bool = True

    def speed(self, workers: ArrayLike, servers: ArrayLike) -> FloatArray:
        """Work per second; 0 without workers or without servers. Shapes broadcast."""
        w, p = np.broadcast_arrays(np.asarray(workers, dtype=np.float64), np.asarray(servers, dtype=np.float64))
        if self.form == "parabola":
            best_w, best_p, u, v, highest = self.parameters
            speed = np.maximum(highest - (u * (w - best_w) ** 2 + v * (p - best_p) ** 2), 0.0)
        else:
            work = w if self.form == "async" else 1.0
            with np.errstate(divide="ignore"):
                speed = work / (_terms(self.form, np.maximum(w, 1), np.maximum(p, 1)) @ np.array(self.parameters))
        return np.where((w > 0) & (p > 0), speed, 0.0)


@dataclass(frozen=True)
class Probes:
    """N measured speeds: workers, servers [N] int64, 1 or more; speed [N] work per second, above 0."""

    workers: IntArray
    servers: IntArray
    speed: FloatArray


def fit_speed(form: Form, probes: Probes) -> SpeedSurface:
    """Fit a surface of a given form to the probes.

    Optimus's forms are linear in their parameters in the time of a step: nonnegative least squares of the relative
    error of that time. If the probes do not determine all parameters, the terms share the time as evenly as the probes
    allow. The parabola is fitted by Coach's method: least squares of the speed, parameters of at least 0, all starting
    from 1; undetermined parameters stay near 1. Deterministic.
    """
    terms = _terms(form, probes.workers.astype(np.float64), probes.servers.astype(np.float64))
    scaled = terms if form == "parabola" else terms / terms.mean(axis=0)
    determined = bool(np.linalg.matrix_rank(scaled) == PARAMETERS[form])
    if form == "parabola":
        parameters = _fit_parabola(probes)
    else:
        work = probes.workers if form == "async" else 1.0
        parameters = _fit_terms(terms, work / probes.speed, determined)
    return SpeedSurface(form, tuple(float(value) for value in parameters), determined)


def speed_grid(surface: SpeedSurface, max_workers: int, max_servers: int) -> FloatArray:
    """[max_workers + 1, max_servers + 1] work per second with 0, 1, ... workers and servers."""
    return surface.speed(np.arange(max_workers + 1)[:, None], np.arange(max_servers + 1)[None, :])


def observed(grid: FloatArray, probes: Probes) -> FloatArray:
    """Replace predictions in a `speed_grid` by observed speeds, like Optimus. A configuration probed several times gets
    its mean; probes beyond the grid are ignored."""
    inside = (probes.workers < grid.shape[0]) & (probes.servers < grid.shape[1])
    at = (probes.workers[inside], probes.servers[inside])
    count, total = np.zeros(grid.shape), np.zeros(grid.shape)
    np.add.at(count, at, 1.0)
    np.add.at(total, at, probes.speed[inside])
    return np.where(count > 0, total / np.maximum(count, 1.0), grid)


def fitted_grid(
    form: Form, seen: Mapping[tuple[int, int], float], max_workers: int, max_servers: int
) -> tuple[FloatArray, bool]:
    """Fit a `speed_grid` to the speeds `seen` at (workers, servers), which it contains unchanged; also return whether
    they determine the fit."""
    workers, servers = np.array(list(seen), dtype=np.int64).T
    probes = Probes(workers, servers, np.array(list(seen.values())))
    fit = fit_speed(form, probes)
    return observed(speed_grid(fit, max_workers, max_servers), probes), fit.determined


def corner_probes(max_workers: int, max_servers: int, min_workers: int = 1) -> list[tuple[int, int]]:
    """Coach's mini-epochs: the fewest (workers, servers), one more of either, and one more of both, if allowed."""
    return [
        (w, p)
        for w in range(min_workers, min(min_workers + 1, max_workers) + 1)
        for p in range(1, min(2, max_servers) + 1)
    ]


def spread_probes(count: int, max_workers: int, max_servers: int, min_workers: int = 1) -> list[tuple[int, int]]:
    """Up to `count` different (workers, servers): the fewest first, then always the one farthest from all before.

    Distances are Euclidean in the logarithms of both numbers: doubling either counts the same. Ties go to the first,
    ordered by workers.
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


def _terms(form: Form, w: FloatArray, p: FloatArray) -> FloatArray:
    """[..., P] terms in which a form is linear: factors of its parameters in the step time, or a parabola's powers."""
    one = np.ones_like(w)
    factors = {
        "async": (one, w / p, w, p),
        "sync": (1.0 / w, one, w / p, w, p),
        "parabola": (one, w, w**2, p, p**2),
    }
    return np.stack(factors[form], axis=-1)


def _fit_terms(terms: FloatArray, seconds: FloatArray, determined: bool) -> FloatArray:
    """[P] nonnegative coefficients of terms [N, P] that fit seconds [N] with the least relative error."""
    from scipy.optimize import nnls

    relative = terms / seconds[:, None]
    unit = relative.mean(axis=0)  # a coefficient of 1 / unit makes its term explain all of the time
    rows, target = relative / unit, np.ones(len(seconds))
    if not determined:
        rows = np.concatenate([rows, _OPEN_WEIGHT * np.eye(len(unit))])
        target = np.append(target, np.zeros(len(unit)))
    found, _ = nnls(rows, target)
    return np.asarray(found / unit)


def _fit_parabola(probes: Probes) -> FloatArray:
    """[5] parameters of Coach's fit."""
    from scipy.optimize import least_squares

    workers, servers = probes.workers.astype(np.float64), probes.servers.astype(np.float64)

    def residuals(x: FloatArray) -> FloatArray:
        return np.asarray(x[4] - x[2] * (workers - x[0]) ** 2 - x[3] * (servers - x[1]) ** 2 - probes.speed)

    # Speeds of some hundredths of an epoch a second differ by less than the usual tolerances of a start at 1.
    found = least_squares(residuals, np.ones(5), bounds=(0.0, np.inf), xtol=1e-12, ftol=1e-12, gtol=1e-12)
    return np.asarray(found.x)
