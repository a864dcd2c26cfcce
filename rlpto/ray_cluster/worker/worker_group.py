"""Workers that train one model together: forming a group, averaging gradients, and updating weights.

A group has a fixed number of workers and is discarded when that number changes; the model outlives it.
"""

import fcntl
import math
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket, Store, TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from rlpto.ray_cluster.worker.gradient_noise import MEASURE_EVERY_STEPS, Estimate, estimate
from rlpto.store.program_keys import LrRule


class WorkerGroup:
    """A group for training. rank: rank of this worker among `world`. model: model that the loss calls."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, rank: int = 0, world: int = 1) -> None:
        self.model, self.rank, self.world = model, rank, world
        self._optimizer = optimizer
        self._step = self._own = self._samples = 0

    def begin(self, step: int, own: int, samples: int) -> None:
        """Prepare `step`, in which this worker has `own` of `samples` samples, before its gradients are computed."""
        self._step, self._own, self._samples = step, own, samples

    def update(self, factor: float) -> Estimate | None:
        """Update the weights with the learning rate times `factor`, after the gradients. Returns the noise estimate, if
        measured."""
        raise NotImplementedError

    def gather(self) -> None:
        """Fetch the state of model and optimizer held by other processes."""

    def abort(self) -> None:
        """Wake the thread that waits for another worker. Called from another thread; does not wait itself."""

    def close(self) -> None:
        """Leave the group."""

    @property
    def _measures(self) -> bool:
        """True in steps of several workers in which norms are measured, which takes a sample on each worker."""
        return self._step % MEASURE_EVERY_STEPS == 0 and self._samples >= self.world > 1

    @property
    def weight(self) -> float:
        """Weight of this worker's gradients in the mean over workers."""
        return self._own * self.world / self._samples

    def _noise(self, local: float, mean: float) -> Estimate:
        """Noise estimate from a step of several workers."""
        return estimate(local, mean, mean_inverse(self._samples, self.world), 1 / self._samples)

    def _step_at(self, factor: float) -> None:
        """Update the weights at learning rates times `factor`. Schedulers still see the unscaled rates."""
        if factor == 1.0:
            self._optimizer.step()
            return
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        try:
            for group in groups:
                group["lr"] = group["lr"] * factor
            self._optimizer.step()
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


class SingleWorker(WorkerGroup):
    """A single worker: plain torch. Noise is measured from two successive steps in every `MEASURE_EVERY_STEPS`."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(model, optimizer)
        self._kept: list[Tensor] = []
        self._kept_step, self._kept_samples = -1, 0

    def update(self, factor: float) -> Estimate | None:
        """Compare with the previous step's gradients if noise is measured in this step, then update."""
        noise = self._compare()
        self._step_at(factor)
        return noise

    def _compare(self) -> Estimate | None:
        turn = self._step % MEASURE_EVERY_STEPS
        if turn == 0:
            self._keep(gradients_of(self.model))
            return None
        if turn != 1 or self._kept_step != self._step - 1:
            return None
        before, now = self._kept, gradients_of(self.model)
        if len(before) != len(now):
            return None
        sizes = (self._kept_samples, self._samples)
        first, second = squared_norm(before), squared_norm(now)
        product = sum(torch.dot(a.flatten(), b.flatten()) for a, b in zip(before, now, strict=True))
        share = sizes[0] / sum(sizes)
        mean = share**2 * first + (1 - share) ** 2 * second + 2 * share * (1 - share) * float(product)
        inverse = (1 / sizes[0] + 1 / sizes[1]) / 2
        return estimate((first + second) / 2, mean, inverse, 1 / sum(sizes))

    def _keep(self, gradients: list[Tensor]) -> None:
        """Store the gradients of this step, reusing memory, because new memory costs more than the copy."""
        if [kept.shape for kept in self._kept] != [gradient.shape for gradient in gradients]:
            self._kept = [torch.empty_like(gradient) for gradient in gradients]
        for kept, gradient in zip(self._kept, gradients, strict=True):
            kept.copy_(gradient)
        self._kept_step, self._kept_samples = self._step, self._samples


