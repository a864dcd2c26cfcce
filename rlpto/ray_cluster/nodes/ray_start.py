"""Ray's own command line, `python -m rlpto.ray_cluster.nodes.ray_start start ...`: its nodes have a fork server.

It takes what `ray` takes, which has no option for the program of a node's processes; Ray's Python interface has.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ray._private import parameter

from rlpto.ray_cluster.nodes.fork_server import program


def main() -> None:
    """Be `ray`."""
    named: Any = parameter
    named.RayParams = partial(parameter.RayParams, worker_path=program())
    from ray.scripts import scripts

    ray: Any = scripts
    ray.main()


if __name__ == "__main__":
    main()
