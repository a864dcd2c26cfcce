"""How long a process of a node takes to start, and how much memory it takes: forked, and by itself."""

from __future__ import annotations

import os
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from _common import Check
from _ray_job import PATIENCE, load
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpto.ray_cluster.nodes.local import LocalCluster

PROCESSES = 4
"""That live at the same time, for every repeat."""


class Idle:
    """An actor that needs what a worker needs, and does nothing."""

    def __init__(self) -> None:
        for module in ("torch._dynamo", "rlpto.ray_cluster.worker.actor"):
            import_module(module)

    def spent(self) -> tuple[float, float]:
        """CPU seconds of this process so far, and MB of memory that are its own or its share of what several have."""
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        (share,) = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
        times = os.times()
        return times.user + times.system, share / 1000


def run(repeats: int) -> tuple[list[Check], dict[str, object]]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import it
    facts: dict[str, object] = {}
    medians: list[float] = []
    for forking, how in ((False, "by itself"), (True, "forked")):
        with LocalCluster([1], forking=forking) as started:
            begin(started.node_ids[0])  # whoever is first imports for all
            found = [one for _ in range(repeats) for one in begin_several(started.node_ids[0])]
        for what, column in zip(("seconds", "CPU seconds", "MB"), zip(*found, strict=True), strict=True):
            facts[f"a process {how}: {what}"] = round(statistics.median(column), 2)
        medians.append(statistics.median(one[0] for one in found))
    facts["load during starts"] = load()
    return [Check("start of a process by itself over one forked", medians[0] / medians[1], "times", 3.0, True)], facts


def begin(node: str) -> tuple[float, Any]:
    """Seconds until an actor on a node answers, and the actor."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    actor: Any = ray.remote(Idle)
    before = time.monotonic()
    handle = actor.options(num_cpus=0, scheduling_strategy=here).remote()
    ray.get(handle.spent.remote(), timeout=PATIENCE)
    return time.monotonic() - before, handle


def begin_several(node: str) -> list[tuple[float, float, float]]:
    """Seconds until each of some actors answered, started one after the other, its CPU seconds and MB once all are."""
    started = [begin(node) for _ in range(PROCESSES)]
    found = [(seconds, *ray.get(handle.spent.remote(), timeout=PATIENCE)) for seconds, handle in started]
    for _, handle in started:
        ray.kill(handle)
    return found
