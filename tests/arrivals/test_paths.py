"""Joint sample paths: their means, their spread, and how they hang together."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.arrivals.paths import LEAST_ORIGINS, PathMemory, sample_paths
from rlpto.core.cluster import Forecast
from rlpto.io.arrays import FloatArray, IntArray

MEAN = np.array([[4.0, 1.0, 0.2], [6.0, 2.0, 0.2], [8.0, 0.0, 0.2], [5.0, 1.0, 0.2]])
"""[H, K] of a forecast."""


def bursty_past(origins: int = 400, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Forecasts that were right on average; all series come in bursts that last as long as a path."""
    rng = np.random.default_rng(seed)
    mean = np.tile(np.array([5.0, 1.5, 0.3]), (origins, len(MEAN), 1))
    level = rng.gamma(1.0, 1.0, (origins, 1, 1))
    return mean, rng.poisson(mean * level).astype(float)


def drawn(past: tuple[FloatArray, FloatArray], paths: int = 4000, seed: int = 1) -> IntArray:
    return sample_paths(MEAN, *past, paths, np.random.default_rng(seed))


def test_means_are_those_of_the_forecast_and_spread_is_that_of_past_errors() -> None:
    found = drawn(bursty_past())
    np.testing.assert_allclose(found.mean(axis=0), MEAN, rtol=0.1, atol=0.03)
    # Bursts of variance 1 around a mean m give the variance m + m**2.
    np.testing.assert_allclose(found.var(axis=0)[:, 0], (MEAN + MEAN**2)[:, 0], rtol=0.3)


def test_steps_and_series_hang_together_as_past_errors_did() -> None:
    past = bursty_past()
    found = drawn(past)

    def together(counts: FloatArray | IntArray, one: tuple[int, int], other: tuple[int, int]) -> float:
        return float(np.corrcoef(counts[:, *one], counts[:, *other])[0, 1])

    for one, other in (((0, 0), (3, 0)), ((0, 0), (0, 1))):
        assert abs(together(found, one, other) - together(past[1], one, other)) < 0.1
        assert together(found, one, other) > 0.5
    rng = np.random.default_rng(0)
    independent = drawn((past[0], rng.permuted(past[1], axis=0)))
    assert abs(together(independent, (0, 0), (3, 0))) < 0.1


def test_a_few_paths_are_spread_over_small_and_large_ones() -> None:
    """The mean volume of 16 paths varies less from draw to draw than that of 16 independent paths would."""
    past = bursty_past()
    means = [drawn(past, 16, seed).sum(axis=(1, 2)).mean() for seed in range(100)]
    assert np.std(means) < 0.6 * drawn(past).sum(axis=(1, 2)).std() / np.sqrt(16)


def test_without_a_past_counts_are_poisson() -> None:
    few = tuple(part[: LEAST_ORIGINS - 1] for part in bursty_past())
    found = drawn((few[0], few[1]))
    np.testing.assert_allclose(found.mean(axis=0), MEAN, rtol=0.1, atol=0.03)
    np.testing.assert_allclose(found.var(axis=0), MEAN, rtol=0.15, atol=0.03)


@given(
    seed=st.integers(0, 1000),
    origins=st.integers(0, 60),
    paths=st.integers(1, 40),
    size=st.floats(0, 1e6),
)
@settings(max_examples=40)
def test_paths_are_whole_and_reproducible(seed: int, origins: int, paths: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    past = size * rng.random((origins, 3, 2)), np.floor(size * rng.random((origins, 3, 2)) ** 3)
    mean = size * rng.random((3, 2))
    mean[0, 0] = 0
    one, two = (sample_paths(mean, *past, paths, np.random.default_rng(seed)) for _ in range(2))
    assert one.shape == (paths, 3, 2)
    assert one.dtype == np.int64
    assert (one >= 0).all()
    assert not one[:, 0, 0].any()
    np.testing.assert_array_equal(one, two)


def forecast_of(mean: float) -> Forecast:
    means = np.full((2, 1), mean)
    return Forecast(means, means, means, demand=0.0)


def test_only_origins_whose_steps_are_over_are_remembered() -> None:
    memory = PathMemory(horizon=2, series=1, most=3)
    for at in range(6):
        memory.add(None if at == 3 else forecast_of(float(at)), np.array([10.0 * at]))
    mean, counts = memory.paths()
    assert mean[:, 0, 0].tolist() == [1, 2, 4]
    assert counts[..., 0].tolist() == [[10, 20], [20, 30], [40, 50]]
    empty = PathMemory(horizon=2, series=3).paths()
    assert empty[0].shape == empty[1].shape == (0, 2, 3)
