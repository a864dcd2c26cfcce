"""Groups of workers on GPUs. One GPU is enough: nccl takes its two workers for those of two hosts, so that
they talk through sockets, as those of several hosts do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.worker.training import Trainer
from rlpto.ray_cluster.worker.worker_group import AllReduceGroup, start_store
from tests.ray_cluster.programs import weights_of
from tests.ray_cluster.running import make_spec

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and a torch for it")
def test_a_cuda_worker_gets_away_from_a_frozen_one_and_goes_on_exactly(tmp_path: Path) -> None:
    """Two workers, and one of them freezes: what the other one has in the end is what one process has."""
    spec = make_spec(tmp_path, epochs=100.0, device="cuda", pace=None)
    store = start_store("127.0.0.1")
    program = [sys.executable, "-m", "tests.ray_cluster.test_cuda", spec.to_json()]
    own = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    first, second = (
        subprocess.Popen(
            [*program, str(rank), str(store.port)],
            env={**os.environ, **own, "NCCL_HOSTID": f"host-{rank}"},
            cwd=REPOSITORY,
        )
        for rank in range(2)
    )
    try:
        assert first.wait(180.0) == 0
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
    alone = Trainer(spec)
    alone.run(20)
    expected, reached = weights_of(alone.network), torch.load(tmp_path / "weights.pt")
    assert float((reached - expected).norm() / expected.norm()) < 1e-12


ABORT_AFTER_S = 3.0


def main(text: str, rank: int, port: int) -> None:
    """One of two workers of a group, in a process of its own: `python -m tests.ray_cluster.test_cuda SPEC RANK PORT`.

    Both train ten steps. Then the second one freezes itself, and the first one has to get away, and trains ten more
    alone.
    """
    spec = JobSpec.from_json(text)
    trainer = Trainer(spec)
    trainer.warm_up()
    store = PrefixStore("group-1", TCPStore("127.0.0.1", port, is_master=False))
    group = AllReduceGroup(trainer.network, trainer.optimizer, store, rank, 2, 60.0)
    trainer.join(group)
    state = group.share(trainer.state() if rank == 0 else None)
    trainer.load(state)
    group.wrap(trainer.leaves_out)
    trainer.run(10)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    before = weights_of(trainer.network)
    threading.Timer(ABORT_AFTER_S, group.abort).start()
    with pytest.raises(RuntimeError):
        trainer.run(20)
    trainer.join()
    trainer.undo()
    assert torch.equal(weights_of(trainer.network), before), "half a step must not count"
    assert trainer.position.step == 10
    trainer.run(20)
    torch.save(weights_of(trainer.network), f"{spec.folder}/weights.pt")
    os._exit(0)  # threads of an aborted group may still be about


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
