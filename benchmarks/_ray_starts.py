"""How long a process of a node takes to start, and its cost: by itself, prepared by Ray's own means, and forked."""

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
from _ray_job import load
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpto.ray_cluster.controllers import control_node
from rlpto.ray_cluster.nodes.environment import set_variables
from rlpto.ray_cluster.nodes.local import LocalCluster

TIMEOUT_S = 180.0
PROCESSES = 6
"""That live at the same time, for every repeat: two more than there are CPU slots, for which Ray prestarts."""
NEEDED = ("torch._dynamo", "rlpto.ray_cluster.worker.actor")
PRESTART = {
    "RAY_preload_python_modules": ",".join(NEEDED),
    "RAY_prestart_worker_first_driver": "1",
    "RAY_num_workers_soft_limit": "64",
    "RAY_idle_worker_killing_time_threshold_ms": "600000",
}
PRESTART_SECONDS = 40.0
"""For the processes that Ray prestarts to be idle."""


class Idle:
    """An actor that needs what a worker needs, and does nothing."""

    def __init__(self) -> None:
        for module in NEEDED:
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
    medians: dict[str, float] = {}
    for how in ("by itself", "prestarted by Ray", "forked"):
        prestarted = how == "prestarted by Ray"
        before = {name: os.environ.get(name) for name in PRESTART}
        os.environ.update(PRESTART if prestarted else {})
        with LocalCluster([1], forking=how == "forked"):
            node = control_node()  # the only one for which Ray prestarts
            time.sleep(PRESTART_SECONDS if prestarted else 0.0)
            if not prestarted:
                begin(node)  # whoever is first imports for all
            found = [one for _ in range(repeats) for one in begin_several(node)]
        set_variables(before)
        for what, column in zip(("seconds", "CPU seconds", "MB"), zip(*found, strict=True), strict=True):
            facts[f"a process {how}: {what}"] = round(statistics.median(column), 2)
        facts[f"a process {how}: seconds, each"] = [round(one[0], 2) for one in found]
        medians[how] = statistics.median(one[0] for one in found)
    facts["load during starts"] = load()
    ratio = medians["by itself"] / medians["forked"]
    return [Check("start of a process by itself over one forked", ratio, "times", 3.0, True)], facts


def begin(node: str) -> tuple[float, Any]:
    """Seconds until an actor on a node answers, and the actor."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    actor: Any = ray.remote(Idle)
    before = time.monotonic()
    handle = actor.options(num_cpus=0, scheduling_strategy=here).remote()
    ray.get(handle.spent.remote(), timeout=TIMEOUT_S)
    return time.monotonic() - before, handle


def begin_several(node: str) -> list[tuple[float, float, float]]:
    """Seconds until each of some actors answered, started one after the other, its CPU seconds and MB once all are."""
    started = [begin(node) for _ in range(PROCESSES)]
    found = [(seconds, *ray.get(handle.spent.remote(), timeout=TIMEOUT_S)) for seconds, handle in started]
    for _, handle in started:
        ray.kill(handle)
    return found
