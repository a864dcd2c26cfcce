"""Tasks of research (cells, trainings, parts of rollouts) on the hosts of a Ray cluster.

They take CPUs, no GPUs, and need no scheduler of RLPTO there: jobs may train on the same cluster. Every result is the
result of one machine: hosts with other versions are refused, and the order of results is the caller's business.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from rlpto.experiments.on_host import VERSIONS, Stored, call_there
from rlpto.io.errors import ClusterError, RlptoError
from rlpto.io.terminal import say
from rlpto.io.workers import Item, Result
from rlpto.ray_cluster.controllers import alive_nodes
from rlpto.ray_cluster.messages import reason_of
from rlpto.ray_cluster.scheduler.connection import Connection

if TYPE_CHECKING:  # it imports Ray, which reads its variables then
    from rlpto.ray_cluster.nodes.local import LocalCluster

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
    """The CPUs of a cluster, until `close`.

    cluster: its address (auto, HOST:PORT or ray://HOST:PORT), or a cluster of this process, which shares its files.
    grace_s: time for tasks to end by themselves after Ctrl-C [s]; their results are still returned. Raises ConfigError
    for an invalid address; ClusterError if no cluster answers, if its version of Ray or Python or its token differs, or
    if it has no CPUs.
    """

    def __init__(self, cluster: str | LocalCluster, grace_s: float = 0.0) -> None:
        super().__init__()
        self.shares_files, self.grace_s = not isinstance(cluster, str), grace_s
        variables = {name: os.environ.get(name, value) for name, value in DIGITS.items()}
        opened: Connection | LocalCluster = (
            Connection(cluster, "auto", research=True, variables=variables) if isinstance(cluster, str) else cluster
        )
        self.enter_context(opened)
        self.address = opened.address
        import ray  # reads variables that the connection has set

        # One function for all tasks: Ray starts other processes for another one.
        self._task: Any = ray.remote(num_cpus=1, max_retries=RETRIES)(call_there)
        self._looked, self._hosts, self._slots, self._nodes = 0.0, 0, 0, frozenset[str]()
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
        self._nodes = frozenset(str(node["NodeID"]) for node in there)
        self._hosts, self._looked = len({node["NodeManagerHostname"] for node in there}), time.monotonic()

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        on_begin: Callable[[Item], None] = lambda _: None,  # noqa: ARG002
    ) -> Iterator[tuple[int, Result]]:
        """See `Workers.run`. Tasks whose process or host dies are repeated. Raises ClusterError if one dies again and
        again or runs out of memory, or if the head is gone, and an error of a host with other versions.

        If a host is cut off, Ray repeats its tasks only when their connections time out, after minutes. Therefore all
        tasks in flight are submitted again as soon as a host is gone, and the first result of each counts.
        """
        import ray
        from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

        stored, begun, nodes, waiting = Stored.of(function), 0, self._nodes, set[int]()
        pending: dict[Any, int] = {}
        try:
            while waiting or begun < len(items):
                room = range(begun, min(len(items), begun + max(AHEAD * self.slots - len(waiting), 0)))
                begun += len(room)
                waiting |= {*room}
                for position in [*room, *(waiting - {*room} if nodes - self._nodes else ())]:
                    pending[self._task.remote(stored, VERSIONS, items[position])] = position
                nodes = self._nodes
                ray.wait(list(pending), num_returns=1, timeout=LOOK_S)
                done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
                for reference in done:
                    if (position := pending.pop(reference)) in waiting:
                        waiting.remove(position)
                        yield position, ray.get(reference)
                if len(pending) > len(waiting):
                    for reference in [one for one, position in pending.items() if position not in waiting]:
                        del pending[reference]
                        ray.cancel(reference, force=True)
        except KeyboardInterrupt:
            if self.grace_s and pending:
                say("rlpto: stopping after these updates; Ctrl-C again stops at once", err=True)
                for reference in pending:
                    ray.cancel(reference, force=False)
                done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=self.grace_s)
                for reference in done:
                    if (position := pending.pop(reference)) in waiting:
                        with suppress(RayError):  # of a task that had not begun
                            result = ray.get(reference)
                            waiting.remove(position)
                            yield position, result
            raise
        except RayTaskError as error:
            if isinstance(error.cause, RlptoError):
                raise error.cause from None
            if isinstance(error.cause, ImportError):
                raise ClusterError(f"a host of the Ray cluster at {self.address}: {reason_of(error)}") from error
            raise
        except OutOfMemoryError as error:
            raise ClusterError(
                f"a task on the Ray cluster at {self.address} was ended several times because its host ran out of "
                "memory: expected more memory, or fewer CPUs (`ray start --num-cpus`)"
            ) from error
        except RayError as error:
            raise ClusterError(
                f"a task cannot run on the Ray cluster at {self.address}, after {RETRIES} repetitions if its process "
                f"died: {reason_of(error)}"
            ) from error
        except ConnectionError as error:  # of Ray's client
            raise ClusterError(f"the Ray cluster at {self.address} is gone: {reason_of(error)}") from error
        finally:
            with suppress(ConnectionError):
                for reference in pending:
                    ray.cancel(reference, force=True)
