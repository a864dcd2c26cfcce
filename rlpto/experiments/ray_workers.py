"""Tasks of research (cells, trainings, parts of rollouts) on the hosts of a Ray cluster.

They take CPUs, no GPUs, and need no scheduler of RLPTO there: jobs may train on the same cluster. Every result is the
result of one machine: hosts with other versions are refused, and the order of results is the caller's business.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, cast

from rlpto.io.errors import ClusterError, RlptoError
from rlpto.io.sources import FILES, LIBRARIES
from rlpto.io.workers import Item, Result
from rlpto.ray_cluster.controllers import alive_nodes
from rlpto.ray_cluster.messages import reason_of
from rlpto.ray_cluster.scheduler.connection import Connection

AHEAD = 2
"""Most tasks in flight, for each that runs: no host waits for the next one, and results do not pile up."""
RETRIES = 30
"""Repetitions of a task whose process or host has died."""
LOOK_S = 1.0
"""Time between looks at the number of hosts."""
VERSIONS = {"RLPTO": FILES, **LIBRARIES}
"""What has to be the same on all hosts."""
DIGITS = ("NPY_DISABLE_CPU_FEATURES", "OPENBLAS_CORETYPE")
"""Variables by which all CPUs compute the same digits. `rlpto` sets them, but Ray's processes import NumPy earlier."""


class RayWorkers(ExitStack):
    """The CPUs of the cluster at `address` (auto, HOST:PORT or ray://HOST:PORT), until `close`.

    Raises ConfigError for an invalid address; ClusterError if no cluster answers, if its version of Ray or Python or
    its token differs, or if it has no CPUs.
    """

    shares_files = False

    def __init__(self, address: str) -> None:
        super().__init__()
        variables = {name: os.environ[name] for name in DIGITS if name in os.environ}
        self.address = self.enter_context(Connection(address, "auto", research=True, variables=variables)).address
        self._looked, self._hosts, self._slots = 0.0, 0, 0
        self._look()
        if not self._slots:
            self.close()
            raise ClusterError(
                f"the Ray cluster at {self.address} has no CPUs: expected nodes with some (`ray start --num-cpus`)"
            )

    @property
    def slots(self) -> int:
        """Number of tasks that run at the same time: the CPUs of all nodes."""
        self._look()
        return max(self._slots, 1)  # nodes may come back

    @property
    def place(self) -> str:
        """Number of CPUs and hosts."""
        self._look()
        return f"{self._slots} CPUs on {self._hosts} host{'s' if self._hosts != 1 else ''}"

    def _look(self) -> None:
        if time.monotonic() < self._looked + LOOK_S:
            return
        there = [node for node in alive_nodes() if node["Resources"].get("CPU")]
        self._slots = int(sum(node["Resources"]["CPU"] for node in there))
        self._hosts, self._looked = len({node["NodeManagerHostname"] for node in there}), time.monotonic()

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        on_begin: Callable[[Item], None] = lambda _: None,  # noqa: ARG002
    ) -> Iterator[tuple[int, Result]]:
        """See `Workers.run`. Tasks whose process or host dies are repeated. Raises ClusterError if one dies again and
        again, and an error of a host with other versions."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        shared, left = ray.put(function), iter(enumerate(items))
        task: Any = ray.remote(num_cpus=1, max_retries=RETRIES)(call_there)
        pending: dict[Any, int] = {}
        try:
            while True:
                while len(pending) < AHEAD * self.slots and (following := next(left, None)) is not None:
                    pending[task.remote([shared], VERSIONS, following[1])] = following[0]
                if not pending:
                    return
                ray.wait(list(pending), num_returns=1, timeout=LOOK_S)
                done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
                for reference in done:
                    yield pending.pop(reference), ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, RlptoError):
                raise error.cause from None
            raise
        except RayError as error:
            raise ClusterError(f"a task cannot run on the Ray cluster at {self.address}: {reason_of(error)}") from error
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)


def call_there(shared: list[Any], versions: dict[str, str], item: Any) -> Any:
    """Call a stored function with an item, in a process of a host. versions: `VERSIONS` of the driver.

    Raises ClusterError if the host has other ones.
    """
    other = [f"{name} {VERSIONS[name]}, not {its}" for name, its in versions.items() if VERSIONS[name] != its]
    if other:
        raise ClusterError(
            f"host {platform.node()} has {', '.join(other)}: expected the same on all hosts, since digits depend on it"
        )
    return _function(shared[0])(item)


@lru_cache(maxsize=2)
def _function(shared: Any) -> Callable[[Any], Any]:
    """The stored function, fetched once by each process."""
    import ray

    return cast(Callable[[Any], Any], ray.get(shared))
