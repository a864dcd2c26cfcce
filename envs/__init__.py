"""Gymnasium environments over any cluster; importing this registers `rlpto/Cluster-v0` and `rlpto/Nodes-v1`."""

from gymnasium.envs.registration import register

# By name, not by object: registration alone imports neither the simulator nor its compiler.
register(
    id="rlpto/Cluster-v0",
    entry_point="rlpto.experiments.environments:cluster_env",
    vector_entry_point="rlpto.experiments.environments:vector_env",
)
register(
    id="rlpto/Nodes-v1",
    entry_point="rlpto.experiments.nodes_environments:nodes_env",
    vector_entry_point="rlpto.experiments.nodes_environments:nodes_vector_env",
)
