"""Laws of speed and accuracy fitted to what real jobs have reported of themselves.

Sizes that were seen have the speed that was measured; others that of a fit, with the same prior as simulated jobs have
(`rlpto.knowledge.bayes_fit`), or by Pollux's rules (Qiao et al., OSDI 2021, section 4.1): perfect scaling until a job
has trained with several numbers of workers, then a fit without a prior. Real jobs report whole steps, by number of
nodes and of parameter servers: what of a step is synchronising is not known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rlpto.io.arrays import FloatArray
from rlpto.knowledge.bayes_fit import fill_log_speeds, fit_with_prior
from rlpto.knowledge.prior import ThroughputPrior, coordinates, law_at
from rlpto.performance.accuracy import AccuracyCurve, Metric, fit_accuracy
from rlpto.performance.fitted import SPANS
from rlpto.performance.parameter_server import PARAMETERS, Probes, ServerParams, fit_speed
from rlpto.performance.throughput import StepMeasurements, ThroughputLaw, ThroughputParams, fit_throughput
from rlpto.ray_cluster.measuring.profiling import by_epoch, steps_of
from rlpto.ray_cluster.messages import Measured
from rlpto.ray_cluster.settings import ProgramSettings


class SpeedFit(NamedTuple):
    """A law of throughput, and [SPANS, K] the standard deviation of the logarithm of its speed with 1 to K workers on
    one node and on several; None: not known."""

    law: ThroughputLaw
    sigma: FloatArray | None = None


def estimated_throughput(
    program: ProgramSettings, speeds: tuple[Measured, ...], prior: ThroughputPrior | None, most: int
) -> SpeedFit:
    """The law fitted to speeds of a program on one kind of GPU; most: workers of a job.

    Without a prior a single number of workers means perfect scaling from there. With parameter servers the law is
    Optimus's, once the numbers of workers and servers that were seen determine it, and scaling is perfect before.
    """
    smallest = min(speeds, key=lambda size: (size.workers, size.nodes))
    alone = smallest.samples_per_second / smallest.workers
    if program.has_servers:
        return SpeedFit(_server_law(program, speeds) or program.law(1.0 / alone))
    if prior is not None:
        return _fit_with_prior(program, speeds, prior, most)
    if len({size.workers for size in speeds}) == 1:
        return SpeedFit(program.law(1.0 / alone))
    if smallest.workers > 1:  # the fit needs to know what a single worker takes
        speeds = (Measured(1, 1, alone, smallest.count), *speeds)
    return SpeedFit(fit_throughput(steps_of(program, speeds)))


def _fit_with_prior(
    program: ProgramSettings, speeds: tuple[Measured, ...], prior: ThroughputPrior, most: int
) -> SpeedFit:
    """As simulated jobs fit their speed, where of several workers whole steps alone are known."""
    batch, fixed = float(program.batch_size), program.batch_rule == "fixed"
    sizes = np.array([(size.nodes, size.workers, size.samples_per_second) for size in speeds], dtype=np.float64)
    nodes, workers, speed = sizes.T
    local = batch / workers if fixed else np.full(len(workers), batch)
    if program.pace is not None:  # steps are stretched in proportion to the samples: that is no guess
        perfect = program.law(program.pace / batch)
        assert isinstance(perfect, ThroughputParams)
        prior = replace(prior, mean=coordinates(perfect, batch))
    rows = StepMeasurements(nodes, workers, local, workers * local / speed, np.where(workers > 1, np.nan, 0.0))
    fit = fit_with_prior(rows, prior, batch)
    each = np.ceil(batch / np.arange(1, most + 1) if fixed else np.full(most, batch)).astype(np.int64)[:, None]
    log_seconds, sigma = np.empty((2, SPANS, most, 1))
    fill_log_speeds(*fit, batch, each, np.zeros_like(each), log_seconds, sigma)
    return SpeedFit(law_at(fit.point, batch), sigma[:, :, 0])


def estimated_curve(program: ProgramSettings, points: tuple[tuple[float, float], ...]) -> AccuracyCurve:
    """The saturating curve closest to what was evaluated; it may yet rise to 1."""
    metric = Metric("validation accuracy", "share", program.guess.untrained)
    return fit_accuracy(by_epoch(program.training, points)[None], metric, headroom=1.0)[0]


def _server_law(program: ProgramSettings, speeds: tuple[Measured, ...]) -> ServerParams | None:
    """Optimus's law fitted to speeds at the program's own batch; None where they do not determine it."""
    if program.batch_rule != "fixed":
        return None
    batch = program.batch_size
    counts = np.array([(size.workers, size.servers) for size in speeds if size.servers], dtype=np.int64).reshape(-1, 2)
    steps = np.array([size.samples_per_second / batch for size in speeds if size.servers])
    if len(counts) < PARAMETERS["sync"]:
        return None
    fit = fit_speed("sync", Probes(counts[:, 0], counts[:, 1], steps))
    a, b, c, d, e = fit.parameters
    if not fit.determined or a <= 0:
        return None
    return ServerParams(a / batch, b, c, d, e, program.servers, program.servers_at_most)
