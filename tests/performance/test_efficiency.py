from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.performance.efficiency import (
    CANDIDATES,
    BatchLimits,
    candidate_batches,
    choose_batch,
    efficiency,
    feasible,
    split_batch,
    useful_gpus,
)
from rlpto.performance.throughput import ThroughputParams

LIMITS = BatchLimits(base=128, largest=4096, min_local=32, max_local=1024)
PARAMS = ThroughputParams(0.02, 0.0007, 0.12, 0.003, 0.04, 0.002, 2.0)
noise_scales = st.floats(0.1, 1e7)
batches = st.integers(LIMITS.base, LIMITS.largest)


@given(noise=noise_scales, batch=batches, larger=batches)
def test_efficiency_is_one_at_the_base_batch_and_falls_beyond(noise: float, batch: int, larger: int) -> None:
    assert efficiency(noise, LIMITS.base, LIMITS.base) == 1
    batch, larger = sorted((batch, larger))
    assert 0 < efficiency(noise, larger, LIMITS.base) <= efficiency(noise, batch, LIMITS.base) <= 1


@given(sqr=st.floats(1e-6, 1e6), var=st.floats(1e-6, 1e6), batch=batches)
def test_gain_agrees_with_its_form_in_gradient_statistics(sqr: float, var: float, batch: int) -> None:
    scale = batch / LIMITS.base
    noise = LIMITS.base * var / sqr
    gain = scale * efficiency(noise, batch, LIMITS.base)
    assert gain == pytest.approx((var + sqr) / (var / scale + sqr))


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


@pytest.mark.parametrize(
    ("batch", "gpus", "local", "accumulation"),
    [
        (4096, 4, 1024, 0),
        (4096, 3, 683, 1),  # 1366 each, twice 683; 3 x 2 x 683 = 4098 is over, see below
        (4096, 2, 1024, 1),
        (4096, 1, 1024, 3),
        (2048, 6, 342, 0),
        (256, 1, 128, 1),  # two gradients are needed to see their noise
        (128, 1, 128, 0),
    ],
)
def test_splits_worked_out_by_hand(batch: int, gpus: int, local: int, accumulation: int) -> None:
    split = split_batch(batch, gpus, LIMITS)
    cap = LIMITS.largest // (gpus * (accumulation + 1))
    assert (int(split.local), int(split.accumulation)) == (min(local, cap), accumulation)


def test_alone_with_accumulation_asked_for_even_the_base_batch_is_halved() -> None:
    split = split_batch(128, 1, LIMITS, accumulate_alone=True)
    assert (int(split.local), int(split.accumulation)) == (64, 1)


def test_candidates_run_from_what_the_gpus_need_to_the_largest() -> None:
    grid = candidate_batches(np.array([1, 64]), LIMITS)
    assert grid.shape == (2, CANDIDATES)
    assert grid[:, 0].tolist() == [128, 2048]
    assert grid[:, -1].tolist() == [4096, 4096]
    assert np.all(np.diff(grid, axis=1) >= 0)


def test_useful_gpus_end_where_the_batch_runs_out() -> None:
    assert useful_gpus(None, 200, LIMITS) == 128
    assert useful_gpus(2048, 200, LIMITS) == 64
    assert useful_gpus(2048, 10, LIMITS) == 10


def test_adaptive_goodput_is_the_best_of_all_batch_sizes_tried_one_by_one() -> None:
    noise = np.array([10.0, 1000.0, 100_000.0])
    found = choose_batch(PARAMS, noise, LIMITS, 2, 16, None).progress
    for gpus in (1, 5, 16):
        for nodes in (1, 2):
            best = np.zeros(3)
            for batch in candidate_batches(np.array([gpus]), LIMITS)[0]:
                split = split_batch(int(batch), gpus, LIMITS)
                if feasible(split, LIMITS):
                    seconds = PARAMS.step_time(nodes, gpus, split.local, split.accumulation)
                    best = np.maximum(best, split.total / seconds * efficiency(noise, split.total, LIMITS.base))
            np.testing.assert_allclose(found[nodes - 1, gpus - 1], best)


def test_adapting_beats_a_fixed_batch_but_for_the_grid() -> None:
    noise = np.geomspace(10, 1e6, 30)
    adaptive = choose_batch(PARAMS, noise, LIMITS, 2, 16, None).progress
    for batch in (512, 4096):
        fixed = choose_batch(PARAMS, noise, LIMITS, 2, 16, batch).progress
        assert np.all(adaptive >= fixed * 0.97)


def test_noisier_gradients_are_worth_more_gpus() -> None:
    found = choose_batch(PARAMS, np.array([10.0, 1e6]), LIMITS, 2, 16, None).progress[1]
    speedup = found[15] / found[0]
    assert speedup[1] > speedup[0]


def test_more_gpus_than_the_batch_allows_have_no_goodput_of_their_own() -> None:
    assert np.isnan(choose_batch(PARAMS, np.ones(1), LIMITS, 1, 130, None).progress[0, 128:]).all()
