"""This package's own code for the nodes of clusters that lack it: Ray keeps it, and each node unpacks it once."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

import rlpto
from rlpto.ray_cluster.controllers import alive_nodes
from rlpto.ray_cluster.nodes.processes import load_factor

PROBE_TIMEOUT_S = 20.0
"""Longest wait of a quiet machine for every node to say which version it has."""


def code_to_ship() -> dict[str, Any]:
    """Ray's `runtime_env` with this package, for all processes of a driver. Its data stay here: jobs need none."""
    # Ray matches names below the package, and "." for itself.
    return {"py_modules": [str(Path(rlpto.__file__).parent)], "excludes": ["__pycache__", "?*.*", "!*.py"]}


def lacks_code() -> bool:
    """True if a node of the cluster that this process is connected to cannot import this version of the package.

    True as well if there is no node with GPUs to ask: what those that come will have is not known.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = alive_nodes()
    version: Any = ray.remote(num_cpus=0, max_retries=1)(pkgutil.resolve_name)  # a function that every node has
    there = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    asked = [version.options(scheduling_strategy=node).remote("rlpto:__version__") for node in there]
    try:
        found = set(ray.get(asked, timeout=PROBE_TIMEOUT_S * load_factor()))
    except RayError:
        return True
    return found != {rlpto.__version__} or not any(node["Resources"].get("GPU") for node in nodes)
