"""Starts nodes that outlive this process: `python -m rlpto.ray_cluster.nodes.start_nodes ORDER`.

ORDER is JSON of an `Order`. Prints a line of JSON for whatever comes next (key "next"), and at the end one with the
head's address (key "address") or with what went wrong (key "error").
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from rlpto.ray_cluster.nodes.environment import CONTROL
from rlpto.ray_cluster.nodes.ray_node import start_node


@dataclass(frozen=True)
class Order:
    """What to start: a head at `port` (0: any), and one node for every entry of `gpus`, each with `cpus` CPU slots.
    control: and one that is kept for runners."""

    gpus: tuple[int, ...]
    cpus: int
    port: int = 0
    control: bool = False


def start(order: Order) -> str:
    """Start a head and nodes: the head's address. Raises what Ray raises if one does not come up."""
    options: dict[str, Any] = {"cpus": order.cpus, "stays": True}
    _print(next="starting the head")
    address = str(start_node(port=order.port, **options).gcs_address)
    if order.control:
        _print(next="starting the node for runners")
        start_node(address, resources={CONTROL: 1}, **options)
    for number, gpus in enumerate(order.gpus, 1):
        _print(next=f"starting node {number} of {len(order.gpus)}")
        start_node(address, gpus=gpus, **options)
    return address


def main() -> None:
    """Do what the command line says."""
    order = json.loads(sys.argv[1])
    try:
        _print(address=start(Order(tuple(order["gpus"]), order["cpus"], order["port"], order["control"])))
    except Exception as error:  # Ray raises nothing more special
        _print(error=" ".join(str(error).split()) or type(error).__name__)
        sys.exit(1)


def _print(**said: str) -> None:
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
