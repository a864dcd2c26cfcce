"""The job controller: an actor that owns the job's workers and keeps them training as commanded, despite faults.

It is detached (it outlives its driver), uses no GPU, and is pinned to its node, where it finds its files again when Ray
restarts it. Workers are actors with one GPU each and hard node affinity. Placement groups cannot be resized, and each
worker would need its own.
"""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpto.io.errors import JobError
from rlpto.ray_cluster.messages import NAMESPACE, JobReport, JobSpec, Plan, controller_name

END_DELAY_S = 0.3
"""Time between the answer to `stop` and the controller's end."""


class JobController:
    """Actor around a `ControlLoop`: takes commands and reports at once, while the loop's own task does the work.

    resume: continue from checkpoints in the job's folder; otherwise checkpoints of an earlier job of the same name are
    deleted. A controller restarted by Ray always continues, under the newest command it took.
    """

    def __init__(self, spec: JobSpec, resume: bool) -> None:
        context = ray.get_runtime_context()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Ray's own warnings about its internal calls
            restarted = bool(context.was_current_actor_reconstructed)
        # Imported here because it needs torch, which processes that only start and call controllers do not need.
        from rlpto.ray_cluster.job.control_loop import ControlLoop

        self._loop = ControlLoop(spec, context.get_node_id(), resume, restarted)
        self._work = asyncio.get_running_loop().create_task(self._loop.run())

    async def command(self, generation: int, plan: Plan) -> JobReport:
        """Train by the plan from now on. For a plan without nodes, write a checkpoint and release all workers."""
        self._loop.command(generation, plan)
        return self._loop.report()

    async def report(self) -> JobReport:
        """The job's present report."""
        return self._loop.report()

    async def stop(self) -> JobReport:
        """Write a checkpoint, release everything, and end. Returns the last report."""
        self._loop.stop()
        await self._work
        own = ray.get_runtime_context().current_actor
        asyncio.get_running_loop().call_later(END_DELAY_S, lambda: ray.kill(own, no_restart=True))
        return self._loop.report()


def start_controller(spec: JobSpec, node_id: str, resume: bool) -> Any:
    """Start the controller of a job on a node, and return its handle. It waits for its first command.

    Raises JobError if the job has a controller already.
    """
    name = controller_name(spec.session, spec.id)
    actor: Any = ray.remote(JobController)
    try:
        return actor.options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        ).remote(spec, resume)
    except ValueError:
        raise JobError(f"job {spec.id}: session {spec.session} has a controller of this id already") from None
