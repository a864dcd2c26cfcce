"""Training program of a model's jobs, as in settings files and from admins; for both service processes, and for Ray.

`rlpto.ray_cluster.settings.ProgramSettings` adds derived values.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from rlpto.io.settings import Settings

Architecture = Literal["all_reduce", "parameter_server"]
BatchRule = Literal["fixed", "per_worker"]
LrRule = Literal["none", "linear", "sqrt", "adascale"]
Device = Literal["auto", "cpu", "cuda"]
OnNonfinite = Literal["fail", "warn"]
REQUIREMENT = r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._, -]+\])? *([<>=!~]=?[A-Za-z0-9.*+!<>=~, -]+)?$"
"""Excludes pip options, addresses and paths, because `@`, `:` and `/` are not allowed."""
Requirement = Annotated[str, Field(pattern=REQUIREMENT, max_length=200)]
MOST_REQUIREMENTS = 100


SCRIPTS = "rlpto.ray_cluster.programs.script:Script"
"""Program class that trains users' own scripts."""


class GuessSettings(Settings):
    """Policies' assumptions about a model without a profile. They do not affect how the model trains."""

    step_seconds: float = Field(0.05, gt=0)
    """Seconds of a step with one worker; a program's pace takes precedence."""
    untrained: float = Field(0.1, ge=0, le=1)
    """Accuracy before training."""
    final: float = Field(0.95, ge=0, le=1)
    """Final accuracy."""
    rescale_delay: float = Field(3.0, ge=0)
    """Seconds until a change of a job's workers is in force."""


MOST_SERVERS = 64
"""Most parameter servers of a job: speeds are tabulated for each number of them."""


class ProgramKeys(Settings):
    """The training program of one model's jobs."""

    training: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """Class of the training program, as package.module:Class."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the class."""
    samples: int = Field(1000, ge=1)
    """Samples of an epoch, for jobs that do not specify them."""
    epochs: int = Field(10, ge=1)
    """Epochs of a whole training, for jobs that do not specify them."""
    batch_size: int = Field(64, ge=1)
    """Samples of a step with one worker, for jobs that do not specify them."""
    batch_rule: BatchRule = "fixed"
    """With fixed, the batch size holds for any number of workers; with per_worker, for each worker."""
    largest_batch_size: int | None = Field(None, ge=1, le=10**9)
    """Largest batch size that a policy may choose for a job, all workers together. Default: policies may choose
    none."""
    lr_rule: LrRule = "none"
    """Rule by which the learning rate follows a larger batch."""
    architecture: Architecture = "all_reduce"
    """With all_reduce, workers average gradients among themselves; with parameter_server, through server actors."""
    servers: int = Field(1, ge=1, le=MOST_SERVERS)
    """Number of parameter servers; each takes a CPU slot of a node (`cluster.nodes` has `cpus`)."""
    most_servers: int | None = Field(None, ge=1, le=MOST_SERVERS)
    """Most parameter servers that a policy may choose for a job. Default: `servers`."""
    asynchronous: bool = False
    """Whether parameter servers apply each gradient on arrival."""
    float64: bool = False
    """Whether to train in double precision."""
    device: Device = "auto"
    """Device of the workers; auto means CUDA if available."""
    on_nonfinite: OnNonfinite = "fail"
    """Effect of a loss or weights that are NaN or infinite: fail ends the job, warn prints a line and continues."""
    pip: tuple[Requirement, ...] = Field((), max_length=MOST_REQUIREMENTS)
    """Packages that workers install by pip, such as einops>=0.8, given only by name and version."""
    pace: float | None = Field(None, gt=0)
    """Seconds to which a step is stretched at one worker, for logical GPUs. Default: full speed."""
    guess: GuessSettings = GuessSettings()
    """Policies' assumptions if there is no profile."""

    @property
    def servers_at_most(self) -> int:
        """Most parameter servers that a scheduler may give a job, if jobs use parameter servers."""
        return self.servers if self.most_servers is None else self.most_servers

    @property
    def gives_speed(self) -> bool:
        """True if the settings give the duration of a step."""
        return self.pace is not None or "step_seconds" in self.guess.model_fields_set

    @property
    def has_servers(self) -> bool:
        """True if jobs train through parameter servers."""
        return self.architecture == "parameter_server"

    @model_validator(mode="after")
    def _servers_fit(self) -> ProgramKeys:
        if self.most_servers is not None and self.most_servers < self.servers:
            raise ValueError(f"most_servers {self.most_servers} is below servers {self.servers}")
        return self
