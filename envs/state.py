"""The whole state of a batch of environments, so that training goes on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlpto.envs.batch import EnvBatch, look_around_all
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import CheckpointError

State = dict[str, Any]
"""By name: NumPy arrays, and under `rngs` plain data that JSON can hold."""

WORLD_PARTS = ("jobs", "nodes", "clusters", "active", "sums", "machines", "free")
"""Arrays of `rlpto.simulator.arrays.World` that change; the others are tables."""


def batch_state(batch: EnvBatch) -> State:
    """A copy of all that changes in a batch. Arrays may be of records, none is of objects."""
    state: State = {name: array.copy() for name, array in _arrays(batch).items()}
    state["rngs"] = [rng.bit_generator.state for rng in batch.rngs]
    return state


def restore_batch(batch: EnvBatch, state: Mapping[str, Any]) -> None:
    """Put a batch of the same setup and size where `batch_state` was called.

    Raises CheckpointError, and changes nothing, if the state is of another one.
    """
    arrays = _arrays(batch)
    for name, array in arrays.items():
        check_same_form(state, name, array)
    if len(state.get("rngs", ())) != batch.count:
        raise CheckpointError(f"state of environments: rngs: expected {batch.count} random number generators")
    for name, array in arrays.items():
        array[...] = state[name]
    look_around_all(batch.fleet)
    for rng, numbers in zip(batch.rngs, state["rngs"], strict=True):
        rng.bit_generator.state = numbers


def check_same_form(state: Mapping[str, Any], name: str, array: AnyArray) -> None:
    """Raise CheckpointError unless `state` has an array of the same shape and type under `name`."""
    if name not in state:
        raise CheckpointError(f"state of environments: {name}: missing, expected an array of shape {array.shape}")
    saved = state[name]
    if saved.shape != array.shape or saved.dtype != array.dtype:
        raise CheckpointError(
            f"state of environments: {name}: shape {saved.shape}, expected {array.shape}: "
            "it was saved with other workloads, nodes or number of environments"
        )


def _arrays(batch: EnvBatch) -> dict[str, AnyArray]:
    """The arrays themselves, by name."""
    fleet = batch.fleet
    return {
        **{f"world.{name}": getattr(fleet.world, name) for name in WORLD_PARTS},
        **{f"observation.{name}": part for name, part in batch.observation._asdict().items()},
        "current": fleet.loop.current,
        "began": batch.began,
        "length": batch.length,
        "steps": batch.steps,
    }
