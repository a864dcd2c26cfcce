"""How the learning rate follows a global batch that grows or shrinks with the workers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from torch.optim import Optimizer

from rlpto.ray_cluster.messages import LrRule


def learning_rate_factor(rule: LrRule, scale: float, gain: float) -> float:
    """Factor on the learning rate of a step with `scale` times the job's batch size, worth `gain` steps of it.

    linear: Goyal et al. (arXiv 1706.02677). sqrt: Krizhevsky (arXiv 1404.5997). adascale: Johnson et al. (ICML 2020),
    the gain itself.
    """
    if rule == "linear":
        return scale
    if rule == "sqrt":
        return math.sqrt(scale)
    return gain if rule == "adascale" else 1.0


@contextmanager
def scaled(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """Learning rates times `factor` inside, where 1 touches nothing. Schedulers go on seeing the unscaled ones."""
    if factor == 1.0:
        yield
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
