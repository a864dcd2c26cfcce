"""Training through parameter servers (Li et al., OSDI 2014): servers hold parts of the weights and update them.

The vector of all weights is split into one part per server. Workers push gradients and pull weights. The workers of a
synchronous group wait for each other in every step, which is equivalent to averaging gradients. An asynchronous group
updates with each gradient on arrival; a worker waits only if it is more than `MAX_STEPS_AHEAD` steps ahead of the
slowest (stale synchronous parallel, Ho et al., NeurIPS 2013).
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from rlpto.io.errors import JobError
from rlpto.ray_cluster.programs.base import TrainingProgram
from rlpto.ray_cluster.worker.gradient_noise import Estimate
from rlpto.ray_cluster.worker.worker_group import WorkerGroup

MAX_STEPS_AHEAD = 4
"""Steps that a worker of an asynchronous group may be ahead of the slowest."""

Numbers = NDArray[Any]


@dataclass(frozen=True)
class Push:
    """One worker's gradient for one server. options: optimizer options, as set by the worker's scheduler.

    square: squared norm of all of the worker's own gradients, if norms are measured in this step.
    """

    rank: int
    step: int
    gradient: Numbers
    options: dict[str, Any]
    square: float | None = None


@dataclass(frozen=True)
class Pull:
    """A server's part of the weights. local: mean of the workers' squared norms. mean: squared norm of this part of the
    mean gradient."""

    weights: Numbers
    local: float = 0.0
    mean: float = 0.0


class ParameterServer:
    """Actor that holds a part of the weights, and the state of its optimizer."""

    def __init__(self, asynchronous: bool) -> None:
        self._asynchronous = asynchronous
        self._mine: Optimizer  # from `load` on
        self._group = self._loaded = -1
        self._world = 0
        self._pushes: dict[int, Push] = {}
        self._norms = (0.0, 0.0)
        self._steps: dict[int, int] = {}
        self._version = 0
        self._changed = asyncio.Condition()

    async def alive(self) -> bool:
        """Return True, as a sign that the server answers."""
        return True

    async def load(self, group: int, optimizer: Optimizer) -> None:
        """Start from the weights and the state of `optimizer`, made for this server's part."""
        async with self._changed:
            self._mine, self._loaded = optimizer, group
            self._changed.notify_all()

    async def enter(self, group: int, world: int, reset: bool) -> Numbers:
        """Join a group of `world` workers. Returns the weights once they are available."""
        async with self._changed:
            if group > self._group:
                self._group, self._world = group, world
                self._pushes, self._steps = {}, {}
                self._changed.notify_all()
            await self._changed.wait_for(lambda: self._loaded == group if reset else self._loaded >= 0)
        return self._weights

    async def end(self) -> None:
        """End the present group, and wake its waiting workers."""
        async with self._changed:
            self._group = -1
            self._changed.notify_all()

    async def held(self) -> Optimizer:
        """Return the optimizer with its weights and state."""
        return self._mine

    async def exchange(self, group: int, push: Push) -> Pull:
        """Push a gradient, pull weights. Raises RuntimeError if the group is over."""
        async with self._changed:
            self._check(group)
            return await (self._at_once(group, push) if self._asynchronous else self._together(group, push))

    async def _together(self, group: int, push: Push) -> Pull:
        before = self._version
        self._pushes[push.rank] = push
        if len(self._pushes) == self._world:
            # In the order of ranks: sums of floats must not depend on the order of arrival.
            ranked = [self._pushes[rank] for rank in sorted(self._pushes)]
            mean = sum((other.gradient for other in ranked[1:]), ranked[0].gradient) / self._world
            if push.square is not None:
                local = sum(other.square or 0.0 for other in ranked) / self._world
                self._norms = local, float(np.dot(mean, mean))
            self._update(mean, push.options)
            self._pushes = {}
            self._changed.notify_all()
        await self._until(group, lambda: self._version > before)
        return Pull(self._weights, *self._norms)

    async def _at_once(self, group: int, push: Push) -> Pull:
        self._steps[push.rank] = push.step
        self._changed.notify_all()
        # A worker that has not begun does not delay others.
        await self._until(group, lambda: push.step - min(self._steps.values()) <= MAX_STEPS_AHEAD)
        self._update(push.gradient / self._world, push.options)
        return Pull(self._weights)

    async def _until(self, group: int, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds. Raises RuntimeError if the group is over."""
        await self._changed.wait_for(lambda: group != self._group or holds())
        self._check(group)

    def _update(self, gradient: Numbers, options: dict[str, Any]) -> None:
        (group,) = self._mine.param_groups
        group.update(options)
        (weights,) = group["params"]
        weights.grad = torch.from_numpy(gradient)
        self._mine.step()
        self._version += 1

    def _check(self, group: int) -> None:
        if group != self._group:
            raise RuntimeError(f"group {group} of workers is over: {self._group} trains now")

    @property
    def _weights(self) -> Numbers:
        (weights,) = self._mine.param_groups[0]["params"]
        copied: Numbers = weights.detach().numpy().copy()
        return copied


class ParameterServerGroup(WorkerGroup):
    """A worker's side: pushes its gradients, and pulls the updated weights. number: number of the group.

    The controller ends the servers' group, which wakes all waiting workers. Raises JobError if the optimizer treats
    parameters differently, because a part of the vector does not know its parameters.
    """

    def __init__(
        self,
        program: TrainingProgram,
        model: nn.Module,
        optimizer: Optimizer,
        servers: Sequence[Any],
        number: int,
        rank: int,
        world: int,
    ) -> None:
        if len(optimizer.param_groups) != 1:
            raise JobError(f"parameter servers take one group of parameters, found {len(optimizer.param_groups)}")
        super().__init__(model, optimizer, rank, world)
        self._program, self._servers, self._number = program, servers, number
        self._parameters = list(model.parameters())

    def enter(self, reset: bool) -> None:
        """Begin with the servers' weights. reset: they and the optimizer state are first taken from the first
        worker."""
        if reset and self.rank == 0:
            self._upload()
        self._take(ray.get([server.enter.remote(self._number, self.world, reset) for server in self._servers]))

    def _upload(self) -> None:
        weights = self._cut([parameter.detach() for parameter in self._parameters])
        own = [self._optimizer.state.get(parameter, {}) for parameter in self._parameters]
        cut = {key: self._cut([state[key] for state in own]) for key, value in own[0].items() if _is_cut(value)}
        calls = []
        for place, server in enumerate(self._servers):
            part = nn.Parameter(weights[place].clone())
            optimizer = self._program.optimizer([part])
            optimizer.param_groups[0].update(self._options())
            for key, value in own[0].items():
                optimizer.state[part][key] = cut[key][place].clone() if key in cut else value
            calls.append(server.load.remote(self._number, optimizer))
        ray.get(calls)

    def update(self, factor: float) -> Estimate | None:
        """Push gradients and pull weights. Only a synchronous group measures noise."""
        measured = self._measures
        gradients = [torch.zeros_like(own) if own.grad is None else own.grad.detach() for own in self._parameters]
        gradient = torch.cat([own.flatten().cpu() for own in gradients])
        square = float(torch.dot(gradient, gradient)) / self.weight**2 if measured else None
        options = self._options()
        options["lr"] = options["lr"] * factor
        pushes = [Push(self.rank, self._step, part.numpy(), options, square) for part in self._cut([gradient])]
        calls = [server.exchange.remote(self._number, push) for server, push in zip(self._servers, pushes, strict=True)]
        pulls: list[Pull] = ray.get(calls)
        self._take([pull.weights for pull in pulls])
        mean = sum(pull.mean for pull in pulls)
        return self._noise(pulls[0].local, mean) if measured and mean != 0.0 else None

    def gather(self) -> None:
        """Copy the servers' weights and optimizer state to this worker, as if it had made all updates itself."""
        parts: list[Optimizer] = ray.get([server.held.remote() for server in self._servers])
        held = [optimizer.param_groups[0]["params"][0] for optimizer in parts]
        self._take([weights.detach().numpy() for weights in held])
        states = [optimizer.state.get(weights, {}) for optimizer, weights in zip(parts, held, strict=True)]
        for key, value in states[0].items():
            whole = self._shaped(torch.cat([state[key] for state in states])) if _is_cut(value) else None
            for at, parameter in enumerate(self._parameters):
                own = copy.deepcopy(value) if whole is None else whole[at].to(parameter.device)
                self._optimizer.state[parameter][key] = own

    def _options(self) -> dict[str, Any]:
        return {key: value for key, value in self._optimizer.param_groups[0].items() if key != "params"}

    def _cut(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Concatenate values of all parameters, and split the vector into a part per server."""
        return list(torch.tensor_split(torch.cat([part.flatten().cpu() for part in parts]), len(self._servers)))

    def _take(self, parts: Sequence[Numbers]) -> None:
        shaped = self._shaped(torch.from_numpy(np.concatenate(parts)))
        with torch.no_grad():
            for parameter, own in zip(self._parameters, shaped, strict=True):
                parameter.copy_(own)

    def _shaped(self, vector: Tensor) -> list[Tensor]:
        """Split a vector into one tensor per parameter, of the parameter's shape."""
        parts = vector.split([one.numel() for one in self._parameters])  # type: ignore[no-untyped-call]
        return [part.reshape(one.shape) for part, one in zip(parts, self._parameters, strict=True)]


def _is_cut(value: Any) -> bool:
    """True for optimizer state with an entry per element of a parameter; other state is common to all elements."""
    return isinstance(value, Tensor) and value.dim() > 0
