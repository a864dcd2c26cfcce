"""Throughput of data-parallel training: the interface of throughput laws, Pollux's law, and its fit to measured steps.

Pollux (Qiao et al., OSDI 2021, sections 3.2 and 4.1): a step computes gradients, whose time is linear in the local
batch, and synchronises them, whose time is linear in the number of GPUs; the exponent gamma expresses their overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field

from rlpto.io.arrays import BoolArray, FloatArray
from rlpto.io.errors import ProfileError

MAX_GAMMA = 10.0
"""Largest overlap exponent. With it a step takes hardly longer than the longer of computing and synchronising."""
NO_COST = 1e-8
"""Lower limit of a fitted coefficient, in seconds: small enough to be negligible."""


class ThroughputLaw(Protocol):
    """The content of `throughput` in a profile: parameters, and the time of a step computed from them."""

    @property
    def law(self) -> str:
        """The law's name in a profile, a key of `rlpto.performance.profiles.LAWS`."""
        ...

    def step_time(
        self, nodes: ArrayLike, replicas: ArrayLike, local_batch: ArrayLike, accumulation: ArrayLike = 0
    ) -> FloatArray:
        """Seconds of one optimiser step; shapes broadcast.

        nodes, replicas: nodes spanned and GPUs in total. local_batch: samples one GPU computes at once. accumulation:
        number of additional gradient computations before the last one, after which gradients are synchronised.
        """
        ...


