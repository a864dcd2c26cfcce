"""Metrics that jobs choose their batch size by: what they make of it, and what policies are told."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.io.arrays import FloatArray
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.efficiency import BatchLimits, choose_batch
from rlpto.performance.measured import MeasuredProfiles
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.performance.throughput import ThroughputParams

LIMITS = BatchLimits(base=128, largest=4096, min_local=32, max_local=1024)
LAW = ThroughputParams(0.02, 0.0007, 0.12, 0.003, 0.04, 0.002, 2.0)
MODELS = ("bert", "cifar10", "imagenet")


def tables_of(metric: str) -> SpeedTables:
    return compile_tables(load_profiles(None), [JobType(model, None, metric) for model in MODELS], 16, 4)


@given(noise=st.floats(1.0, 1e6), gpus=st.integers(1, 16), exponent=st.floats(0.0, 3.0))
def test_the_less_efficiency_counts_the_larger_the_batch_and_the_smaller_the_progress(
    noise: float, gpus: int, exponent: float
) -> None:
    at = (0 if gpus <= 4 else 1, gpus - 1, 0)
    goodput, other, throughput = (
        choose_batch(LAW, np.array([noise]), LIMITS, 2, gpus, None, weight) for weight in (1.0, exponent, 0.0)
    )
    assert goodput.score[at] == goodput.progress[at]
    assert other.progress[at] <= goodput.progress[at]
    ascending = [goodput, other] if exponent <= 1 else [other, goodput]
    assert ascending[0].batch[at] <= ascending[1].batch[at] <= throughput.batch[at]
    useful = (noise + LIMITS.base) / (noise + other.batch[at])
    assert other.score[at] == pytest.approx(other.progress[at] * useful ** (exponent - 1), rel=1e-9)


def one_gpu(tables: SpeedTables) -> FloatArray:
    return tables.packed_rows(4)[:, 1]


def test_policies_are_told_the_score_in_units_of_the_rate_with_one_gpu() -> None:
    goodput, throughput = tables_of("goodput"), tables_of("throughput")
    alone, rows = one_gpu(throughput), throughput.packed_rows(4)
    np.testing.assert_allclose(throughput.shown_rates[alone], throughput.rates[alone])
    assert np.all(throughput.rates[1:] <= goodput.rates[1:] * (1 + 1e-12)), "progress is true"
    profiles = load_profiles(None)
    found = choose_batch(
        profiles.profile("imagenet").throughput, np.ones(1), profiles.facts("imagenet").batch, 2, 16, None, 0.0
    )
    told = throughput.shown_rates[rows[2, [1, 16]], 0]
    assert told[1] / told[0] == pytest.approx(found.score[1, 15, 0] / found.score[0, 0, 0])


@pytest.mark.parametrize("batch", [None, 24])
def test_measured_speeds_by_metric(measured_folder: Path, batch: int | None) -> None:
    profiles = MeasuredProfiles(measured_folder)
    goodput, throughput = (
        compile_tables(profiles, [JobType("toy", batch, metric)], 8, 4) for metric in ("goodput", "throughput")
    )
    assert np.all(throughput.rates <= goodput.rates * (1 + 1e-12))
    if batch is None:
        assert np.any(throughput.rates < goodput.rates * 0.99)
    alone = one_gpu(throughput)
    np.testing.assert_allclose(throughput.shown_rates[alone], throughput.rates[alone])
