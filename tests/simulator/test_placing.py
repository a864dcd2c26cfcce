"""Jobs go to the very nodes that a policy has chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlpto.io.errors import PolicyError
from rlpto.performance.size_table import largest_sizes

from ..builders import admit, job, linear_tables, make_cluster

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
    tables = replace(tables, fit=np.tile(largest_sizes((1, 3, 4, 6), tables.max_gpus), (len(tables.types), 1)))
    cluster = make_cluster([job(0, gpus=4), job(1, max_gpus=6)], tables, NODES)
    admitted = admit(cluster, placement=[[4, 0, 0], [0, 2, 3]])
    assert admitted.gpus.tolist() == [4, 4]
    assert admitted.placement is not None
    assert admitted.placement.tolist() == [[4, 0, 0], [0, 1, 3]]
