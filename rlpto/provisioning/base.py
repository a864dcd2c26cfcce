"""Provisioners: from the state of rented nodes to the number of wanted GPUs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from rlpto.core.renting import MOST_GPUS, NodesState
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ConfigError, PolicyError
from rlpto.io.settings import Settings

OptionsType = TypeVar("OptionsType", bound=Settings)

Grid = Mapping[str, tuple[float | str, ...]]
"""Values of options by name."""


class Provisioner(Protocol):
    """Decides once a minute how many GPUs are wanted."""

    name: str

    def __call__(self, state: NodesState) -> FloatArray:
        """[R] GPUs wanted in total: in each group of rented nodes, and in permanent nodes of its GPU type."""


@runtime_checkable
class MadeForNodes(Protocol):
    """A provisioner for nodes of one kind."""

    def check_nodes(self, size: FloatArray, boot: FloatArray) -> None:
        """Raise PolicyError unless it may decide on nodes with these GPUs [R] and boot times [R] in s."""


class BaseProvisioner(Generic[OptionsType]):
    """A provisioner with options. summary: for lists. grid: values of the options that tuning tries. forecasts: true if
    it needs a forecast."""

    name: str
    summary: ClassVar[str]
    Options: ClassVar[type[Settings]]
    grid: ClassVar[Grid] = {}
    forecasts = False

    def __init__(self, options: OptionsType | None = None) -> None:
        self.options: OptionsType = options or self.Options()  # type: ignore[assignment]


class PlannedProvisioner(BaseProvisioner[OptionsType], ABC):
    """A provisioner that wants the demand and further GPUs, which do not depend on jobs and nodes. The simulator then
    decides in compiled code. on_demand: false if it wants the nodes that are not rented instead of the demand."""

    on_demand: ClassVar[bool] = True

    @abstractmethod
    def further(self, state: NodesState) -> FloatArray:
        """[R] GPUs, 0 or more, from time, clock, size, boot, most, averages and forecast. The simulator asks for all
        minutes at once, and the other fields are NaN there."""

    def __call__(self, state: NodesState) -> FloatArray:
        """[R] GPUs wanted in total."""
        wanted: FloatArray = (state.demand if self.on_demand else state.own) + self.further(state)
        return wanted


def planned(provisioner: Provisioner) -> PlannedProvisioner[Any]:
    """Return a provisioner that compiled code can follow. Raises ConfigError for another one."""
    if not isinstance(provisioner, PlannedProvisioner):
        raise ConfigError(
            f"provision {provisioner.name}: agents that allocate GPUs learn in compiled code; expected fixed, "
            "reactive, spare, scheduled, average, forecast, or another class derived from PlannedProvisioner"
        )
    return provisioner


def needs_forecast(provisioner: object) -> bool:
    """Whether a provisioner or its class needs `NodesState.forecast`; classes of other packages may not say."""
    return bool(getattr(provisioner, "forecasts", False))


def checked_gpus(name: str, wanted: FloatArray, state: NodesState) -> FloatArray:
    """[R] GPUs that a provisioner returned. Raises PolicyError unless it is a number of 0 or more for each row."""
    try:
        found: FloatArray = np.asarray(wanted, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.shape != state.used.shape:
        rows = len(state.used)
        raise PolicyError(f"provisioner {name}: expected {rows} numbers of GPUs, one for each group, got {wanted!r}")
    wrong = found[~(np.isfinite(found) & (found >= 0))]
    if len(wrong):
        raise PolicyError(f"provisioner {name}: wants {wrong[0]} GPUs, expected a finite number of 0 or more")
    return np.minimum(found, MOST_GPUS)
