"""Files by which a cloud says on a node that it takes the node away: a task on each node waits for one.

It imports little, since each node's idle process does so, too.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

LOOK_S = 1.0
"""Time between two looks for the file, and from its appearance until it is read: it may still be written then."""
NOTICE_S = 120.0
"""Notice, where the file does not say how long it is."""


@cache
def watch_node(node: str, path: str) -> None:
    """Start the task on a node, once in the life of this process, with which it ends. Where it fails, the node goes
    without notice."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task: Any = ray.remote(num_cpus=0, max_retries=3, retry_exceptions=True)(wait_for_notice)
    task.options(scheduling_strategy=there).remote(path)


def wait_for_notice(path: str) -> None:
    """Wait for the file on this node, then announce to Ray that the node goes."""
    import ray

    from rlpto.ray_cluster.compat import drain_node

    file, seconds = Path(os.path.expandvars(path)), NOTICE_S
    while not file.exists():
        time.sleep(LOOK_S)
    time.sleep(LOOK_S)
    with suppress(OSError, ValueError):
        seconds = float(file.read_text(encoding="utf-8"))
    context = ray.get_runtime_context()
    drain_node(context.gcs_address, context.get_node_id(), seconds if 0.0 <= seconds <= 86_400.0 else NOTICE_S)
