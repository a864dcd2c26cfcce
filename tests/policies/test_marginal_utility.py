"""Greedy marginal utility over workers and servers."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.io.arrays import FloatArray
from rlpto.performance.parameter_server import SpeedSurface, speed_grid
from rlpto.policies.marginal_utility import Limits, allocate

MOST = 4


def limits(count: int, min_workers: int = 1, servers: int = MOST) -> Limits:
    lowest = np.full(count, min(servers, 1))
    return Limits(np.full(count, min_workers), np.full(count, MOST), lowest, np.full(count, servers))


def plan(speed: FloatArray, gpus: int, slots: int, known: Limits | None = None) -> list[tuple[int, int]]:
    workers, servers = allocate(speed, known or limits(len(speed)), gpus, slots)
    return list(zip(workers.tolist(), servers.tolist(), strict=True))


def additive(by_worker: list[float], by_server: list[float]) -> FloatArray:
    """[W + 1, P + 1] speeds that are sums of what each worker and each server adds."""
    return np.cumsum([0.0, *by_worker])[:, None] + np.cumsum([0.0, *by_server])[None, :]


def test_the_largest_gain_comes_first() -> None:
    speed = np.stack([additive([5, 1, 0, 0], [5, 3, 0, 0]), additive([5, 2, 2, 0], [5, 0, 0, 0])])
    assert plan(speed, gpus=3, slots=3) == [(1, 2), (2, 1)]
    assert plan(speed, gpus=9, slots=9) == [(2, 2), (3, 1)]


def test_a_worker_goes_before_a_server_of_equal_gain() -> None:
    speed = np.stack([additive([1, 1, 0, 0], [1, 1, 0, 0])])
    speed[0, 2, 2] = speed[0, 2, 1]
    assert plan(speed, gpus=4, slots=4) == [(2, 1)]


def test_nothing_grows_that_gains_nothing() -> None:
    assert plan(np.stack([additive([1, 0, 0, 0], [1, -1, 3, 0])]), gpus=9, slots=9) == [(1, 1)]


def test_jobs_start_in_order_while_there_is_room_for_both() -> None:
    speed = np.stack([additive([1, 1, 1, 1], [1, 1, 1, 1])] * 3)
    assert plan(speed, gpus=9, slots=2) == [(4, 1), (4, 1), (0, 0)]
    assert plan(speed, gpus=2, slots=9) == [(1, 4), (1, 4), (0, 0)]


def test_jobs_without_servers_take_no_slots() -> None:
    speed = np.zeros((1, MOST + 1, MOST + 1))
    speed[0, :, 0] = [0, 1, 2, 3, 4]
    assert plan(speed, gpus=3, slots=0, known=limits(1, min_workers=2, servers=0)) == [(3, 0)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    count=st.integers(1, 6),
    gpus=st.integers(0, 20),
    slots=st.integers(0, 20),
    lowest=st.integers(1, 3),
)
def test_capacity_and_limits_hold(seed: int, count: int, gpus: int, slots: int, lowest: int) -> None:
    rng = np.random.default_rng(seed)
    surfaces = [
        SpeedSurface("async", tuple(rng.uniform(0, 1, 4)))
        if rng.random() < 0.5
        else SpeedSurface("sync", tuple(rng.uniform(0, 1, 5)))
        for _ in range(count)
    ]
    speed = np.stack([speed_grid(surface, MOST, MOST) for surface in surfaces])
    known = limits(count, lowest)
    workers, servers = allocate(speed, known, gpus, slots)
    assert workers.sum() <= gpus
    assert servers.sum() <= slots
    started = workers > 0
    assert np.all(servers[~started] == 0)
    assert np.all((workers[started] >= lowest) & (workers[started] <= MOST))
    assert np.all((servers[started] >= 1) & (servers[started] <= MOST))
    for row in np.flatnonzero(started):
        w, p = workers[row], servers[row]
        if workers.sum() < gpus and w < MOST:
            assert speed[row, w + 1, p] <= speed[row, w, p], "a free GPU would have made it faster"
        if servers.sum() < slots and p < MOST:
            assert speed[row, w, p + 1] <= speed[row, w, p], "a free slot would have made it faster"
