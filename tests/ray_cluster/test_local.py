"""The local cluster itself."""

from __future__ import annotations

import pytest

from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.controllers import alive_nodes
from rlpto.ray_cluster.nodes.local import LocalCluster
from tests.ray_cluster.conftest import GPUS, NODES


class TestLocalCluster:
    def test_offers_the_gpus_it_was_asked_for_and_none_on_the_head(self, ray_cluster: LocalCluster) -> None:
        gpus = {node["NodeID"]: node["Resources"].get("GPU", 0) for node in alive_nodes()}
        assert [gpus[node] for node in ray_cluster.node_ids] == [GPUS] * NODES
        assert sum(gpus.values()) == GPUS * NODES

    def test_nodes_come_and_go(self, ray_cluster: LocalCluster) -> None:
        node = ray_cluster.add_node(1)
        assert node in {entry["NodeID"] for entry in alive_nodes()}
        ray_cluster.remove_node(node)
        assert node not in {entry["NodeID"] for entry in alive_nodes()}

    @pytest.mark.usefixtures("ray_cluster")
    def test_a_second_one_in_the_same_process_is_refused_and_harms_nothing(self) -> None:
        import ray

        with pytest.raises(ClusterError, match="connected to a Ray cluster already"):
            LocalCluster([1])
        assert ray.is_initialized()
        assert len(alive_nodes()) == NODES + 1
