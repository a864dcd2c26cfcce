"""Constants of provisioners, chosen on training windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

from rlpto.core.rewards import REWARD_PARTS
from rlpto.envs.nodes import NodesSetup, play_windows
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.nodes_environments import nodes_setup
from rlpto.io.errors import ConfigError, nearest
from rlpto.provisioning.base import Provisioner, needs_forecast
from rlpto.provisioning.registry import BUILT_IN, spec_of


class Tried(NamedTuple):
    """One point of a grid. cost: negative reward, without the unavoidable cost of the completed work, mean over the
    windows; the sum of its parts `time` and `money`."""

    spec: str
    cost: float
    time: float
    money: float


def tune(config: Config, names: Sequence[str], on_progress: Callable[[int, int], None]) -> dict[str, list[Tried]]:
    """Evaluate the grids of provisioners; return the points by provisioner name, best first. names: provisioners to
    tune; if empty, all that have a grid.

    on_progress: called with the number of points tried so far, and of all points. Raises ConfigError for a name without
    a grid, or if no nodes are rented.
    """
    tunable = [name for name, kind in BUILT_IN.items() if kind.grid or name == "reactive"]
    for name in names:
        if name not in tunable:
            lack = "has nothing to tune" if name in BUILT_IN else "there is none of this name to tune"
            raise ConfigError(f"provisioner {name!r}: {lack}; {nearest(name, tunable)}")
    kinds = [BUILT_IN[name] for name in dict.fromkeys(names or tunable)]
    points = [
        kind(kind.Options(**dict(zip(kind.grid, values, strict=True))))
        for kind in kinds
        for values in product(*kind.grid.values())
    ]
    foresees = any(map(needs_forecast, kinds))
    config = config.model_copy(update={"provision": "forecast" if foresees else "reactive"})
    setup, found = nodes_setup(Experiment(config), "train"), dict[str, list[Tried]]()
    for number, provisioner in enumerate(points, 1):
        found.setdefault(type(provisioner).name, []).append(_tried(setup, provisioner))
        on_progress(number, len(points))
    return {name: sorted(tried, key=lambda one: one.cost) for name, tried in found.items()}


def _tried(setup: NodesSetup, provisioner: Provisioner) -> Tried:
    parts = -play_windows(setup, provisioner).mean(axis=0)
    time, money = (float(parts[REWARD_PARTS.index(name)]) for name in ("time", "money"))
    return Tried(spec_of(provisioner), time + money, time, money)
