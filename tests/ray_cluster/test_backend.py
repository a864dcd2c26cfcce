"""Where controllers live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.controllers import control_node
from rlpto.ray_cluster.nodes.environment import CONTROL

HEAD: Mapping[str, float] = {"node:__internal_head__": 1.0}


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ([{"GPU": 2.0}, {}, HEAD, {CONTROL: 1.0}], 3),
        ([{"GPU": 2.0}, {}, HEAD], 2),
        ([{"GPU": 2.0}, {}, {**HEAD, "GPU": 1.0}], 2),
        ([{"GPU": 2.0}, {}], 1),
        ([{"GPU": 2.0}, {"GPU": 1.0}], 0),
    ],
    ids=["kept for them", "head", "head with GPUs", "without GPUs", "any"],
)
def test_controllers_live_where_workers_need_the_room_least(
    resources: Sequence[Mapping[str, float]], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = [{"NodeID": str(number), "Resources": own} for number, own in enumerate(resources)]
    monkeypatch.setattr("rlpto.ray_cluster.controllers.alive_nodes", lambda: alive)
    assert control_node() == str(expected)


def test_a_cluster_without_nodes_has_no_place_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlpto.ray_cluster.controllers.alive_nodes", list)
    with pytest.raises(ClusterError, match="no node that is alive"):
        control_node()
