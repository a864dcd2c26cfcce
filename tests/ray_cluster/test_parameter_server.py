"""Parameter servers: synchronous ones give what averaging gives, asynchronous ones hold no worker up for long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import nn
from torch.optim import SGD, Adam

from rlpto.io.errors import JobError
from rlpto.ray_cluster.controllers import control_node
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.worker.parameter_server import MAX_STEPS_AHEAD, ParameterServer, ParameterServerGroup, Push
from tests.ray_cluster.programs import Plain
from tests.ray_cluster.running import KILL, Running, make_spec
from tests.ray_cluster.test_controller import distance_to_one_process


@pytest.mark.slow
def test_a_job_changes_workers_and_servers_and_ends_where_one_process_does(
    ray_cluster: LocalCluster, tmp_path: Path
) -> None:
    """The weights are those of one process in the end, Adam's moments included, and no step is lost or done twice."""
    a, b, c, _ = ray_cluster.node_ids
    spec = make_spec(tmp_path, architecture="parameter_server", servers=2, options={"adam": True}, pace=0.02)
    with Running(ray_cluster, spec) as job:
        job.command([a, b])
        assert job.steps(40).serving_on == (control_node(),) * 2
        assert job.report().noise_scale > 0
        job.signal_worker(b, KILL)
        job.until(lambda now: now.interruptions.recoveries == 1 and len(now.training_on) == 2)
        job.command([])
        job.command([a], servers=[a])
        before = job.steps(10)
        assert before.serving_on == (a,)
        grown = job.command([a, b], servers=[a, b, c])
        assert sorted(grown.serving_on) == sorted([a, b, c])
        assert grown.step >= before.step
        assert grown.interruptions.rescales == before.interruptions.rescales + 1
        more = job.steps(20)
        assert {(size.workers, size.servers) for size in more.throughput} >= {(1, 1), (2, 3)}
        job.command([a, b], servers=[c])
        assert job.steps(10).serving_on == (c,)
        job.command([])
        assert job.report().serving_on == ()
        job.command([b], servers=[a, b])
        job.steps(10)
        job.command([])
        last = job.stop()
    step, distance = distance_to_one_process(spec)
    assert step == last.step
    assert distance <= 1e-12


@pytest.mark.slow
def test_growth_that_does_not_come_up_is_rolled_back(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    a, b, *_ = ray_cluster.node_ids
    spec = make_spec(tmp_path, architecture="parameter_server", pace=0.02, start_timeout=5.0)
    slots = int(next(node["Resources"]["CPU"] for node in ray.nodes() if node["NodeID"] == b))
    here = NodeAffinitySchedulingStrategy(b, soft=False)
    other = ray.remote(ParameterServer).options(num_cpus=slots, scheduling_strategy=here).remote(False)
    ray.get(other.alive.remote())  # another process holds all CPU slots of the node
    with Running(ray_cluster, spec) as job:
        job.command([a], servers=[a])
        before = job.steps(5)
        job.command([a, b], servers=[a, b], wait=False)
        report = job.until(lambda now: now.rolled_back == job.generation)
        assert (report.training_on, report.serving_on) == ((a,), (a,))
        assert "did not come up within 5 s: the job goes on with 1 workers and 1 servers" in report.failure
        assert job.steps(10).step > before.step
        job.until(lambda now: now.holding == (a,))
        ray.kill(other)
        for _ in range(5):  # on a busy machine a worker may take longer to start than this test waits
            job.command([a, b], wait=False, servers=[a, b])
            grown = job.until(lambda now: now.applied == job.generation and now.holding == now.training_on)
            if grown.rolled_back < job.generation:
                break
        assert (len(grown.training_on), len(grown.serving_on)) == (2, 2)
        job.steps(5)
        job.stop()


@pytest.mark.slow
def test_asynchronous_servers_learn(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    a, b, *_ = ray_cluster.node_ids
    spec = make_spec(tmp_path, architecture="parameter_server", asynchronous=True, epochs=20.0, pace=0.01)
    with Running(ray_cluster, spec) as job:
        job.command([a, b], wait=False)
        report = job.until(lambda now: now.state == "finished" and not now.holding)
    assert report.progress == 20.0
    assert report.accuracy > 0.7


def push(rank: int, step: int, gradient: list[float]) -> Push:
    return Push(rank, step, np.array(gradient), {"lr": 1.0})


async def server_with(weights: list[float], asynchronous: bool, world: int) -> ParameterServer:
    server = ParameterServer(asynchronous)
    await server.load(1, SGD([nn.Parameter(torch.tensor(weights, dtype=torch.float64))], lr=1.0))
    await server.enter(1, world, reset=True)
    return server


def test_a_worker_of_an_asynchronous_server_gets_only_so_far_ahead() -> None:
    async def run() -> None:
        server = await server_with([0.0], asynchronous=True, world=2)
        await server.exchange(1, push(1, 0, [2.0]))
        for step in range(MAX_STEPS_AHEAD + 1):
            ahead = await server.exchange(1, push(0, step, [2.0]))
        assert ahead.weights.tolist() == [-(MAX_STEPS_AHEAD + 2.0)]
        held_up = asyncio.ensure_future(server.exchange(1, push(0, MAX_STEPS_AHEAD + 1, [2.0])))
        await asyncio.sleep(0.01)
        assert not held_up.done()
        await server.exchange(1, push(1, 1, [2.0]))
        await held_up

    asyncio.run(run())


def test_workers_that_wait_learn_that_their_group_is_over() -> None:
    async def run(asynchronous: bool) -> None:
        server = await server_with([0.0], asynchronous, world=2)
        await server.exchange(1, push(1, 0, [0.0])) if asynchronous else None
        waits = asyncio.ensure_future(server.exchange(1, push(0, MAX_STEPS_AHEAD + 1, [1.0])))
        await asyncio.sleep(0.01)
        await server.end()
        with pytest.raises(RuntimeError, match="group 1 of workers is over"):
            await waits
        assert (await server.enter(2, 1, reset=False)).tolist() == [0.0], "half a step must not count"

    for asynchronous in (True, False):
        asyncio.run(run(asynchronous))


def test_an_optimizer_with_several_groups_is_refused() -> None:
    program = Plain()
    model = program.model()
    optimizer = Adam([{"params": [one]} for one in model.parameters()])
    with pytest.raises(JobError, match="one group of parameters, found 4"):
        ParameterServerGroup(program, model, optimizer, [], 1, 0, 1)
