"""One scheduler at a time on a Ray cluster: two would give the same GPUs to jobs of both.

Which one it is stands in Ray's own store of keys and values. It counts as long as Ray knows its process as a driver:
that ends with the process, however it ends.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rlpto.io.errors import ClusterError

KEY_PREFIX, KEY_NAMESPACE = "scheduler:", b"rlpto"
"""Keys of schedulers, each with the driver's id behind."""
LEAVE_TIMEOUT_S = 2.0
"""Longest wait for Ray to notice that a scheduler has ended."""


@dataclass(frozen=True)
class SchedulerProcess:
    """A scheduler of a cluster. folder: where its run is kept. driver: Ray's id of it. host, process: where it runs.
    ended: it has said so itself."""

    folder: str
    driver: str
    host: str
    process: int
    ended: bool = False

    @property
    def alive(self) -> bool:
        """True if it is connected to the cluster that this process is connected to."""
        from rlpto.ray_cluster.compat import drivers

        return not self.ended and any(one["JobID"] == self.driver and not one["IsDead"] for one in drivers())


def schedulers() -> list[SchedulerProcess]:
    """Schedulers that the cluster has ever had to which this process is connected, the newest at the end."""
    from rlpto.ray_cluster.compat import values

    # Ray numbers drivers: the order of the keys is theirs.
    return [SchedulerProcess(**json.loads(value)) for value in values(KEY_NAMESPACE, KEY_PREFIX)]


@contextmanager
def only_scheduler(folder: Path) -> Iterator[None]:
    """This process is the scheduler of the cluster that it is connected to. folder: where its run is kept.

    Raises ClusterError if another one is at work there, which does not notice.
    """
    import ray

    from rlpto.ray_cluster.compat import drop_value, put_value

    driver = str(ray.get_runtime_context().get_job_id())
    own = SchedulerProcess(str(folder.absolute()), driver, platform.node(), os.getpid())
    key, deadline = f"{KEY_PREFIX}{driver}", time.monotonic() + LEAVE_TIMEOUT_S
    # Entered before it looks: of two that start at the same time none overlooks the other.
    put_value(KEY_NAMESPACE, key, json.dumps(asdict(own)))
    while others := [other for other in schedulers() if other.driver != driver and other.alive]:
        if time.monotonic() > deadline:
            drop_value(KEY_NAMESPACE, key)
            raise ClusterError(
                f"another scheduler is at work on this Ray cluster, for {others[0].folder} (process "
                f"{others[0].process} on {others[0].host}): wait for its end, end it, or use another cluster"
            )
        time.sleep(0.1)
    yield
    # After an exception the cluster may be gone, and the process is about to end: Ray notices that.
    put_value(KEY_NAMESPACE, key, json.dumps(asdict(replace(own, ended=True))))
