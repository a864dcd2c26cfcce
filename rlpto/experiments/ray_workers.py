"""Tasks of research (cells, trainings, parts of rollouts) on the hosts of a Ray cluster.

They take CPUs, no GPUs, and need no scheduler of RLPTO there: jobs may train on the same cluster. Every result is the
result of one machine: hosts with other versions are refused, and the order of results is the caller's business.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from rlpto.experiments.on_host import VERSIONS, Shared, call_there, check_versions
from rlpto.io.errors import ClusterError, RlptoError
from rlpto.io.workers import Item, Result
from rlpto.ray_cluster.controllers import alive_nodes
from rlpto.ray_cluster.messages import reason_of
from rlpto.ray_cluster.scheduler.connection import Connection, imported_on

AHEAD = 2
"""Most tasks in flight, for each that runs: no host waits for the next one, and results do not pile up."""
RETRIES = 20
"""Repetitions of a task whose process or host has died."""
LOOK_S = 1.0
"""Time between looks at the number of hosts."""
DIGITS = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",
    "OMP_NUM_THREADS": "1",
}
"""Variables by which all CPUs compute the same digits, whatever this machine's CPU is. `rlpto` sets the first two, but
Ray's processes import NumPy before it."""


class RayWorkers(ExitStack):
    """The CPUs of the cluster at `address` (auto, HOST:PORT or ray://HOST:PORT), until `close`.

    Raises ConfigError for an invalid address; ClusterError if no cluster answers, if its version of Ray or Python or
    its token differs, if it has no CPUs, or if a host has other versions.
    """

    shares_files = False

    def __init__(self, address: str) -> None:
        super().__init__()
        variables = {name: os.environ.get(name, value) for name, value in DIGITS.items()}
        self.address = self.enter_context(Connection(address, "auto", research=True, variables=variables)).address
        self._looked, self._hosts, self._slots = 0.0, 0, 0
        try:
            self._look()
            if not self._slots:
                raise ClusterError(
                    f"the Ray cluster at {self.address} has no CPUs: expected nodes with some (`ray start --num-cpus`)"
                )
            for host, found in imported_on(_with_cpus(), f"{check_versions.__module__}:VERSIONS"):
                if isinstance(found, Exception):
                    raise ClusterError(f"host {host} cannot run tasks of RLPTO: {reason_of(found)}")
                check_versions(host, found)
        except BaseException:
            self.close()
            raise

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
        there = _with_cpus()
        self._slots = int(sum(node["Resources"]["CPU"] for node in there))
        self._hosts, self._looked = len({node["NodeManagerHostname"] for node in there}), time.monotonic()

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        on_begin: Callable[[Item], None] = lambda _: None,  # noqa: ARG002
    ) -> Iterator[tuple[int, Result]]:
        """See `Workers.run`. Tasks whose process or host dies are repeated. Raises ClusterError if one dies again and
        again or if the head is gone, and an error of a host with other versions."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        shared, left = Shared(function), iter(enumerate(items))
        task: Any = ray.remote(num_cpus=1, max_retries=RETRIES)(call_there)
        pending: dict[Any, int] = {}
        try:
            while True:
                while len(pending) < AHEAD * self.slots and (following := next(left, None)) is not None:
                    pending[task.remote(shared, VERSIONS, following[1])] = following[0]
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
            raise ClusterError(
                f"a task cannot run on the Ray cluster at {self.address}, after {RETRIES} repetitions if its process "
                f"died: {reason_of(error)}"
            ) from error
        except ConnectionError as error:  # of Ray's client
            raise ClusterError(f"the Ray cluster at {self.address} is gone: {reason_of(error)}") from error
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)


def _with_cpus() -> list[dict[str, Any]]:
    """Ray's entry for each node that is alive and has CPUs."""
    return [node for node in alive_nodes() if node["Resources"].get("CPU")]
