"""The order in which jobs that grow are placed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlpto.simulator.allocating import sort_growing


@given(seed=st.integers(0, 10_000), jobs=st.integers(1, 80), most=st.integers(1, 40))
def test_jobs_that_get_most_come_first_or_those_first_in_an_order(seed: int, jobs: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    gpus, order = rng.integers(1, most + 1, jobs), rng.permutation(jobs)
    growing = np.sort(rng.permutation(jobs)[: rng.integers(1, jobs + 1)])
    by_size, by_order = growing.copy(), growing.copy()
    sort_growing(by_size, gpus, order, 0)
    sort_growing(by_order, gpus, order, 1)
    assert by_size.tolist() == growing[np.argsort(-gpus[growing], kind="stable")].tolist()
    assert by_order.tolist() == [row for row in order.tolist() if row in set(growing.tolist())]
