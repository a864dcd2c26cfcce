"""Models that a team of workers holds together: linear layers, parts of a model's state, and a program.

After Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053, section 3): of two layers the first is split by its outputs,
the second by its inputs, so that they need one sum over the team forward, and one backward.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.optim import Optimizer

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


SPLITS = "splits"
"""Attribute of a module with the dimension along which each of its weights is split, by name; key of a part's state."""
Splits = dict[str, dict[Any, int]]


def splits_of(network: nn.Module, optimizer: Optimizer) -> Splits:
    """Dimensions along which weights are split, by their names in the model and their numbers in the optimizer."""
    found = {
        f"{name}.{weight}": along
        for name, module in network.named_modules()
        for weight, along in getattr(module, SPLITS, {}).items()
    }
    named = {id(weight): name for name, weight in network.named_parameters()}
    names = [named[id(weight)] for group in optimizer.param_groups for weight in group["params"]]
    return {"model": found, "optimizer": {at: found[name] for at, name in enumerate(names) if name in found}}


def part_of(state: Mapping[str, Any], splits: Splits, team: Team) -> dict[str, Any]:
    """What a worker of a team has of a whole state."""
    return _changed([state], splits, lambda found, along: found[0].chunk(team.parts, along)[team.part].clone())


def whole_of(answers: Sequence[tuple[int, bytes]]) -> tuple[int, bytes]:
    """Step and whole state from those of the workers of a team, by part; of workers that hold all, the first's."""
    states = [torch.load(io.BytesIO(state), "cpu", weights_only=True) for _, state in answers if len(answers) > 1]
    if not states or SPLITS not in states[0]:
        return answers[0]
    if len({step for step, _ in answers}) > 1:
        raise RuntimeError(f"parts of a model after different steps: {[step for step, _ in answers]}")
    written = io.BytesIO()
    torch.save(_changed(states, states[0].pop(SPLITS), lambda found, along: torch.cat(list(found), along)), written)
    return answers[0][0], written.getvalue()


def _changed(
    states: Sequence[Mapping[str, Any]], splits: Splits, change: Callable[[Sequence[Tensor], int], Tensor]
) -> dict[str, Any]:
    """The first state with what is split changed, given that of all states. Numbers of the optimizer are not split."""

    def of(found: Sequence[Any], along: int | None) -> Any:
        if along is None or not (isinstance(found[0], Tensor) and found[0].dim()):
            return found[0]
        return change(found, along)

    first, kept = states[0], [state["optimizer"]["state"] for state in states]
    model = {name: of([each["model"][name] for each in states], splits["model"].get(name)) for name in first["model"]}
    moments = {
        at: {key: of([each[at][key] for each in kept], splits["optimizer"].get(at)) for key in values}
        for at, values in kept[0].items()
    }
    return {**first, "model": model, "optimizer": {**first["optimizer"], "state": moments}}
