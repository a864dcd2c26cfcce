"""Settings for `map_jobs`: how a recorded job gets a model and its work."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from rlpto.core.stopping import StopRule
from rlpto.io.settings import Settings

NAMING = ("given", "named")
"""Modes in which the trace names the model of every job."""
BY_TIME = ("duration", "named")
"""Modes in which jobs take their recorded time."""


class MappingSettings(Settings):
    """How a recorded job gets a model and its work."""

    mode: Literal["duration", "category", "given", "named"] = "duration"
    """duration: a drawn model with work that takes the recorded time on the requested GPUs; named: the same for the
    model that the trace names; category: the whole training of a model drawn by GPU-time class; given: the whole
    training of the model and batch size that the trace names. All but given leave out jobs of unknown duration."""
    users: Literal["recorded", "clustered"] | None = None
    """duration, named: users whose jobs are alike (in mode duration they share a model); recorded: users in the trace;
    clustered: invented users, each with jobs of similar duration (`rlpto.workloads.synthetic`). The time that a job
    takes then shows only in its epochs, which a scheduler may learn from the user's finished jobs. Default: each job
    draws its own model, and its time shows in the size of its data set."""
    lasting: bool = False
    """Sources synthetic and trace: give all jobs of the trace their users, models and work at once, so that a user of
    one window is the same in the next, and submits the same model. Default: for each window apart, by its seed."""
    models: dict[str, float] | None = None
    """duration: models to draw from and their weights. Default: all models, equally likely."""
    adaptive_batch: bool = False
    """given: let jobs adapt their batch size instead of keeping the recorded one. Modes duration and category use
    `fixed_batch` instead."""
    fixed_batch_models: tuple[str, ...] = ()
    """given, with adaptive_batch: models whose jobs still keep the recorded batch size."""
    fixed_batch: float = Field(0.0, ge=0, le=1)
    """duration, category: share of jobs that, instead of adapting their batch size, keep the size with which their
    model trains fastest on the requested GPUs. With `users`, either all jobs of a user keep it or none."""
    min_duration: float = Field(60.0, ge=0.001)
    """duration, category: shorter recorded durations are raised to this [s]."""
    max_duration: float = Field(86_400.0, ge=0.001)
    """duration, category: longer recorded durations are reduced to this [s]."""
    oversized: Literal["error", "skip", "clip"] = "error"
    """Treatment of a job that requests more GPUs than the cluster has; clip: it requests all GPUs and
    takes longer in proportion."""
    rigid: float = Field(0.0, ge=0, le=1)
    """Share of jobs that hold exactly their requested GPUs; true: all of them. With `users`, all jobs of a user or
    none."""
    max_gpus_factor: float = Field(4.0, ge=1, le=10**6)
    """Most GPUs of an elastic job as a multiple of its requested GPUs."""
    max_gpus: int = Field(64, ge=1, le=16_384)
    """Most GPUs of an elastic job, or its requested GPUs if these are more."""
    model_max_gpus: dict[str, int] = Field(default_factory=dict)
    """Most GPUs of a job by model, for models that gain nothing from more, or its request if this is more."""
    priority_shares: tuple[float, float, float] = (0.2, 0.5, 0.3)
    """Shares of the classes high, normal and low among jobs whose priority is not recorded."""
    stop: StopRule | None = None
    """Rule for stopping early, for jobs without a rule in the trace. Default: they train all their epochs."""

    @field_validator("rigid", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        return float(value) if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _consistent(self) -> MappingSettings:
        if self.min_duration > self.max_duration:
            raise ValueError(f"min_duration {self.min_duration:g} is above max_duration {self.max_duration:g}")
        if self.models is not None and (min(self.models.values(), default=0) < 0 or sum(self.models.values()) <= 0):
            raise ValueError("models: expected weights of 0 or more, one of them above 0")
        if min(self.priority_shares) < 0 or abs(sum(self.priority_shares) - 1) > 1e-6:
            raise ValueError("priority_shares: expected three shares of 0 or more that sum to 1")
        if self.users is not None and self.mode not in BY_TIME:
            raise ValueError(f"users {self.users}: mode {self.mode} takes no account of users, expected mode duration")
        if self.fixed_batch > 0 and self.mode in NAMING:
            raise ValueError(f"fixed_batch: mode {self.mode} takes batch sizes from the trace, expected 0")
        return self
