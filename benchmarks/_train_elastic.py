"""The same job under Ray Train v2, resized from outside: how long does it stand still?

Ray Train has no call to tell a run to grow or shrink. What stands in is a scaling policy of our own that asks an
actor for the number of workers, put in the place of Ray Train's through its internals (Ray 2.60).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle

NAMESPACE, BOARD = "benchmark-train", "board"
NEEDED = ("pandas", "pyarrow")
"""What Ray Train needs beside Ray."""
POLL = "0.2"
"""s between two looks of Ray Train's controller at its workers; 2 s if nobody says otherwise."""
BATCH, CHECKPOINT_STEPS, SETTLED = 64, 100, 50
"""Samples of a step; steps between checkpoints, and of every size before the next change."""
TIMEOUT_S = 240.0


class Board:
    """What the job should be, and what it does. Every worker of rank 0 notes its steps here."""

    def __init__(self) -> None:
        self._target, self._world, self._last, self._steps = 1, 0, 0.0, 0
        self._pauses: list[tuple[int, int, float]] = []

    def target(self) -> int:
        """Workers the job should have."""
        return self._target

    def set_target(self, workers: int) -> None:
        """Have the job grow or shrink."""
        self._target = workers

    def step(self, world: int, at: float) -> None:
        """A step of `world` workers ended at `at`."""
        if world != self._world:
            if self._world:
                self._pauses.append((self._world, world, at - self._last))
            self._world, self._steps = world, 0
        self._last = at
        self._steps += 1

    def now(self) -> tuple[int, int, list[tuple[int, int, float]]]:
        """Workers, steps that they have done together, and all changes: from, to, s without a step."""
        return self._world, self._steps, self._pauses


def missing() -> str:
    """The first package that Ray Train needs and that is not installed; empty if all are."""
    return next((name for name in NEEDED if importlib.util.find_spec(name) is None), "")


def pauses(address: str, sizes: Sequence[int]) -> list[tuple[int, int, float]]:
    """Start the job with one worker, bring it to every size in turn; returns from, to and s without a step of each."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import what lies beside this file
    remote: Any = ray.remote(num_cpus=0)
    board: Any = remote(Board).options(name=BOARD, namespace=NAMESPACE).remote()
    folder = Path(__file__).resolve().parent
    program = f"import sys; sys.path.append({str(folder)!r}); import _train_elastic as own; own.train(*sys.argv[1:])"
    with tempfile.TemporaryDirectory() as storage, tempfile.TemporaryFile("w+") as output:
        job = subprocess.Popen(
            [sys.executable, "-c", program, address, storage],
            env={**os.environ, "RAY_TRAIN_V2_ENABLED": "1", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": POLL},
            stdout=output,
            stderr=output,
        )
        try:
            for size in (1, *sizes):
                ray.get(board.set_target.remote(size))
                _wait_for(board, size, job)
            found: list[tuple[int, int, float]] = ray.get(board.now.remote())[2]
        except (RuntimeError, TimeoutError) as error:
            output.seek(0)
            raise RuntimeError(f"{error}; it said: {output.read()[-2000:]}") from None
        finally:
            job.terminate()
            job.wait()
            ray.kill(board)
    return found


def _wait_for(board: Any, size: int, job: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        world, steps, _ = ray.get(board.now.remote())
        if world == size and steps >= SETTLED:
            return
        if job.poll() is not None:
            raise RuntimeError(f"Ray Train ended with {job.returncode}")
        time.sleep(0.1)
    raise TimeoutError(f"Ray Train had no {size} workers within {TIMEOUT_S:.0f} s")


def train(address: str, storage: str) -> None:
    """Run the job until this process is ended."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision, ScalingPolicy
    from ray.train.v2.api import data_parallel_trainer

    class Told(ScalingPolicy):  # type: ignore[misc, unused-ignore]
        """Asks the board."""

        def _get_num_workers_for_resource_request(self) -> int:
            return 1

        def make_decision_for_non_running_worker_group(self) -> Any:
            return ResizeDecision(self._wanted(), self.scaling_config._resources_per_worker_not_none)

        def make_decision_for_running_worker_group(self, worker_group_state: Any, worker_group_status: Any) -> Any:  # noqa: ARG002
            wanted = self._wanted()
            if wanted == len(worker_group_state.workers):
                return NoopDecision()
            return ResizeDecision(wanted, self.scaling_config._resources_per_worker_not_none)

        def _wanted(self) -> int:
            return int(ray.get(ray.get_actor(BOARD, namespace=NAMESPACE).target.remote()))

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    data_parallel_trainer.create_scaling_policy = Told
    ray.init(address=address, namespace=NAMESPACE)
    TorchTrainer(
        train_loop,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True, resources_per_worker={"GPU": 1, "CPU": 0}),
        run_config=RunConfig(storage_path=storage, name="elastic"),
    ).fit()


def train_loop() -> None:
    """What every worker does: the model, data and batch of the job that `_ray_pause` resizes."""
    import torch
    from ray import train as ray_train
    from torch.nn.parallel import DistributedDataParallel

    from rlpto.ray_cluster.programs.digits import DigitsCnn

    torch.manual_seed(0)
    program: Any = DigitsCnn()
    context = ray_train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    model = program.model()
    optimizer = program.optimizer(model.parameters())
    step = 0
    if (kept := ray_train.get_checkpoint()) is not None:
        with kept.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    trained = DistributedDataParallel(model) if world > 1 else model
    board: Any = ray.get_actor(BOARD, namespace=NAMESPACE)
    while True:
        indices = (torch.arange(BATCH) + BATCH * step)[rank::world] % program.data_size
        optimizer.zero_grad()
        program.loss(trained, program.batch(indices)).backward()
        optimizer.step()
        step += 1
        if rank == 0:
            board.step.remote(world, time.time())
        if step % CHECKPOINT_STEPS == 0:
            with tempfile.TemporaryDirectory() as folder:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, Path(folder, "state.pt"))
                checkpoint = ray_train.Checkpoint.from_directory(folder) if rank == 0 else None
                ray_train.report({"step": step}, checkpoint=checkpoint)
