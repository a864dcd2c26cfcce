"""Where jobs go: as a count of GPUs is placed, and to the very nodes that a policy has chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.io.errors import PolicyError
from rlpto.performance.size_table import largest_sizes

from ..builders import admit, give, job, linear_tables, make_cluster, on_nodes


def fewest_nodes(free: list[int], count: int) -> int:
    """Nodes needed for `count` GPUs when the fullest offers are taken first."""
    offered = np.cumsum(sorted(free, reverse=True))
    return int(np.searchsorted(offered, count)) + 1


@st.composite
def offers(draw: st.DrawFn) -> tuple[list[int], int]:
    """Free GPUs of nodes, and how many are wanted."""
    free = draw(st.lists(st.integers(0, 8), min_size=1, max_size=8).filter(sum))
    return free, draw(st.integers(1, sum(free)))


def placed(sizes: list[int], *counts: int, **settings: object) -> list[int]:
    """Nodes of a job that is given these numbers of GPUs, one after the other, on nodes of these sizes."""
    one = job(epochs=1e6, gpus=1, min_gpus=1, max_gpus=sum(sizes))
    cluster = make_cluster([one], linear_tables(gpus=sum(sizes)), sizes, **settings)
    for count in counts:
        give(cluster, [count])
    return on_nodes(cluster, [0])[0]


@given(offers())
def test_packing_spans_the_fewest_nodes_and_of_those_that_hold_a_job_takes_the_fullest(offer):
    free, count = offer
    nodes = placed(free, count)
    taken = np.bincount(nodes, minlength=len(free))
    assert (taken <= free).all()
    assert np.count_nonzero(taken) == fewest_nodes(free, count)
    fitting = [f for f in free if f >= count]
    assert not fitting or free[nodes[0]] == min(fitting)


@given(offers())
def test_most_free_takes_the_emptiest_node_then_the_next(offer):
    free, count = offer
    order = sorted(range(len(free)), key=lambda node: (-free[node], node))
    expected = [node for node in order for _ in range(free[node])][:count]
    assert placed(free, count, placement="most_free") == expected


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_shrinking_keeps_the_largest_groups(groups, data):
    count = data.draw(st.integers(1, sum(groups)))
    kept = np.bincount(placed(groups, sum(groups), count), minlength=len(groups))
    assert (kept <= groups).all()
    assert kept.sum() == count
    assert np.count_nonzero(kept) == fewest_nodes(groups, count)


class TestOnACluster:
    def test_large_jobs_get_whole_nodes_in_any_place_of_the_queue(self):
        jobs = [job(0, gpus=1), job(1, gpus=1), job(2, gpus=4)]
        cluster = make_cluster(jobs, linear_tables(), [4, 2])
        give(cluster, [1, 1, 4])
        assert on_nodes(cluster, [0, 1, 2]) == [[1], [1], [0, 0, 0, 0]]

    def test_growing_stays_home_and_shrinking_moves_nothing(self):
        jobs = [job(0, max_gpus=4), job(1, max_gpus=4)]
        cluster = make_cluster(jobs, linear_tables(), [4, 4])
        give(cluster, [2, 3])
        home = on_nodes(cluster, [0, 1])
        assert home == [[1, 1], [0, 0, 0]]
        give(cluster, [4, 3])
        assert on_nodes(cluster, [0, 1]) == [[1] * 4, home[1]]
        give(cluster, [1, 3])
        assert on_nodes(cluster, [0, 1]) == [[1], home[1]]


NODES = [4, 2, 3]


def test_who_stays_where_it_is_loses_nothing_and_who_moves_does() -> None:
    cluster = make_cluster([job(i, max_gpus=4) for i in range(2)], linear_tables(delay=30.0), NODES, interval=60)
    admit(cluster, placement=[[1, 0, 0], [0, 2, 0]])
    cluster.advance()
    admit(cluster, placement=[[1, 0, 0], [0, 0, 2]])
    assert cluster.store.rescales.tolist() == [0, 1]
    assert cluster.store.rescale_left.tolist() == [0.0, 30.0]


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ([[1, 0]], r"placement of shape \(1, 2\).*\(1, 3\)"),
        ([[0.5, 0.5, 0]], "type float64: expected whole numbers"),
        ([[2, -1, 0]], r"placed job 0 on \[2, -1, 0\]: expected 1 GPUs"),
        ([[1, 1, 0]], r"placed job 0 on \[1, 1, 0\]: expected 1 GPUs"),
    ],
)
def test_a_placement_that_makes_no_sense_is_refused(placement: list[list[float]], said: str) -> None:
    cluster = make_cluster([job(0)], linear_tables(), NODES)
    with pytest.raises(PolicyError, match=said):
        admit(cluster, [1], placement=placement)


def test_a_node_is_not_given_away_twice() -> None:
    cluster = make_cluster([job(i, gpus=2) for i in range(2)], linear_tables(), NODES)
    with pytest.raises(PolicyError, match="placed 4 GPUs on node 1: expected at most 2"):
        admit(cluster, placement=[[0, 2, 0], [0, 2, 0]])


def test_jobs_that_are_cut_keep_their_largest_parts() -> None:
    """The last job may not have five GPUs, and is cut to the next smaller size."""
    tables = linear_tables()
    tables = replace(tables, floor_size=np.tile(largest_sizes((1, 3, 4, 6), tables.max_gpus), (len(tables.types), 1)))
    cluster = make_cluster([job(0, gpus=4), job(1, max_gpus=6)], tables, NODES)
    admitted = admit(cluster, placement=[[4, 0, 0], [0, 2, 3]])
    assert admitted.gpus.tolist() == [4, 4]
    assert admitted.placement is not None
    assert admitted.placement.tolist() == [[4, 0, 0], [0, 1, 3]]
