"""One of two workers of a group in a process of its own: `python -m tests.ray_cluster.worker_process SPEC RANK PORT`.

Both train ten steps. Then the second one freezes itself, and the first one has to get away, and trains ten more alone.
It prints a line of JSON: steps done before and after the fault, and how long after `abort` its wait ended, in s.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import torch
from torch.distributed import PrefixStore, TCPStore

from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.worker.training import Trainer, weights_of
from rlpto.ray_cluster.worker.worker_group import AllReduceGroup, SingleWorker

ABORT_AFTER_S = 3.0


def main(text: str, rank: int, port: int) -> None:
    spec = JobSpec(**json.loads(text))
    trainer = Trainer(spec)
    trainer.warm_up()
    store = PrefixStore("group-1", TCPStore("127.0.0.1", port, is_master=False))
    group = AllReduceGroup(trainer.network, trainer.optimizer, store, rank, 2, 60.0)
    trainer.join(group)
    state = group.share(trainer.state() if rank == 0 else None)
    trainer.load(state)
    group.wrap()
    trainer.run(10)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    before = weights_of(trainer.network)
    threading.Timer(ABORT_AFTER_S, group.abort).start()
    began = time.monotonic()
    try:
        trainer.run(20)
    except RuntimeError:
        waited = time.monotonic() - began
    else:
        raise AssertionError("it trained on with a worker that is frozen")
    group.close()
    trainer.undo()
    trainer.join(SingleWorker(trainer.network, trainer.optimizer))
    assert torch.equal(weights_of(trainer.network), before), "half a step must not count"
    step = trainer.position.step
    trainer.run(20)
    torch.save(weights_of(trainer.network), f"{spec.folder}/weights.pt")
    print(json.dumps({"before": step, "after": trainer.position.step, "seconds": waited - ABORT_AFTER_S}), flush=True)
    os._exit(0)  # threads of an aborted group may still be about


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
