"""Linear layers that a team of workers holds together, and a program with them: tensor parallelism.

After Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053, section 3): of two layers the first is split by its outputs,
the second by its inputs, so that they need one sum over the team forward, and one backward.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from rlpto.io.errors import JobError
from rlpto.ray_cluster.programs.base import Team
from rlpto.ray_cluster.programs.digits import DigitsMlp


class _TeamSum(Function):
    """Sum over a team, either of the values or of their gradients; the others pass unchanged."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, team: Team, of_values: bool) -> Tensor:
        ctx.team, ctx.of_values = team, of_values
        return _summed(values, team) if of_values else values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient if ctx.of_values else _summed(gradient, ctx.team), None, None


def _summed(values: Tensor, team: Team) -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    if team.parts > 1:
        dist.all_reduce(total, group=team.group)
    return total


class ColumnLinear(nn.Linear):
    """A linear layer, [n, inputs] to the share of outputs that is this worker's in a team."""

    splits: ClassVar = {"weight": 0, "bias": 0}

    def __init__(self, inputs: int, outputs: int, team: Team) -> None:
        super().__init__(inputs, own_share(outputs, team))
        self._team = team

    def forward(self, inputs: Tensor) -> Tensor:
        """See nn.Linear."""
        return super().forward(_TeamSum.apply(inputs, self._team, False))  # type: ignore[no-untyped-call]


class RowLinear(nn.Linear):
    """A linear layer, from the share of inputs that is this worker's in a team to [n, outputs], the same for all."""

    splits: ClassVar = {"weight": 1}

    def __init__(self, inputs: int, outputs: int, team: Team) -> None:
        super().__init__(own_share(inputs, team), outputs)
        self._team = team

    def forward(self, inputs: Tensor) -> Tensor:
        """See nn.Linear."""
        own = nn.functional.linear(inputs, self.weight)
        outputs: Tensor = _TeamSum.apply(own, self._team, True)  # type: ignore[no-untyped-call]
        return outputs + self.bias


def own_share(units: int, team: Team) -> int:
    """How many of the units of a layer each worker of a team has. Raises JobError if they cannot have equally many."""
    if units % team.parts:
        raise JobError(f"model_parallel {team.parts}: a layer has {units} units, expected a multiple of {team.parts}")
    return units // team.parts


class DigitsTensorParallel(DigitsMlp):
    """A perceptron with three hidden layers, whose weights the workers of a team share out. Options as of DigitsMlp;
    `hidden` is a multiple of the workers."""

    def model(self) -> nn.Module:
        """Two times a layer split by outputs, ReLU, a layer split by inputs."""
        hidden, team = self._hidden, self.team
        first = ColumnLinear(64, hidden, team), nn.ReLU(), RowLinear(hidden, hidden, team), nn.ReLU()
        second = ColumnLinear(hidden, hidden, team), nn.ReLU(), RowLinear(hidden, 10, team)
        return nn.Sequential(nn.Flatten(), *first, *second)
