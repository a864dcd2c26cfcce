"""Where jobs go."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ..builders import give, job, linear_tables, make_cluster, on_nodes


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
