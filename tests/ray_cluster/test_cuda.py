"""Groups of workers on GPUs. One GPU is enough: nccl takes its two workers for those of two hosts, so that
they talk through sockets, as those of several hosts do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlpto.ray_cluster.messages import Device, JobSpec
from rlpto.ray_cluster.worker.training import Trainer, weights_of
from rlpto.ray_cluster.worker.worker_group import start_store

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and a torch for it")
def test_a_cuda_worker_gets_away_from_a_frozen_one_and_goes_on_exactly(tmp_path: Path) -> None:
    two_workers(tmp_path, "cuda")


def two_workers(folder: Path, device: Device) -> None:
    """Two workers on `device`, and one of them freezes: what the other one has in the end is what one process has."""
    spec = JobSpec(
        id="job-000000",
        name="job",
        session="cuda",
        training="tests.ray_cluster.programs:Plain",
        folder=str(folder),
        batch_size=16,
        epochs=100.0,
        data_size=101,
        float64=True,
        device=device,
    )
    store = start_store("127.0.0.1")
    program = [sys.executable, "-m", "tests.ray_cluster.worker_process", spec.to_json()]
    own = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo", "PYTHONPATH": str(REPOSITORY)}
    first, second = (
        subprocess.Popen(
            [*program, str(rank), str(store.port)],
            env={**os.environ, **own, "NCCL_HOSTID": f"host-{rank}"},
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    )
    try:
        said, _ = first.communicate(timeout=180.0)
        assert first.returncode == 0
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    found = json.loads(said.splitlines()[-1])
    assert (found["before"], found["after"]) == (10, 20)
    alone = Trainer(spec)
    alone.run(20)
    expected, reached = weights_of(alone.network), torch.load(folder / "weights.pt")
    assert float((reached - expected).norm() / expected.norm()) < 1e-12
