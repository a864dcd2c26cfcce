"""Termination notices: a task on each node waits for the file by which a cloud announces that it takes the node away.

This module imports little, because it runs in an idle process on each node.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

LOOK_S = 1.0
"""Time between two checks for the file, and from its appearance until it is read, as it may still be being written."""
NOTICE_S = 120.0
"""Notice period if the file does not give one."""


@cache
def watch_node(node: str, path: str) -> None:
    """Start the task on a node, once in this process's life; the task ends with the process. If the task fails, the
    node leaves without notice."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task: Any = ray.remote(num_cpus=0, max_retries=3, retry_exceptions=True)(wait_for_notice)
    task.options(scheduling_strategy=there).remote(path)


def wait_for_notice(path: str) -> None:
    """Wait for the file on this node, then announce to Ray that the node leaves."""
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
