"""Step times and their fit; gradient noise, efficiency, and how batches are split and chosen."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.io.errors import ProfileError
from rlpto.performance.efficiency import (
    MAX_KNOTS,
    BatchLimits,
    NoiseCurve,
    choose_batch,
    efficiency,
    fit_noise,
    split_batch,
    splits,
)
from rlpto.performance.throughput import (
    ThroughputParams,
    fit_throughput,
    gradient_time,
    relative_errors,
)

from ..builders import measured_steps

LIMITS = BatchLimits(base=128, largest=4096, min_local=32, max_local=1024)
PARAMS = ThroughputParams(0.02, 0.0007, 0.12, 0.003, 0.04, 0.002, 2.0)
noise_scales = st.floats(0.1, 1e7)
batches = st.integers(LIMITS.base, LIMITS.largest)


@given(batch=batches, gpus=st.integers(1, 200))
def test_a_split_holds_the_batch_and_the_limits(batch: int, gpus: int) -> None:
    split = split_batch(batch, gpus, LIMITS)
    assert split.total <= LIMITS.largest
    assert split.local <= LIMITS.max_local
    computations = gpus * (int(split.accumulation) + 1)
    # Rounding up gives at least the batch asked for, unless the largest batch caps it.
    assert split.total >= min(batch, LIMITS.largest - computations + 1)
    assert split.total < batch + 2 * computations
    assert gpus > 1 or batch == LIMITS.base or split.accumulation >= 1


def test_adaptive_goodput_is_the_best_of_all_batch_sizes_tried_one_by_one() -> None:
    noise = np.array([10.0, 1000.0, 100_000.0])
    found = choose_batch(PARAMS, noise, LIMITS, 2, 16, None).progress
    for gpus in (1, 5, 16):
        for nodes in (1, 2):
            best = np.zeros(3)
            every = splits(None, np.array([gpus]), LIMITS)
            for local, accumulation in zip(every.local[0], every.accumulation[0], strict=True):
                if LIMITS.min_local <= local <= LIMITS.max_local:
                    seconds = PARAMS.step_time(nodes, gpus, local, accumulation)
                    total = gpus * local * (accumulation + 1)
                    best = np.maximum(best, total / seconds * efficiency(noise, total, LIMITS.base))
            np.testing.assert_allclose(found[nodes - 1, gpus - 1], best)


def test_curve_is_linear_in_the_logarithm_and_constant_outside() -> None:
    curve = NoiseCurve((1.0, 3.0), (10.0, 1000.0))
    np.testing.assert_allclose(curve([0, 1, 2, 3, 9]), [10, 10, 100, 1000, 1000])


def test_fit_follows_a_curve_with_few_bends_exactly() -> None:
    truth = NoiseCurve((0.0, 5.0, 30.0, 59.0), (50.0, 3000.0, 4000.0, 90_000.0))(np.arange(60))
    fitted, error = fit_noise(np.ones((3, 60)), np.tile(truth / 128, (3, 1)), 128)
    assert error < 1e-6
    assert len(fitted.epochs) <= MAX_KNOTS
    np.testing.assert_allclose(fitted(np.arange(60)), truth, rtol=1e-6)


def test_estimates_that_are_not_positive_are_left_out() -> None:
    sqr = np.ones((2, 6))
    sqr[0, 2] = -1.0
    fitted, _ = fit_noise(sqr, np.full((2, 6), 4.0), 10)
    np.testing.assert_allclose(fitted(np.arange(6)), 40.0)
    sqr[1, 2] = 0.0
    with pytest.raises(ProfileError, match="epoch 2"):
        fit_noise(sqr, np.full((2, 6), 4.0), 10)


LAW = ThroughputParams(0.05, 0.002, 0.2, 0.005, 0.06, 0.002, 1.8)


SIZES = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 4), (2, 8), (4, 8), (4, 16), (8, 16), (8, 32), (16, 64)]


def test_fit_finds_the_law_and_is_not_bent_by_a_few_wild_rows() -> None:
    rows = measured_steps(LAW, SIZES, [8, 32, 128])
    assert relative_errors(fit_throughput(rows), rows).max() < 0.05
    wild = rows.step_time.copy()
    wild[[3, 20]] *= 10
    fitted = fit_throughput(replace(rows, step_time=wild))
    assert np.median(relative_errors(fitted, rows)) < 0.03


def test_a_fit_to_little_is_completed() -> None:
    # Without rows of several nodes these are taken to be dearer than one; of one batch half is the computing time.
    fitted = fit_throughput(measured_steps(LAW, [(1, 1), (1, 2), (1, 4)], [8, 32, 128]))
    assert fitted.alpha_n == pytest.approx(1.1 * fitted.alpha_r)
    assert fitted.step_time(2, 4, 32) > fitted.step_time(1, 4, 32)
    fitted = fit_throughput(measured_steps(LAW, SIZES, [32]))
    assert fitted.alpha_c == pytest.approx(float(gradient_time(LAW, 32)) / 2)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
def test_fit_refuses_times_that_are_not_positive(bad: float) -> None:
    rows = measured_steps(LAW, [(1, 1), (1, 2)], [8, 16])
    rows.step_time[1] = bad
    with pytest.raises(ProfileError, match="positive seconds"):
        fit_throughput(rows)


def test_step_time_follows_the_formula() -> None:
    compute = 0.05 + 0.002 * 100
    one_node, several = 0.06 + 0.002 * 2, 0.2 + 0.005 * 6
    step = LAW.step_time([1, 2], [4, 8], 100, [0, 3])
    assert step[0] == pytest.approx((compute**1.8 + one_node**1.8) ** (1 / 1.8))
    assert step[1] == pytest.approx(3 * compute + (compute**1.8 + several**1.8) ** (1 / 1.8))