class AllReduceGroup(WorkerGroup):
    """Workers that average gradients among themselves: torch's DistributedDataParallel over nccl or gloo.

    store: store through which only the workers of this group find each other. Raises RuntimeError if they do not within
    `timeout` seconds, or if a worker is lost while another waits for it.

    With nccl only `abort` ends a wait: torch's own watchdog would end the process and lose the newest state. An
    interrupted operation then looks successful, so every step checks for an abort before it changes weights.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, store: Store, rank: int, world: int, timeout: float
    ) -> None:
        super().__init__(model, optimizer, rank, world)
        self._bare = model
        device = next(model.parameters()).device
        backend = "nccl" if device.type == "cuda" else "gloo"
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        before = open_sockets()
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout))
        self._process_group = dist.group.WORLD
        self._sockets = open_sockets() - before
        self._open, self._aborted = True, False
        self._wrapped = set[nn.Parameter]()
        self._device = device

    def wrap(self, leaves_out: bool) -> None:
        """Start averaging gradients. All workers already hold the same weights, so none are sent.

        leaves_out: steps may compute no gradients for some weights, which are then searched for in each step.
        """
        wrapped = DistributedDataParallel(self._bare, init_sync=False, find_unused_parameters=leaves_out)
        wrapped.register_comm_hook(self, AllReduceGroup._average)
        self.model = wrapped
        self._wrapped = {one for one in self._bare.parameters() if one.requires_grad}

    def share(self, data: bytes | None) -> bytes:
        """Broadcast the first worker's bytes to all workers. The others pass None.

        `broadcast_object_list` is not used: it unpickles data from the network and takes twice the memory.
        """
        size = torch.tensor([len(data) if data is not None else 0], device=self._device)
        dist.broadcast(size, 0)
        if data is not None:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)
        else:
            content = torch.empty(int(size), dtype=torch.uint8, device=self._device)
        dist.broadcast(content, 0)
        self._wait()
        return data if data is not None else content.cpu().numpy().tobytes()

    def begin(self, step: int, own: int, samples: int) -> None:
        """Reset the sum of squared norms of this worker's own gradients, which grows bucket by bucket."""
        super().begin(step, own, samples)
        self._local = torch.zeros((), device=self._device)

    # torch inspects the annotations of this hook, which must not be strings: no `from __future__ import annotations`.
    def _average(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average one bucket of gradients. The norm of this worker's own gradients is sent with the last bucket."""
        buffer = bucket.buffer()
        if self._measures:
            self._local = self._local + torch.dot(buffer, buffer)
        if not (self._measures and bucket.is_last()):
            return _all_reduce(buffer.div_(self.world), lambda done: done.value()[0])
        own = self._local / self.weight**2 / self.world
        both = torch.cat([buffer.div_(self.world), own.to(buffer.dtype).reshape(1)])

        def apart(done: torch.futures.Future[list[Tensor]]) -> Tensor:
            summed = done.value()[0]
            self._local = summed[-1]
            return buffer.copy_(summed[:-1])

        return _all_reduce(both, apart)

    def _average_unfrozen(self) -> None:
        """Average the gradients of weights that training has unfrozen since `wrap`, of which the wrapper knows nothing.

        A gradient that only other workers have counts as zero here; one that no worker has stays away.
        """
        unfrozen = [one for one in self._bare.parameters() if one.requires_grad and one not in self._wrapped]
        if not unfrozen:
            return
        has = torch.tensor([one.grad is not None for one in unfrozen], dtype=torch.float64, device=self._device)
        dist.all_reduce(has)
        trained = [one for one, workers in zip(unfrozen, has.tolist(), strict=True) if workers]
        if not trained:
            return
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in trained]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        own = torch.dot(flat, flat) / self.weight**2
        both = torch.cat([flat, own.reshape(1)]).div_(self.world)
        dist.all_reduce(both)
        self._local = self._local + both[-1]
        mean = both[:-1].split([gradient.numel() for gradient in gradients])  # type: ignore[no-untyped-call]
        for one, part in zip(trained, mean, strict=True):
            one.grad = part.reshape(one.shape).clone()

    def update(self, factor: float) -> Estimate | None:
        """Update this worker's weights; every worker makes the same update."""
        self._average_unfrozen()
        self._wait()
        noise = None
        if self._measures:
            noise = self._noise(float(self._local), squared_norm(gradients_of(self._bare)))
        self._step_at(factor)
        return noise

    def abort(self) -> None:
        """End all waiting for other workers: by nccl's own abort, or by shutting down gloo's connections.

        No call of gloo wakes a thread that waits for a frozen process: aborting has no effect there, and leaving the
        group waits too. Closing the connection wakes it.
        """
        self._aborted = True
        if self._device.type == "cuda":
            if self._process_group is not None:
                threading.Thread(target=self._process_group.abort, daemon=True).start()  # it may take its time
            return
        for descriptor, _ in self._sockets & open_sockets():
            with socket.socket(fileno=os.dup(descriptor)) as connection, suppress(OSError):
                # Gloo ends the process if the socket on which it listens is touched.
                if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all connections; workers waiting for this one notice at once."""
        if not self._open:
            return
        self._open = False
        self.model = self._bare
        if self._process_group is not None and self._device.type == "cuda":
            self._process_group.abort()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _wait(self) -> None:
        """Wait until communication has completed. Raises RuntimeError if the group was aborted meanwhile."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        if self._aborted:
            raise RuntimeError("the worker group was aborted")


