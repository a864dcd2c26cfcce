"""What jobs of a model train, as settings files and admins write it: for both processes of the service, and for Ray.

`rlpto.ray_cluster.settings.ProgramSettings` adds what follows from it.
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
"""Neither an option of pip nor an address or path: those have `@`, `:` or `/`."""
Requirement = Annotated[str, Field(pattern=REQUIREMENT, max_length=200)]
MOST_REQUIREMENTS = 100


SCRIPTS = "rlpto.ray_cluster.programs.script:Script"
"""Class of the program that trains by users' own scripts."""


class GuessSettings(Settings):
    """What policies know about a model that has no profile. It has no effect on how the model trains."""

    step_seconds: float = Field(0.05, gt=0)
    """Seconds of a step with one worker; where a program has a pace, that counts."""
    sync_seconds: float = Field(0.005, ge=0)
    """Seconds that several workers take to synchronise in a step."""
    noise_scale: float = Field(1000.0, gt=0)
    """Gradient noise scale in samples."""
    untrained: float = Field(0.1, ge=0, le=1)
    """Accuracy before training."""
    final: float = Field(0.95, ge=0, le=1)
    """Accuracy in the end."""
    epochs_to_learn: float = Field(3.0, gt=0)
    """Epochs after which 63 % of the accuracy is gained."""
    rescale_delay: float = Field(3.0, ge=0)
    """Seconds until a change of a job's workers is in force."""


class ProgramKeys(Settings):
    """What jobs of one model train."""

    training: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """Class of the training program, as package.module:Class."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of that class."""
    samples: int = Field(1000, ge=1)
    """Samples of an epoch, for jobs that do not say."""
    epochs: int = Field(10, ge=1)
    """Epochs of a whole training, for jobs that do not say."""
    batch_size: int = Field(64, ge=1)
    """Samples of a step with one worker, for jobs that do not say."""
    batch_rule: BatchRule = "fixed"
    """fixed: that many samples for any number of workers; per_worker: that many for each worker."""
    largest_batch_size: int | None = Field(None, ge=1, le=10**9)
    """Largest batch size that a policy may choose for a job, all workers together; null: none may."""
    lr_rule: LrRule = "none"
    """How the learning rate follows a larger batch."""
    architecture: Architecture = "all_reduce"
    """all_reduce: workers average gradients among themselves; parameter_server: through server actors."""
    servers: int = Field(1, ge=1)
    """parameter_server: number of servers; each takes a CPU slot of a node (`cluster.nodes` has `cpus`)."""
    most_servers: int | None = Field(None, ge=1, le=1024)
    """parameter_server: most servers that a policy may choose for a job; null: as many as above."""
    asynchronous: bool = False
    """parameter_server: apply every gradient as it comes."""
    float64: bool = False
    """Train in double precision."""
    device: Device = "auto"
    """Where workers train; auto: CUDA where there is some."""
    on_nonfinite: OnNonfinite = "fail"
    """What a loss or weights that are NaN or infinite do: fail ends the job, warn prints a line and goes on."""
    pip: tuple[Requirement, ...] = Field((), max_length=MOST_REQUIREMENTS)
    """Packages that workers get by pip, such as einops>=0.8: by names and versions alone."""
    pace: float | None = Field(None, gt=0)
    """Seconds to which a step is stretched at one worker, for logical GPUs; null: as fast as it goes."""
    guess: GuessSettings = GuessSettings()
    """What policies know where there is no profile."""

    @property
    def servers_at_most(self) -> int:
        """Most parameter servers that a scheduler may give a job, where jobs train through some."""
        return self.servers if self.most_servers is None else self.most_servers

    @property
    def gives_speed(self) -> bool:
        """True if it says how long a step takes."""
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
