"""What the API answers about programs, and about what a job of them would take."""

from __future__ import annotations

from pydantic import BaseModel, Field

from rlpto.service.web.answers.jobs import JobAnswer


class Preview(BaseModel):
    """A training alone on so many GPUs."""

    metric: str
    gpus: int
    hours: float
    gpu_hours: float


class Validation(BaseModel):
    """What would be submitted."""

    job: JobAnswer
    preview: list[Preview] = Field(description="By metric and number of GPUs, for the job's epochs.")
    waiting: int = Field(description="Jobs that wait now.")
    gpus_ahead: int = Field(description="GPUs that they ask for.")


class OptionAnswer(BaseModel):
    """What users may choose for an option."""

    type: str
    minimum: float | None
    maximum: float | None
    choices: list[str]
    default: bool | int | float | str | None
    description: str


class ProgramAnswer(BaseModel):
    """A program that may be trained."""

    name: str
    description: str
    options: dict[str, OptionAnswer]
    batch_size: int | None
    batch_sizes: list[int]
    epochs: float
    most_epochs: float
    most_gpus: int
    enabled: bool
    checked: str
    problem: str
    version: int
    preview: list[Preview]


class Programs(BaseModel):
    """The catalogue of programs."""

    programs: list[ProgramAnswer]
