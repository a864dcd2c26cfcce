"""States of models that teams of workers hold together: the part of each worker, and the whole again."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rlpto.ray_cluster.programs.base import Team

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
