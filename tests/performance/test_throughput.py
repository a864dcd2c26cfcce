from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.io.errors import ProfileError
from rlpto.performance.throughput import (
    StepMeasurements,
    ThroughputParams,
    fit_throughput,
    gradient_time,
    relative_errors,
    sync_time,
)

PARAMS = ThroughputParams(0.05, 0.002, 0.2, 0.005, 0.06, 0.002, 1.8)


def positive(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


params_strategy = st.builds(
    ThroughputParams,
    alpha_c=positive(0.01, 0.3),
    beta_c=positive(1e-4, 0.02),
    alpha_n=positive(0.05, 1.0),
    beta_n=positive(1e-4, 0.01),
    alpha_r=positive(0.02, 0.3),
    beta_r=positive(1e-4, 0.005),
    gamma=positive(1.0, 3.0),
)


def measured(params: ThroughputParams, sizes: list[tuple[int, int]], batches: list[int]) -> StepMeasurements:
    grid = np.array([(nodes, gpus, batch) for nodes, gpus in sizes for batch in batches], dtype=np.float64)
    nodes, gpus, batch = grid.T
    step = params.step_time(nodes, gpus, batch)
    return StepMeasurements(nodes, gpus, batch, step, step - gradient_time(params, batch))


SIZES = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 4), (2, 8), (4, 8), (4, 16), (8, 16), (8, 32), (16, 64)]


@settings(max_examples=4)
@given(params=params_strategy)
def test_fit_recovers_the_throughput_of_the_parameters_behind_the_measurements(params: ThroughputParams) -> None:
    rows = measured(params, SIZES, [8, 32, 128])
    fitted = fit_throughput(rows)
    sizes = rows.nodes, rows.replicas, rows.local_batch
    np.testing.assert_allclose(1 / fitted.step_time(*sizes), 1 / params.step_time(*sizes), rtol=0.05)


def test_fit_is_not_bent_by_a_few_wild_rows() -> None:
    rows = measured(PARAMS, SIZES, [8, 32, 128])
    wild = rows.step_time.copy()
    wild[[3, 20]] *= 10
    fitted = fit_throughput(replace(rows, step_time=wild))
    assert np.median(relative_errors(fitted, rows)) < 0.03


def test_fit_without_rows_of_several_nodes_takes_them_to_be_dearer_than_one() -> None:
    fitted = fit_throughput(measured(PARAMS, [(1, 1), (1, 2), (1, 4)], [8, 32, 128]))
    assert fitted.alpha_n == pytest.approx(1.1 * fitted.alpha_r)
    assert fitted.step_time(2, 4, 32) > fitted.step_time(1, 4, 32)


def test_fit_of_one_local_batch_splits_the_computing_time_in_halves() -> None:
    fitted = fit_throughput(measured(PARAMS, SIZES, [32]))
    assert fitted.alpha_c == pytest.approx(float(gradient_time(PARAMS, 32)) / 2)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
def test_fit_refuses_times_that_are_not_positive(bad: float) -> None:
    rows = measured(PARAMS, [(1, 1), (1, 2)], [8, 16])
    rows.step_time[1] = bad
    with pytest.raises(ProfileError, match="positive seconds"):
        fit_throughput(rows)


@given(params=params_strategy, gpus=st.integers(2, 64), nodes=st.integers(1, 16), batch=st.integers(1, 1000))
def test_overlap_lies_between_the_longer_part_and_the_sum(
    params: ThroughputParams, gpus: int, nodes: int, batch: int
) -> None:
    compute, synchronise = float(gradient_time(params, batch)), float(sync_time(params, nodes, gpus))
    step = float(params.step_time(nodes, gpus, batch))
    assert max(compute, synchronise) * (1 - 1e-12) <= step <= (compute + synchronise) * (1 + 1e-12)


def test_step_time_follows_the_formula() -> None:
    compute = 0.05 + 0.002 * 100
    one_node, several = 0.06 + 0.002 * 2, 0.2 + 0.005 * 6
    step = PARAMS.step_time([1, 2], [4, 8], 100, [0, 3])
    assert step[0] == pytest.approx((compute**1.8 + one_node**1.8) ** (1 / 1.8))
    assert step[1] == pytest.approx(3 * compute + (compute**1.8 + several**1.8) ** (1 / 1.8))