def _all_reduce(
    tensor: Tensor, then: Callable[[torch.futures.Future[list[Tensor]]], Tensor]
) -> torch.futures.Future[Tensor]:
    """Sum over workers, in place and without waiting; `then` turns the sum into the gradients."""
    work = dist.all_reduce(tensor, async_op=True)
    future: torch.futures.Future[Tensor] = work.get_future().then(then)
    return future


def open_sockets() -> set[tuple[int, int]]:
    """Descriptor and inode of every socket of this process (Linux; elsewhere none)."""
    found = set()
    folder = Path("/proc/self/fd")
    for name in os.listdir(folder) if folder.exists() else ():
        with suppress(OSError):  # closed since it was listed
            about = os.fstat(int(name))
            if stat.S_ISSOCK(about.st_mode):
                found.add((int(name), about.st_ino))
    return found


def mean_inverse(samples: int, world: int) -> float:
    """Mean over workers of 1 / (samples of the worker), for a batch dealt out by `sampling.shard`."""
    each, more = divmod(samples, world)
    return (more / (each + 1) + (world - more) / each) / world


def gradients_of(model: nn.Module) -> list[Tensor]:
    """Gradients of all parameters that have one."""
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def squared_norm(tensors: Iterable[Tensor]) -> float:
    """Sum of the squares of all elements."""
    return float(torch.nn.utils.get_total_norm(tensors)) ** 2


def learning_rate_factor(rule: LrRule, scale: float, gain: float) -> float:
    """Factor on the learning rate of a step with `scale` times the job's batch size, worth `gain` ordinary steps.

    linear: Goyal et al. (arXiv 1706.02677). sqrt: Krizhevsky (arXiv 1404.5997). adascale: Johnson et al. (ICML 2020),
    the gain itself.
    """
    return {"none": 1.0, "linear": scale, "sqrt": math.sqrt(scale), "adascale": gain}[rule]


def start_store(host: str) -> TCPStore:
    """Store through which workers find each other. It listens only at `host`; torch's own socket would listen on all
    interfaces."""
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        port = listener.getsockname()[1]
        descriptor = listener.detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)


def use_interface_of(address: str) -> None:
    """Make gloo and nccl use only the network interface with this IPv4 address, if there is one (Linux). On a local
    cluster, this is the loopback interface. Variables set by the user are kept."""
    get_interface_address = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex() if sys.platform == "linux" else ():
            with suppress(OSError):  # it has none
                said = fcntl.ioctl(asked, get_interface_address, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(said[20:24]) == address:
                    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
                    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
