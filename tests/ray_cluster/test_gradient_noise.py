"""Estimates of the gradient noise scale, on gradients whose noise is known, and what follows from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.optim import SGD

from rlpto.io.arrays import FloatArray
from rlpto.ray_cluster.worker.gradient_noise import MEASURE_EVERY_STEPS, NoiseMeter, estimate
from rlpto.ray_cluster.worker.worker_group import SingleWorker, learning_rate_factor, mean_inverse

DIMENSIONS, NOISE, SIGNAL = 50, 3.0, 2.0
TRUE_SQUARE, TRUE_TRACE = SIGNAL**2, NOISE**2 * DIMENSIONS


def gradient(generator: np.random.Generator, samples: int) -> FloatArray:
    """Mean of `samples` noisy gradients around a true one of length SIGNAL."""
    true = np.full(DIMENSIONS, SIGNAL / math.sqrt(DIMENSIONS))
    return true + generator.normal(0, NOISE / math.sqrt(samples), DIMENSIONS)


@pytest.mark.parametrize("batch", [(32, 32), (8, 8, 8, 8), (22, 21, 21), (2, 1)])
def test_several_workers_find_signal_and_noise(batch: tuple[int, ...]) -> None:
    generator = np.random.default_rng(1)
    total, found = sum(batch), []
    for _ in range(4000):
        own = [gradient(generator, samples) for samples in batch]
        mean = np.sum([part * samples / total for part, samples in zip(own, batch, strict=True)], axis=0)
        local = float(np.mean([part @ part for part in own]))
        found.append(estimate(local, float(mean @ mean), mean_inverse(total, len(batch)), 1 / total))
    square, trace = np.mean(found, axis=0)
    assert trace == pytest.approx(TRUE_TRACE, rel=0.02)
    assert square == pytest.approx(TRUE_SQUARE, abs=0.02 * TRUE_TRACE / total + 0.1)


@pytest.mark.slow
def test_one_worker_finds_them_from_successive_gradients() -> None:
    generator = np.random.default_rng(2)
    model = torch.nn.Linear(DIMENSIONS, 1, bias=False)
    group, meter = SingleWorker(model, SGD(model.parameters(), lr=0.0)), NoiseMeter()
    model.weight.grad = torch.zeros_like(model.weight)
    measured = 0
    for step in range(16_000):
        samples = 40 if step % 7 else 13  # the last batch of an epoch is short
        # In place, as after `zero_grad(set_to_none=False)`: what is compared later has to be a copy.
        model.weight.grad.copy_(torch.from_numpy(gradient(generator, samples)).reshape(1, -1))
        group.begin(step, samples, samples)
        found = group.update(1.0)
        if found is not None:
            meter.add(found)
            measured += 1
    assert measured == 16_000 // MEASURE_EVERY_STEPS
    assert meter.noise_scale == pytest.approx(TRUE_TRACE / TRUE_SQUARE, rel=0.1)


def test_a_larger_batch_is_worth_between_one_step_and_its_size() -> None:
    meter = NoiseMeter()
    for nothing in (math.inf, math.nan):
        meter.add((nothing, 1.0))
    assert math.isnan(meter.noise_scale)
    assert (meter.gain(4.0, 64), meter.gain(0.5, 64)) == (1.0, 0.5)
    meter.add((-1.0, 10.0))  # less signal than noise explains
    assert (meter.noise_scale, meter.gain(4.0, 64)) == (math.inf, 4.0)
    meter.add((2.0, 32.0))
    noise = meter.noise_scale
    assert meter.gain(1.0, 64) == 1.0
    # (noise + M0) / (noise + M), times M / M0: Pollux's efficiency times the scale.
    assert meter.gain(4.0, 64) == pytest.approx(4 * (noise + 64) / (noise + 256))
    assert 1 < meter.gain(4.0, 64) < 4


def test_rules_of_the_learning_rate() -> None:
    assert [learning_rate_factor(rule, 4.0, 2.5) for rule in ("none", "linear", "sqrt", "adascale")] == [1, 4, 2, 2.5]
    model = torch.nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    seen = []

    def look(*_: object) -> None:
        seen.append(optimizer.param_groups[0]["lr"])
        if len(seen) == 2:
            raise RuntimeError("in between")

    optimizer.register_step_pre_hook(look)
    group = SingleWorker(model, optimizer)
    group.update(4.0)
    with pytest.raises(RuntimeError, match="in between"):
        group.update(4.0)
    assert (seen, optimizer.param_groups[0]["lr"]) == ([0.4, 0.4], 0.1), "a schedule sees its own rate"


def test_only_successive_gradients_are_compared() -> None:
    model = torch.nn.Linear(2, 1)
    group = SingleWorker(model, SGD(model.parameters(), lr=0.0))
    model(torch.ones(1, 2)).sum().backward()
    compared = []
    turn = MEASURE_EVERY_STEPS
    for step in (0, 1, turn, 2 * turn + 1, 1, 3 * turn, 3 * turn + 1):
        group.begin(step, 4, 4)
        compared.append(group.update(1.0) is not None)
    assert compared == [False, True, False, False, False, False, True]
