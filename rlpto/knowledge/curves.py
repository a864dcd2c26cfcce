"""Part of its training that a job has done, foretold from its accuracy so far: training ends after the curve flattens.

The idea of Optimus (Peng et al., EuroSys 2018) and SLAQ (Zhang et al., SoCC 2017), without a declared target: the gain
over the last half of a job's epochs, as a share of its whole gain, is compared with the curves of other models at every
part of their training. The part is a distribution, uniform before anything is known (as for lengths with the heavy tail
1 / x), so that a curve which says nothing leaves the rule of unknown work.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rlpto.io.arrays import FloatArray
from rlpto.knowledge.prior import others_than

_EDGES = np.linspace(0.0, 1.0, 51)
_PARTS = (_EDGES[1:] + _EDGES[:-1]) / 2
SPREAD = 1.0
"""Standard deviation of the logarithm of the recent gain, from one model's curve to another's at the same part."""
LEAST_GAIN = 1e-4


def recent_gain(start: FloatArray, half: FloatArray, now: FloatArray) -> FloatArray:
    """Logarithm of the gain in accuracy since half of the epochs, as a share of all that was gained; any shape.

    start, half, now: accuracy at the beginning, at half of the epochs done and after them. NaN where nothing was
    gained.
    """
    gained = now - start
    share = np.divide(now - half, gained, out=np.full(np.shape(gained), np.nan), where=gained > LEAST_GAIN)
    return np.asarray(np.log(np.clip(share, LEAST_GAIN, 1.0)))


def parts_done(model: str, gain: FloatArray, quantile: float) -> FloatArray:
    """[n] parts of its training that jobs of a model are believed to have done, by other models' curves.

    gain: [n] as `recent_gain`, NaN: not known. quantile: of the distribution of that part; low ones believe in
    more work left.
    """
    error = np.nan_to_num((gain[:, None, None] - _gains_without(model)) / SPREAD)
    weight = np.exp(-0.5 * np.minimum(error**2, 50.0)).sum(axis=1)
    below = np.cumsum(weight, axis=1)
    return np.array([np.interp(quantile * row[-1], np.append(0.0, row), _EDGES) for row in below])


@cache
def _gains_without(model: str) -> FloatArray:
    """[models, parts] recent gain of all built-in models but the one of that name, see `others_than`."""
    gains = []
    for profile in others_than(model, least=1):
        done = _PARTS * profile.epochs
        gains.append(recent_gain(*(profile.accuracy(part * done) for part in (0.0, 0.5, 1.0))))
    return np.array(gains)
