"""Pollux as a policy: what it gives its search, and AdaptDL's thresholds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterState, Node
from rlpto.io.errors import ConfigError
from rlpto.performance.metrics import UtilityBand
from rlpto.policies.pollux.policy import desired_nodes, most_gpus, restart_factor
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import job, linear_tables, played
from .builders import J, make_state, power

OLD_S = 3600.0


def state_of(count: int, capacity: int, peak: int, p: float = 0.8) -> ClusterState:
    """`count` equal jobs that have waited for an hour and once had `peak` GPUs."""
    state = make_state([J(speed=power(p, 16), highest=16) for _ in range(count)], capacity, time=OLD_S)
    state.jobs.store.peak_gpus[:] = peak
    return state


def test_factor_is_what_restarts_have_left() -> None:
    factor = restart_factor(np.array([60.0, 60.0, 0.0, 600.0]), np.array([1, 3, 0, 2]), np.full(4, 30.0))
    np.testing.assert_allclose(factor, [30 / 90, 0, 0, 540 / 630])
    assert restart_factor(np.zeros(1), np.zeros(1, dtype=np.int64), np.zeros(1))[0] == 1.0


def test_a_job_may_have_twice_the_gpus_that_it_has_had() -> None:
    pollux = make_policy("pollux")
    for peak, most in ((0, 1), (1, 2), (3, 6)):
        assert pollux(state_of(2, 16, peak)).gpus.tolist() == [most, most]
    assert pollux(state_of(2, 16, 16)).gpus.tolist() == [8, 8]


def test_a_job_of_the_efficiency_metric_gets_what_its_thresholds_ask_for() -> None:
    """With speed k**.8 utility is k**-.2, nearest to .75 with 4 GPUs; the other job takes what is left."""
    state = state_of(2, 16, 16)
    tables = state.jobs._tables
    kinds = tuple(
        kind._replace(metric=name) for kind, name in zip(tables.types, ("efficiency", "goodput"), strict=True)
    )
    state.jobs.__dict__["_tables"] = replace(tables, types=kinds)
    assert most_gpus(state.jobs).tolist() == [4, 16]
    assert make_policy("pollux")(state).gpus.tolist() == [4, 12]
    for_all = make_policy("pollux:min_util=0.01,max_util=0.02")(state)
    assert for_all.gpus.tolist() == [8, 8], "thresholds for all jobs together stand instead"
    # They leave room for the largest least number of a job.
    state = make_state([J(speed=power(0.9, 16), lowest=16, requested=16)], 24, time=OLD_S)
    assert make_policy("pollux:min_util=0.85,max_util=0.95")(state).gpus.tolist() == [16]


def test_a_job_that_grew_does_not_move_for_nothing() -> None:
    cluster = SimulatedCluster(
        (Node(4), Node(4)), [job(0, max_gpus=4, epochs=60.0)], linear_tables(delay=30.0), SimulatorSettings(interval=60)
    )
    record = played(cluster, "pollux")
    # One GPU, two, four, and no move after that.
    assert record.jobs.rescales.tolist() == [2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("min_util=0.9,max_util=0.6", "min_util and max_util: expected 0 < min_util < max_util <= 1, got 0.9 and 0.6"),
        ("min_util=0.5", "expected both, or neither"),
        ("min_util=0.5,max_util=1.5", "option max_util: expected less than or equal to 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"policy pollux: .*{said}"):
        make_policy(f"pollux:{options}")


BANDS = st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 1.0)).filter(lambda band: band[0] < band[1])


@given(st.lists(st.floats(0, 1.2), min_size=1, max_size=40), BANDS, BANDS)
def test_raised_thresholds_never_add_nodes(utilities: list[float], first: tuple[float, ...], second: tuple[float, ...]):
    higher = (max(first[0], second[0]), max(first[1], second[1]))
    on = lambda nodes: utilities[nodes - 1]  # noqa: E731
    few, many = (desired_nodes(on, len(utilities), UtilityBand(*band)) for band in (higher, first))
    assert few <= many


@given(st.lists(st.floats(0, 1.2), min_size=1, max_size=40), BANDS)
def test_utility_is_in_the_band_where_it_can_be(utilities: list[float], band: tuple[float, ...]) -> None:
    falling = sorted(utilities, reverse=True)
    chosen = falling[desired_nodes(lambda nodes: falling[nodes - 1], len(falling), UtilityBand(*band)) - 1]
    if any(band[0] <= value <= band[1] for value in falling):
        assert band[0] <= chosen <= band[1]
