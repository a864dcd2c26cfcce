"""Settings of the agent and its training. Imports nothing slow, because every command of `rlpto` reads them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlpto.io.settings import LARGEST_SEED, Settings

BEST, LAST = "best.safetensors", "last.safetensors"
"""Checkpoints in the folder of a run: the checkpoint with the largest validation reward, and the latest."""


class NetworkSettings(Settings):
    """The network over the set of jobs."""

    width: int = Field(32, ge=4, le=4096)
    """Width of a job's embedding. Later layers have this width, or twice this width."""
    log_std: float = Field(-1.0, ge=-5, le=2)
    """Logarithm of the initial standard deviation of actions. An action of 1 is a step (`rlpto.envs.actions.STEP`)."""


class PpoSettings(Settings):
    """PPO (Schulman et al., arXiv:1707.06347). All other parameters have the defaults of stable-baselines3."""

    learning_rate: float = Field(1e-4, gt=0, le=1)
    """Step size of Adam at the start. It falls linearly to `final_rate` times this value."""
    final_rate: float = Field(0.1, ge=0, le=1)
    """Share of the initial learning rate that remains at the end."""
    rollout: int = Field(32, ge=2, le=100_000)
    """Steps of every environment between two updates."""
    batch_size: int = Field(1024, ge=2, le=10**8)
    """Steps in a minibatch."""
    epochs: int = Field(3, ge=1, le=1000)
    """Passes over the steps of a rollout in each update."""
    half_life: float = Field(24.0, ge=0.001, le=10**6)
    """Hours after which a reward counts half. Discounting is per unit of time, whatever the time between decisions."""
    trace_half_life: float = Field(6.0, ge=0.001, le=10**6)
    """Hours after which a TD error counts half for an action (the lambda of GAE, per unit of time)."""
    clip: float = Field(0.2, gt=0)
    """Clip range of the probability ratio."""


class WindowSettings(Settings):
    """Training on whole windows: index weights, and a network of bonuses for every job."""

    trainer: Literal["ppo", "evolution"] = "ppo"
    """How the mean of the parameters moves by the ranks of antithetic perturbations (`rlpto.agents.window_training`).
    ppo: in several clipped steps on the same perturbations. evolution: in one step."""
    windows: int = Field(200_000, ge=2, le=10**9)
    """Number of windows to play, each with one perturbation. A window is played again with other perturbations."""
    rollout: int = Field(128, ge=4, le=10**6)
    """Windows between two updates: an even number, since perturbations come in pairs."""
    constants: float = Field(0.1, ge=0, le=10)
    """Standard deviation of perturbations of the index weights, relative to each weight. With 0, the weights are not
    trained."""
    network: float = Field(0.3, ge=0, le=10)
    """Standard deviation of perturbations of the network's parameters. With 0, there is no network."""
    learning_rate: float | None = Field(None, gt=0, le=10)
    """Step size of Adam, in standard deviations of perturbations. Default (null): 0.02 for ppo, 0.1 for evolution."""
    epochs: int = Field(5, ge=1, le=1000)
    """ppo: number of steps on the same perturbations."""
    clip: float = Field(0.2, gt=0, lt=1)
    """ppo: clip range of the probability ratio of each parameter."""
    most_jobs: int = Field(300, ge=1)
    """Windows with more jobs are not used for training if the same load has smaller ones: a few crowded windows would
    take most of the time."""
    idle_interval: float = Field(600.0, gt=0)
    """Least seconds between decisions without an event during training: a shorter interval of the simulator is raised
    to it, to save time. Validation uses the simulator's interval. Only with `decide_on: events`."""
    evaluate_every: int = Field(20_000, ge=1)
    """Windows between evaluations on validation windows, each followed by a checkpoint."""

    @model_validator(mode="after")
    def _check(self) -> WindowSettings:
        if self.rollout % 2:
            raise ValueError(f"rollout: {self.rollout}, but draws come in pairs: expected an even number")
        if self.constants == 0 and self.network == 0:
            raise ValueError("constants and network: both 0, so nothing is learnt; expected at least one above 0")
        return self


class AgentSettings(Settings):
    """Training of the agent."""

    learns: Literal["windows", "decisions", "nodes"] = "windows"
    """windows: index weights and per-job bonuses, trained on whole windows (`whole_windows`). decisions: index weights
    as a function of the state, trained by PPO in `rlpto/Cluster-v0` on the reward after each action (`steps` and
    below). nodes: number of rented nodes, trained by PPO in `rlpto/Nodes-v1`."""
    whole_windows: WindowSettings = WindowSettings()
    """Training on whole windows."""
    steps: int = Field(500_000, ge=1)
    """Environment steps in all."""
    seed: int | None = Field(None, ge=0, le=LARGEST_SEED)
    """Seed of the network, of exploration and of the episodes. Default (null): the seed of the experiment. Workloads do
    not depend on it, hence agents with several seeds can be compared on the same windows."""
    envs: int = Field(64, ge=1, le=10_000)
    """Number of environments that step in parallel."""
    loads: tuple[Annotated[float, Field(gt=0, le=100)], ...] | None = Field(None, min_length=1)
    """Loads to which training windows are scaled, each in the same way as by `workload.load`. Default (null): only the
    load of the config."""
    window_seeds: int = Field(1, ge=1, le=10_000)
    """Variants of every training window, each with another sample of the jobs' models and work."""
    network: NetworkSettings = NetworkSettings()
    """The network."""
    ppo: PpoSettings = PpoSettings()
    """The learning algorithm."""
    evaluate_every: int = Field(100_000, ge=1)
    """Environment steps between evaluations on validation windows, each followed by a checkpoint."""
    validation_windows: int = Field(4, ge=1, le=10_000)
    """Largest number of validation windows at each load."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the network. auto: a GPU if there is one, else the CPU."""
    threads: int = Field(1, ge=1, le=1024)
    """CPU threads of torch."""
