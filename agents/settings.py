"""Settings of the agent and its training. Imports nothing heavy: the configuration is read by every verb."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlpto.io.settings import LARGEST_SEED, Settings

BEST, LAST = "best.zip", "last.zip"
"""Checkpoints in the folder of a run: the one with the largest validation reward, and the latest."""


class NetworkSettings(Settings):
    """The network over the set of jobs."""

    width: int = Field(32, ge=4, le=4096)
    """Width of a job's embedding; the layers above are as wide, or twice."""
    log_std: float = Field(-1.0, ge=-5, le=2)
    """Logarithm of the first standard deviation of actions, in units of their steps."""


class PpoSettings(Settings):
    """PPO (Schulman et al., arXiv:1707.06347); what is not here is as by default in stable-baselines3."""

    learning_rate: float = Field(1e-4, gt=0, le=1)
    """Step size of Adam at the start; it falls evenly to `final_rate` times that."""
    final_rate: float = Field(0.1, ge=0, le=1)
    """Share of the learning rate that is left at the end."""
    rollout: int = Field(32, ge=2, le=100_000)
    """Steps of every environment between two updates."""
    batch_size: int = Field(1024, ge=2, le=10**8)
    """Steps in a minibatch."""
    epochs: int = Field(3, ge=1, le=1000)
    """Times each step is learned from."""
    half_life: float = Field(24.0, ge=0.001, le=10**6)
    """Hours after which a reward counts half: discounting is per unit of time, however long decisions are apart."""
    trace_half_life: float = Field(6.0, ge=0.001, le=10**6)
    """Hours after which a TD error counts half for an action (the lambda of GAE, per unit of time)."""
    clip: float = Field(0.2, gt=0)
    """Clip range of the probability ratio."""


class WindowSettings(Settings):
    """Training on whole windows: constants of the index, and a network of bonuses for every job."""

    trainer: Literal["ppo", "evolution"] = "ppo"
    """How the ranks of antithetic draws move the mean; ppo: by several clipped steps on the same draws; evolution: by
    one. See `rlpto.agents.window_training`."""
    windows: int = Field(200_000, ge=2, le=10**9)
    """Windows played in all, each by one draw; the same window comes back to other draws."""
    rollout: int = Field(128, ge=4, le=10**6)
    """Windows between two updates; an even number, since draws come in pairs."""
    constants: float = Field(0.1, ge=0, le=10)
    """Standard deviation of draws of the index's weights, relative to each; 0: they stay as they are."""
    network: float = Field(0.3, ge=0, le=10)
    """Standard deviation of draws of the network's numbers; 0: there is no network."""
    learning_rate: float | None = Field(None, gt=0, le=10)
    """Step size of Adam, in standard deviations of draws; null: 0.02 for ppo, 0.1 for evolution."""
    epochs: int = Field(5, ge=1, le=1000)
    """ppo: steps on the same draws."""
    clip: float = Field(0.2, gt=0, lt=1)
    """ppo: clip range of the probability ratio of each number."""
    most_jobs: int = Field(300, ge=1)
    """Windows with more jobs are not learnt from, where others of their load are there: a few crowded ones would take
    most of the time."""
    idle_interval: float = Field(600.0, gt=0)
    """Seconds between decisions without an event while training, if the simulator's interval is shorter: idle
    decisions take most of the time. Validation is by the simulator's interval."""
    evaluate_every: int = Field(20_000, ge=1)
    """Windows between evaluations on validation windows, each followed by a checkpoint."""

    @model_validator(mode="after")
    def _check(self) -> WindowSettings:
        if self.rollout % 2:
            raise ValueError(f"rollout: {self.rollout}, but draws come in pairs: expected an even number")
        if self.constants == 0 and self.network == 0:
            raise ValueError("constants and network: both 0, so that nothing is learnt; expected one above 0")
        return self


class AgentSettings(Settings):
    """How the agent is trained."""

    learns: Literal["windows", "decisions", "nodes"] = "windows"
    """windows: constants and per-job bonuses of the index from whole windows, see `whole_windows`; decisions: weights
    of the index by state, by PPO in `rlpto/Cluster-v0`, from what follows each of its actions (`steps` and below);
    nodes: how many nodes to rent, likewise in `rlpto/Nodes-v1`."""
    whole_windows: WindowSettings = WindowSettings()
    """Training on whole windows."""
    steps: int = Field(500_000, ge=1)
    """Environment steps in all."""
    seed: int | None = Field(None, ge=0, le=LARGEST_SEED)
    """Seed of the network, of exploration and of the episodes; null: that of the experiment. Workloads do not depend
    on it, so that agents with several seeds can be compared on the same windows."""
    envs: int = Field(64, ge=1, le=10_000)
    """Environments side by side."""
    loads: tuple[Annotated[float, Field(gt=0, le=100)], ...] | None = Field(None, min_length=1)
    """Loads at which the training windows are taken, each scaled as `workload.load`; null: the config's own only."""
    window_seeds: int = Field(1, ge=1, le=10_000)
    """Repetitions of every training window, with other models and work of the jobs."""
    network: NetworkSettings = NetworkSettings()
    """The network."""
    ppo: PpoSettings = PpoSettings()
    """The learning algorithm."""
    evaluate_every: int = Field(100_000, ge=1)
    """Environment steps between evaluations on validation windows, each followed by a checkpoint."""
    validation_windows: int = Field(4, ge=1, le=10_000)
    """Validation windows at each load, at most."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the network is; auto: a GPU if there is one."""
    threads: int = Field(1, ge=1, le=1024)
    """CPU threads of torch."""
