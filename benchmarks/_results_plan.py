"""What `make results` runs: workloads, loads, variants of the agent, and how many windows of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import _common

from rlpto.config import Config, load_config

WORKLOADS = ("synthetic", "philly", "pollux")
LOADS = (0.5, 0.7, 0.9, 1.1)
SEEDS = (0, 1, 2)
"""Seeds of training: each gives an agent of its own."""
HOME = "synthetic"
"""Workload of the smaller studies: it needs no download."""
BUSY = 0.9
"""Load of the studies that have one only."""
CONTENDERS = 3
"""Policies that are compared with the agent on all draws of every window: the best on the first draw."""

AGENT, START, TUNED = "agent", "agent_start", "tuned_index"
"""Names in tables: the mean of the agents of all seeds, what they start from, and the tuned index."""


@dataclass(frozen=True)
class Variant:
    """A way to train the agent. overrides: `key=value` on top of its configuration."""

    name: str
    overrides: tuple[str, ...] = ()


MAIN = Variant("main")


def time_alone(workload: str) -> Variant:
    """The agent that is rewarded for time alone: from the index tuned for that, whose constants evolve further."""
    parts = tuple(f"reward.{part}=0" for part in ("accuracy", "resources", "rescale"))
    evolution = "agent.evolution={generations: 10, windows: 24}"
    return Variant("time", (*parts, f"env.start={tuned(workload, 'jct')}", evolution))


def tuned(workload: str, goal: str = "reward") -> Path:
    """Weights of the index tuned for a workload."""
    return _common.CONFIGS / "tuned" / f"{workload}{'' if goal == 'reward' else f'-{goal}'}.yaml"


ABLATIONS: dict[str, Variant] = {
    "without priorities": Variant("no-priorities", ("workload.mapping.priority_shares=[0,1,0]",)),
    "without warm start": Variant("no-warm-start", ("agent.warm_start=none", "env.start=null")),
    "with a forecast": Variant("forecast", ("forecast.mode=on",)),
}
"""What is changed about the agent in trainings of its own. Agents are trained without a forecast, so that it is added
here; `without shrink` is the main agent, kept from shrinking jobs."""
SEEING = {"with a forecast": ("forecast.mode=on",)}
"""What an ablation changes about evaluations as well."""
RESERVATIONS = {
    "GPUs held back by forecast": ("forecast.mode=on", "forecast.reserve.share=0.2"),
    "GPUs held back, perfect forecast": ("forecast.mode=perfect", "forecast.reserve.share=0.2"),
}
"""Ways to use a forecast that need no training: the main agent, with GPUs held back for jobs of class high."""

SCALES = {16: (4, 4), 64: (16, 4), 256: (64, 4), 1024: (256, 4)}
"""GPUs, and the nodes and GPUs of each that make them."""


@dataclass(frozen=True)
class Plan:
    """What to run, and where results go.

    windows: at most. draws: of every test window, with other models and work of the jobs, where policies are compared
    by reward. steps: of every training; None: the config's own.
    """

    folder: Path
    workloads: tuple[str, ...] = WORKLOADS
    loads: tuple[float, ...] = LOADS
    seeds: tuple[int, ...] = SEEDS
    windows: int = 26
    draws: int = 5
    steps: int | None = None
    jobs: int = 1

    @property
    def home(self) -> str:
        """Workload of the smaller studies."""
        return HOME if HOME in self.workloads else self.workloads[0]

    @property
    def busy(self) -> float:
        """Load of the studies that have one only."""
        return BUSY if BUSY in self.loads else self.loads[-1]

    def config(self, workload: str, load: float, *overrides: str, windows: int | None = None) -> Config:
        """Configuration of a workload at a load, with at most so many windows."""
        limit = min(self.windows, windows or self.windows)
        return load_config(
            config_file(workload), [f"workload.load={load}", f"workload.windows.limit={limit}", *overrides]
        )


def config_file(workload: str) -> Path:
    """The experiment file of a workload."""
    return _common.CONFIGS / "results" / f"{workload}.yaml"
