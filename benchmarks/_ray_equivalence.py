"""Whether rescales and faults leave a job where one undisturbed process ends."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import torch
from _common import Check
from _ray_job import cluster, job, load, send

from rlpto.ray_cluster.job.job_folder import read_newest
from rlpto.ray_cluster.measuring.commanded_job import CommandedJob
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.programs.base import load_program
from rlpto.ray_cluster.worker.sampling import step_seed
from rlpto.ray_cluster.worker.training import Trainer, weights_of

DISTANCE = 1e-12
EXACT = {"options": {"channels": 4}, "float64": True, "pace": 0.02, "heartbeat_timeout": 3.0}
"""A network with dropout."""


def run(_: int) -> tuple[list[Check], dict[str, object]]:
    with cluster() as started:
        averaged = disturbed(started, {})
        served = disturbed(started, {"architecture": "parameter_server", "servers": 2})
        bits = alone(started)
    checks = [
        Check("distance after rescales and faults", averaged, "relative", DISTANCE, False),
        Check("the same with parameter servers", served, "relative", DISTANCE, False),
        Check("weights that differ from plain torch at one worker", bits, "of all", 0.0, False),
    ]
    return checks, {"load during equivalence": load()}


def disturbed(started: LocalCluster, more: dict[str, object]) -> float:
    """Relative distance of a job's weights to those of one process, after all that may happen to it."""
    a, b, c, d = started.node_ids
    with job(**EXACT, **more, checkpoint_interval=2.0) as running:
        running.command([a])
        running.steps(20)
        running.command([a, b])
        running.steps(20)
        fault(running, lambda: send(started.worker_pids(b)[:1], signal.SIGKILL))
        running.command([a, b, c, d])
        running.steps(20)
        fault(running, lambda: send(started.worker_pids(c)[:1], signal.SIGSTOP))
        running.command([d, d, c])
        running.steps(20)
        send([running.report().pid], signal.SIGKILL)
        running.until(lambda now: now.recoveries >= 3)
        running.command([a])
        running.steps(20)
        running.command([])
        spec = running.spec
        found = read_newest(Path(spec.folder))
    if found is None:
        raise RuntimeError("the job left no checkpoint")
    reached, undisturbed = Trainer(spec), Trainer(spec)
    reached.load(found[1])
    undisturbed._paced = False
    undisturbed.run(found[0].step)
    expected = weights_of(undisturbed.network)
    return float((weights_of(reached.network) - expected).norm() / expected.norm())


def fault(running: CommandedJob, happens: object) -> None:
    """Let something happen, and wait until the job has recovered."""
    before = running.report().recoveries
    happens()  # type: ignore[operator]
    running.until(lambda now: now.recoveries > before)
    running.steps(10)


def alone(started: LocalCluster) -> float:
    """Share of weights of a single-precision job with one worker that are not bitwise those of plain torch."""
    with job() as running:
        running.command([started.node_ids[0]])
        running.steps(200)
        running.command([])
        spec = running.spec
        found = read_newest(Path(spec.folder))
    if found is None:
        raise RuntimeError("the job left no checkpoint")
    reached = Trainer(spec)
    reached.load(found[1])
    ours, theirs = weights_of(reached.network), weights_of(plain_torch(spec, found[0].step))
    return float((ours != theirs).float().mean())


def plain_torch(spec: JobSpec, steps: int) -> torch.nn.Module:
    """The loop that a user would write."""
    program = load_program(spec.training, spec.options)
    torch.manual_seed(spec.seed)
    model = program.model()
    optimizer = program.optimizer(model.parameters())
    step = epoch = 0
    while step < steps:
        order = np.random.default_rng((spec.seed, epoch)).permutation(spec.data_size)
        for start in range(0, spec.data_size, spec.batch_size):
            if step == steps:
                break
            # Not torch.manual_seed, which takes a millisecond: it notes the present stack for GPUs to come.
            torch.default_generator.manual_seed(step_seed(spec.seed, step))
            optimizer.zero_grad()
            loss = program.loss(model, program.batch(torch.from_numpy(order[start : start + spec.batch_size])))
            loss.backward()
            optimizer.step()
            step += 1
        epoch += 1
    return model
