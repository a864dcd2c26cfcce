"""The parameter server actors of one job, from its controller's side."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpto.ray_cluster.job.worker_actors import WORKER_CALL_TIMEOUT_S, WorkerLostError, result_of, settle
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.worker.parameter_server import ParameterServer


class ParameterServers:
    """Starts the servers of a job that has some, on `node`, and replaces them. handles: of those there are now."""

    def __init__(self, spec: JobSpec, node: str) -> None:
        self._spec, self._node = spec, node
        self.handles: tuple[Any, ...] = ()

    def ensure(self) -> bool:
        """Start servers if the job needs some and has none. True if they are new: they hold no weights yet."""
        if self._spec.architecture != "parameter_server" or self.handles:
            return False
        actor: Any = ray.remote(ParameterServer)
        here = NodeAffinitySchedulingStrategy(self._node, soft=False)
        actor = actor.options(num_cpus=0, max_restarts=0, scheduling_strategy=here)
        self.handles = tuple(actor.remote(self._spec.asynchronous) for _ in range(self._spec.servers))
        return True

    async def end_group(self) -> None:
        """End the present group, which wakes workers that wait there; if a server is gone, all of them are let go."""
        said = await settle(result_of(server.end.remote(), WORKER_CALL_TIMEOUT_S) for server in self.handles)
        if any(isinstance(one, WorkerLostError) for one in said):
            self.kill()

    def kill(self) -> None:
        """Let all servers go."""
        for server in self.handles:
            ray.kill(server)
        self.handles = ()