@dataclass(frozen=True)
class ThroughputParams:
    """Pollux's law, by its parameters theta; times in seconds.

    alpha_c, beta_c: constant and per-sample time to compute the gradients of a local batch.
    alpha_n, beta_n: time to synchronise across nodes, and its growth per GPU beyond the second.
    alpha_r, beta_r: the same times within one node.
    gamma: overlap of computing and synchronising, from 1 (none) to 10 (all).
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    alpha_c: Annotated[float, Field(ge=0)]
    beta_c: Annotated[float, Field(gt=0)]
    alpha_n: Annotated[float, Field(ge=0)]
    beta_n: Annotated[float, Field(ge=0)]
    alpha_r: Annotated[float, Field(ge=0)]
    beta_r: Annotated[float, Field(ge=0)]
    gamma: Annotated[float, Field(ge=1, le=MAX_GAMMA)]
    law: Literal["pollux"] = field(default="pollux", kw_only=True)

    def step_time(
        self, nodes: ArrayLike, replicas: ArrayLike, local_batch: ArrayLike, accumulation: ArrayLike = 0
    ) -> FloatArray:
        """Implement `ThroughputLaw`."""
        compute = gradient_time(self, local_batch)
        synchronise = sync_time(self, nodes, replicas)
        return np.asarray(np.asarray(accumulation) * compute + _overlapped(compute, synchronise, self.gamma))

    def rounded(self, digits: int) -> ThroughputParams:
        """The same law with parameters rounded to `digits` significant digits."""
        return ThroughputParams(*(float(f"{value:.{digits}g}") for value in astuple(self)[:-1]))


@dataclass(frozen=True)
class StepMeasurements:
    """Measured steps without accumulation: float64 arrays of the same length [N], with one entry per measurement.

    nodes, replicas: nodes spanned and GPUs in total. local_batch: samples per GPU.
    step_time: seconds of a whole step. sync_time: seconds of it spent waiting for synchronisation.
    """

    nodes: FloatArray
    replicas: FloatArray
    local_batch: FloatArray
    step_time: FloatArray
    sync_time: FloatArray

    def __len__(self) -> int:
        return len(self.step_time)


def gradient_time(params: ThroughputParams, local_batch: ArrayLike) -> FloatArray:
    """Seconds to compute the gradients of `local_batch` samples on one GPU; any shape."""
    return np.asarray(params.alpha_c + params.beta_c * np.asarray(local_batch, dtype=np.float64))


def sync_time(params: ThroughputParams, nodes: ArrayLike, replicas: ArrayLike) -> FloatArray:
    """Seconds to synchronise gradients: 0 with one replica; shapes broadcast."""
    nodes, replicas = np.asarray(nodes), np.asarray(replicas)
    beyond_pair = np.maximum(replicas - 2, 0)
    one_node = params.alpha_r + params.beta_r * beyond_pair
    several = params.alpha_n + params.beta_n * beyond_pair
    return np.where(replicas <= 1, 0.0, np.where(nodes <= 1, one_node, several))


def relative_errors(law: ThroughputLaw, rows: StepMeasurements) -> FloatArray:
    """[N] |predicted - measured| / measured step time."""
    predicted = law.step_time(rows.nodes, rows.replicas, rows.local_batch)
    return np.abs(predicted - rows.step_time) / rows.step_time


def fit_throughput(rows: StepMeasurements) -> ThroughputParams:
    """Fit the parameters to measured steps, by bounded least squares from several starts.

    The objective is a robust mean log error of the step time, plus with less weight the same error of the time without
    synchronisation, plus Pollux's penalties on gamma and on synchronisation that grows steeply. Variables are gamma and
    the logarithms of the coefficients. Parameters that the rows do not determine follow Pollux's rules: with one local
    batch size, the constant part is half the computing time; if only one of the two synchronisation times (within a
    node, across nodes) was measured, the other is tied to it, and is 10 % longer across nodes. Deterministic. Raises
    ProfileError if there are no rows, or if a time is not positive.
    """
    from scipy.optimize import least_squares

    if len(rows) == 0:
        raise ProfileError("no measured steps to fit a throughput model to")
    if not (np.all(np.isfinite(rows.step_time)) and np.all(rows.step_time > 0)):
        raise ProfileError("measured step times must be positive seconds")
    problem = _Problem(rows)
    loss: Any = problem.loss  # SciPy's stubs know the form of its own losses only
    fits = [
        least_squares(problem.residuals, start, bounds=problem.bounds, loss=loss, ftol=1e-10, xtol=1e-10, gtol=1e-10)
        for start in problem.starts()
    ]
    return problem.params(min(fits, key=lambda fit: float(fit.cost)).x)


_ROBUST_LOG_ERROR = 0.05
"""Log error above which errors count linearly, not squared, which limits the weight of outliers."""
_COMPUTE_WEIGHT = 0.3
"""Weight of errors in computing time relative to step time: measured sync times include waiting for other workers."""
_GAMMA_PENALTY = 1e-3
_GROWTH_PENALTY = 1e-2
_NODE_PREMIUM = 1.1


def _overlapped(compute: FloatArray, synchronise: FloatArray, gamma: float) -> FloatArray:
    """(compute^gamma + synchronise^gamma)^(1/gamma), without overflow of the powers."""
    longer, shorter = np.maximum(compute, synchronise), np.minimum(compute, synchronise)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(longer > 0, shorter / longer, 0.0)
    return np.asarray(longer * (1 + ratio**gamma) ** (1 / gamma))


class _Problem:
    """The least-squares problem, in a vector [7] for the logarithms of the six coefficients, and gamma.

    The logarithms are `_tie @ vector[:6] + _offset`; tie and offset fix the parameters that the rows do not determine.
    """

    def __init__(self, rows: StepMeasurements) -> None:
        self.rows = rows
        self.log_step = np.log(rows.step_time)
        compute = rows.step_time - np.clip(rows.sync_time, 0, None)
        self.computing: BoolArray = compute > 0
        self.log_compute = np.log(compute[self.computing])
        steps, computed = np.ones(len(rows)), np.ones(len(self.log_compute))
        self._weights = np.concatenate([steps / len(rows), _COMPUTE_WEIGHT * computed / max(len(computed), 1)])
        low, high = np.log(NO_COST), np.log(10 * float(rows.step_time.max()))
        self.bounds = np.array([low] * 6 + [1.0]), np.array([high] * 6 + [MAX_GAMMA])
        self._tie, self._offset = np.eye(6), np.zeros(6)
        has_nodes = bool(np.any((rows.nodes > 1) & (rows.replicas > 1)))
        has_local = bool(np.any((rows.nodes <= 1) & (rows.replicas > 1)))
        premium = np.log(_NODE_PREMIUM)
        if len(np.unique(rows.local_batch)) == 1 and compute.mean() > 0:
            self._fix([0], np.log(compute.mean() / 2))
        if not has_nodes and not has_local:
            self._fix([2, 3, 4, 5], np.log(NO_COST))
        elif not np.any(rows.replicas > 2):
            self._fix([3, 5], np.log(NO_COST))
        if has_local and not has_nodes:
            self._tie[[2, 3]], self._offset[[2, 3]] = self._tie[[4, 5]], self._offset[[4, 5]] + premium
        elif has_nodes and not has_local:
            self._tie[[4, 5]], self._offset[[4, 5]] = self._tie[[2, 3]], self._offset[[2, 3]] - premium

    def _fix(self, coefficients: list[int], log_value: float) -> None:
        self._tie[coefficients], self._offset[coefficients] = 0.0, log_value

    def starts(self) -> Iterator[FloatArray]:
        """Yield Pollux's start, then starts scaled to the measured step times, with little and with much overlap."""
        yield self._clipped((0.1, 0.01, 0.1, 0.01, 0.1, 0.01), 1.001)
        shortest = float(self.rows.step_time.min())
        per_sample = float(np.median(self.rows.step_time / self.rows.local_batch))
        for gamma in (1.1, 3.0):
            for share in (0.2, 0.8):
                sync = shortest * share
                yield self._clipped(
                    (shortest * (1 - share), per_sample / 2, sync, sync / 50, sync / 2, sync / 100), gamma
                )

    def _clipped(self, coefficients: tuple[float, ...], gamma: float) -> FloatArray:
        return np.asarray(np.clip([*np.log(coefficients), gamma], *self.bounds))

    def params(self, x: FloatArray) -> ThroughputParams:
        """Convert the vector to parameters."""
        coefficients = np.exp(self._tie @ x[:6] + self._offset)
        return ThroughputParams(*(float(value) for value in [*coefficients, x[6]]))

    def residuals(self, x: FloatArray) -> FloatArray:
        """Log errors of step times [N] and of times to compute [C], then the penalised quantities [3]."""
        law, rows = self.params(x), self.rows
        step = np.log(law.step_time(rows.nodes, rows.replicas, rows.local_batch)) - self.log_step
        compute = np.log(gradient_time(law, rows.local_batch[self.computing])) - self.log_compute
        penalties = np.sqrt([_GAMMA_PENALTY, _GROWTH_PENALTY, _GROWTH_PENALTY])
        return np.concatenate(
            [step, compute, penalties * [law.gamma - 1, law.beta_n / law.alpha_n, law.beta_r / law.alpha_r]]
        )

    def loss(self, squares: FloatArray) -> FloatArray:
        """[3, N + C + 3] twice the cost of each squared residual, with its first two derivatives, as SciPy needs it.

        The cost of a log error is pseudo-Huber, in the unit of the error; penalties stay squared.
        """
        cost = np.stack([2 * squares, np.full(len(squares), 2.0), np.zeros(len(squares))])
        errors = len(self._weights)
        length = np.sqrt(squares[:errors] + _ROBUST_LOG_ERROR**2)
        cost[:, :errors] = self._weights * [2 * (length - _ROBUST_LOG_ERROR), 1 / length, -0.5 / length**3]
        return cost
