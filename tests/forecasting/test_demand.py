"""Forecasts of demand by minute: calibrated sums, the same online and at once, and files that cannot harm."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlpto.forecasting.demand_network as network
from rlpto.forecasting.demand import COLUMNS, HORIZONS, DemandForecaster, demand_ahead, load_demand
from rlpto.forecasting.registry import load, make_forecaster
from rlpto.forecasting.series import ForecastError
from rlpto.forecasting.storage import read_state, write_state
from rlpto.io.arrays import AnyArray, FloatArray

MONDAY = 1_488_758_400.0
"""2017-03-06 0:00."""

LEVELS = [0.1, 0.5, 0.8, 0.9, 0.99]


def bursts(days: int, seed: int = 0) -> FloatArray:
    """Nine of ten minutes are empty; for some minutes after a first job many more come, mostly by day."""
    rng, minutes = np.random.default_rng(seed), 1440 * days
    quiet = rng.random(minutes) < 0.02 * (1 + np.sin(2 * np.pi * (np.arange(minutes) / 1440 - 0.25)))
    rate = np.convolve(quiet * rng.pareto(4.0, minutes) * 9, 0.8 ** np.arange(20))[:minutes]
    jobs = rng.poisson(rate)
    return np.stack([jobs, jobs * rng.choice([1, 4, 8], minutes)], axis=1).astype(float)


@pytest.fixture(scope="module")
def counts() -> FloatArray:
    return bursts(8)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LEAST_UPDATES", 2)
    monkeypatch.setattr(network, "MOST_UPDATES", 2)


@pytest.fixture(scope="module")
def fitted(counts: FloatArray) -> DemandForecaster:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "LEAST_UPDATES", 20)
        patch.setattr(network, "MOST_UPDATES", 20)
        return DemandForecaster(seed=3).fit(counts[: 3 * 1440], MONDAY)


@pytest.mark.slow
def test_forecasts_of_bursts_are_better_than_the_mean_and_calibrated(counts: FloatArray) -> None:
    fitted = DemandForecaster(seed=3).fit(counts[: 6 * 1440], MONDAY)
    found, sums = fitted.batch(counts, MONDAY, LEVELS), demand_ahead(counts, HORIZONS)
    later = slice(6 * 1440, len(counts) - 15)
    for place in range(len(HORIZONS)):
        for column in range(2):
            came, mean = sums[later, place, column], found.mean[later, place, column]
            constant = sums[: 6 * 1440 - 15, place, column].mean()
            assert np.square(came - mean).sum() < 0.95 * np.square(came - constant).sum()
            assert 0.7 < mean.mean() / came.mean() < 1.4
            for level, quantile in zip(LEVELS[2:], found.quantiles[later, place, column].T[2:], strict=True):
                assert (came <= quantile).mean() > level - 0.04
                assert (came < quantile).mean() < level + 0.04


def test_online_forecasts_equal_those_of_a_whole_series(counts: FloatArray, fitted: DemandForecaster) -> None:
    whole = fitted.batch(counts[:300], MONDAY + 60, LEVELS)
    for begun in (0, 1, 290):
        fitted.begin(counts[:begun], MONDAY + 60)
        for minute in range(begun, 300):
            if minute in (begun, begun + 1, 299):
                now = fitted.predict(LEVELS)
                np.testing.assert_allclose(now.mean, whole.mean[minute], rtol=1e-6)
                np.testing.assert_allclose(now.quantiles, whole.quantiles[minute], rtol=1e-6)
            fitted.update(counts[minute])


def test_a_row_knows_nothing_of_what_comes_after(counts: FloatArray, fitted: DemandForecaster) -> None:
    other = np.concatenate([counts[:100], np.full((50, 2), 7.0)])
    one, two = fitted.batch(counts[:150], MONDAY), fitted.batch(other, MONDAY)
    np.testing.assert_allclose(one.mean[:101], two.mean[:101], rtol=1e-9)
    assert not np.allclose(one.mean[101], two.mean[101])


@pytest.mark.usefixtures("quick")
def test_the_same_seed_gives_the_same_forecasts_and_another_one_others(counts: FloatArray) -> None:
    one, two, other = (DemandForecaster(seed).fit(counts[:2000], MONDAY).begin(counts[:50], 0.0) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.predict().mean, two.predict().mean)
    assert (one.predict().mean != other.predict().mean).any()


@pytest.mark.usefixtures("quick")
@settings(deadline=None, max_examples=12)
@given(
    level=st.sampled_from([0.0, 1e-3, 1.0, 1e5, 1e9]),
    shape=st.sampled_from(["constant", "spike", "late", "noise"]),
    newer=st.sampled_from([0.0, 1.0, 1e9]),
)
def test_forecasts_of_any_counts_are_finite_and_bounded(level: float, shape: str, newer: float) -> None:
    minutes = np.arange(1500)
    noise = np.random.default_rng(0).random(1500)
    factor = {"constant": np.ones(1500), "spike": minutes == 700, "late": minutes > 1490, "noise": noise}[shape]
    counts = np.stack([level * factor, np.ones(1500)], axis=1)
    forecaster = DemandForecaster(horizons=[1, 15]).fit(counts, MONDAY)
    found = forecaster.batch(np.concatenate([counts[:50], np.full((50, 2), newer)]), MONDAY, LEVELS)
    most = 2 * demand_ahead(counts, [1, 15])[: 1500 + 1 - 15].max(axis=0)
    for numbers in (found.mean, *np.moveaxis(found.quantiles, -1, 0)):
        assert np.isfinite(numbers).all()
        assert (numbers >= 0).all()
        assert (numbers <= most * (1 + 1e-9)).all()
    assert (np.diff(found.quantiles, axis=-1) >= 0).all()


@pytest.mark.parametrize(
    ("counts", "start", "said"),
    [
        (np.ones((1454, 2)), 0.0, "demand of 1,454 minutes: expected at least 1,455, a day"),
        (np.ones(3000), 0.0, r"demand of shape \(3000,\): expected jobs and GPUs"),
        (np.full((2000, 2), np.nan), 0.0, "jobs nan in minute 0: expected a count, 0 to 1e"),
        (np.pad(np.ones((1999, 2)), ((0, 1), (0, 0)), constant_values=-1), 0.0, "jobs -1 in minute 1999"),
        (np.array([[1.0, 2e9]] * 2000), 0.0, r"GPUs 2e\+09 in minute 0"),
        ([["a", 1]] * 2000, 0.0, "demand: expected numbers"),
        (np.ones((2000, 2)), np.nan, "start nan s: expected seconds since 1970-01-01"),
    ],
)
def test_broken_counts_are_refused_by_their_minute(counts: AnyArray, start: float, said: str) -> None:
    with pytest.raises(ForecastError, match=said) as caught:
        DemandForecaster().fit(counts, start)
    assert "\n" not in str(caught.value)


def test_what_is_asked_too_early_or_out_of_range_is_refused(counts: FloatArray, fitted: DemandForecaster) -> None:
    for horizons in ([], [5, 5], [15, 5], [0], [1441], [2.5]):
        with pytest.raises(ForecastError, match="horizon"):
            DemandForecaster(horizons=horizons)  # type: ignore[arg-type]
    with pytest.raises(ForecastError, match="nothing fitted yet"):
        DemandForecaster().begin(counts, MONDAY)
    with pytest.raises(ForecastError, match="no history yet, call begin first"):
        DemandForecaster().predict()
    for level in (0.0, 1.0, np.nan):
        with pytest.raises(ForecastError, match="expected levels between 0 and 1"):
            fitted.batch(counts[:5], MONDAY, [0.5, level])
    for minute, said in (([1.0, np.nan], "GPUs nan in minute 0"), ([], r"demand of shape \(1, 0\)")):
        with pytest.raises(ForecastError, match=said):
            fitted.begin(counts[:5], MONDAY).update(np.array(minute))


def test_a_saved_forecaster_forecasts_the_same(counts: FloatArray, fitted: DemandForecaster, tmp_path: Path) -> None:
    fitted.save(tmp_path / "demand.safetensors")
    read = load_demand(tmp_path / "demand.safetensors")
    one, two = fitted.batch(counts[:300], MONDAY), read.batch(counts[:300], MONDAY)
    np.testing.assert_allclose(one.mean, two.mean, rtol=1e-9)
    np.testing.assert_array_equal(one.quantiles, two.quantiles)
    assert read.horizons == HORIZONS
    with pytest.raises(ForecastError, match="no history yet"):
        read.predict()


def first(to: float) -> Callable[[AnyArray], AnyArray]:
    return lambda array: np.concatenate([[to], array.ravel()[1:]]).reshape(array.shape)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("most", first(np.nan), "most: expected finite numbers"),
        ("most", first(-1.0), "most: expected numbers, 0 to 20000"),
        ("most", first(1e9), "most: expected numbers, 0 to 20000"),
        ("scale", first(0.0), "scale: expected numbers, 0.001 to 100"),
        ("held", first(0.9), "held: expected ascending levels"),
        ("unit", lambda array: array[:2], r"unit of float64 \(2,\): expected float64 \(6,\)"),
        ("weights.out.bias", first(1e9), "weights.out.bias: expected finite numbers, 1e\\+06 at most"),
        ("weights.mix.weight", lambda array: array.astype(np.float32), "weights.mix.weight of float32"),
        ("horizons", [5, 10], r"base of float64 \(6,\): expected float64 \(4,\)|centre|most|unit|held"),
        ("horizons", 7, "broken, expected a saved DemandForecaster"),
        ("horizons", [10**9], "horizon 1000000000: expected an integer, 1 to 1440"),
        ("shell", "rm", "broken, expected a saved DemandForecaster"),
    ],
)
def test_forged_values_are_refused_by_name(
    fitted: DemandForecaster, tmp_path: Path, name: str, change: object, said: str
) -> None:
    fitted.save(tmp_path / "demand.safetensors")
    kind, state = read_state(tmp_path / "demand.safetensors")
    if callable(change):
        state.arrays[name] = change(state.arrays[name])
    else:
        state.values[name] = change
    write_state(tmp_path / "forged", kind, state)
    with pytest.raises(ForecastError, match=said) as caught:
        load_demand(tmp_path / "forged")
    assert str(caught.value).startswith(f"{tmp_path / 'forged'}: ")
    assert "\n" not in str(caught.value)


def test_files_of_other_forecasters_are_refused_and_the_other_way_round(
    fitted: DemandForecaster, tmp_path: Path
) -> None:
    make_forecaster("naive").fit(np.ones(20), step="1h").save(tmp_path / "hours")
    with pytest.raises(ForecastError, match="hours: forecaster 'Naive': expected DemandForecaster, as `rlpto forecast"):
        load_demand(tmp_path / "hours")
    fitted.save(tmp_path / "minutes")
    with pytest.raises(ForecastError, match="minutes: forecaster 'DemandForecaster': expected one of Naive"):
        load(tmp_path / "minutes")
    (tmp_path / "text").write_text("time,jobs\n")
    with pytest.raises(ForecastError, match=r"text: .*expected rlpto forecaster 1"):
        load_demand(tmp_path / "text")
    assert COLUMNS == ("jobs", "GPUs")
