"""What the scheduler and job controllers say to each other: plain values, the border between the two.

A job's controller is an actor (`rlpto.ray_cluster.job.controller.JobController`) in namespace `NAMESPACE`, named by
`controller_name`.
It answers at once, also while its job trains, to

    command(generation, plan) -> JobReport      one worker on each node of the `Plan`; none releases all. Older
                                                generations are ignored; the report says which one was taken.
    report() -> JobReport
    stop() -> JobReport                         writes a checkpoint, releases everything, and ends

`rlpto.ray_cluster.job.controller` starts controllers, `rlpto.ray_cluster.controllers` finds and ends them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rlpto.core.stopping import StopRule
from rlpto.io.errors import JobError
from rlpto.performance.tables import ONE_KIND

KIND_RESOURCE = "gpu_kind:"
"""Begin of the name of the Ray resource that says which kind of GPU a node has, such as `gpu_kind:t4`."""
NAMESPACE = "rlpto"
"""Ray namespace of all named actors."""

Architecture = Literal["all_reduce", "parameter_server"]
BatchRule = Literal["fixed", "per_worker"]
LrRule = Literal["none", "linear", "sqrt", "adascale"]
Device = Literal["auto", "cpu", "cuda"]
JobState = Literal["waiting", "starting", "running", "finished", "failed"]


_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""What ids are made of: they are parts of the names of actors and folders."""


def job_id(number: int) -> str:
    """Id of the job with this number (from 0, in order of submission) in its session."""
    return f"job-{number:06d}"


def controller_name(session: str, job: str) -> str:
    """Name of the actor that controls the job with id `job` in `session`."""
    return f"rlpto-controller:{session}:{job}"


Nodes = tuple[str, ...]
"""Ray's node id of every GPU of a job, in order of rank."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a job is given: one worker on each of `nodes`, none while it waits.

    batch_size: samples of a step, all workers together; None: the job's own choice. servers: Ray's node id of every
    parameter server, in order of the parts of the weights that they hold; none: as many as the job's specification
    says, beside its controller.
    """

    nodes: Nodes = ()
    batch_size: int | None = None
    servers: Nodes = ()


@dataclass(frozen=True)
class JobSpec:
    """Everything a controller needs to know about its job. Raises JobError for values that make no sense.

    id: the job within its session, made by the scheduler (`job_id`): names of actors and folders are made of it.
    name: a label for people, any text. session: the run of the scheduler that the job belongs to.
    training: class of the training program, "package.module:Class". options: its keyword arguments.
    folder: of this job alone, on the controller's node: checkpoints and the log of failures.
    architecture: workers average gradients among themselves, or through `servers` server actors, which apply every
        gradient as it comes if `asynchronous`.
    batch_size: samples of a step, all workers together, with one worker. batch_rule: that number whatever the number
        of workers ("fixed"), or that number for each of them ("per_worker").
    lr_rule: how the learning rate follows a global batch that differs from `batch_size`.
    epochs: scale-invariant epochs to train. data_size: samples of an epoch. seed: of initial weights, order of data
        and every random number of training.
    checkpoint_interval: s between checkpoints. heartbeat_timeout: s without a sign of life after which a worker is
        replaced. start_timeout: s after which a job that trains gives up workers and servers that have not come up, and
        goes on as before. retries: failures in a row, without progress in between, after which the job has failed.
        backoff: s before the first retry, doubled for each further one.
    float64: train in double precision. device: where workers train ("auto": CUDA where there is some).
    stop: when the job finishes before its epochs are done, as its accuracy has flattened; None: never.
    pace: s to which a step is stretched at one worker, for logical GPUs; None: as fast as it goes.
    logs: keep what rank 0 prints, and how training goes, in the folder.
    """

    id: str
    name: str
    session: str
    training: str
    folder: str
    batch_size: int
    epochs: float
    data_size: int
    options: Mapping[str, Any] = field(default_factory=dict)
    architecture: Architecture = "all_reduce"
    servers: int = 1
    asynchronous: bool = False
    batch_rule: BatchRule = "fixed"
    lr_rule: LrRule = "none"
    seed: int = 0
    checkpoint_interval: float = 30.0
    heartbeat_timeout: float = 5.0
    start_timeout: float = 120.0
    retries: int = 3
    backoff: float = 1.0
    float64: bool = False
    device: Device = "auto"
    pace: float | None = None
    stop: StopRule | None = None
    logs: bool = False

    def __post_init__(self) -> None:
        for key in ("id", "session"):
            if not _ID.fullmatch(getattr(self, key)):
                raise JobError(f"job {self.name!r}: {key} is {getattr(self, key)!r}: expected letters, digits, - and _")
        positive = ("batch_size", "data_size", "epochs", "servers", "pace")
        for key in (*positive, "checkpoint_interval", "heartbeat_timeout", "start_timeout"):
            value = getattr(self, key)
            if value is not None and not 0 < value < math.inf:
                raise JobError(f"job {self.name!r}: {key} is {value}: expected a positive number")

    def to_json(self) -> str:
        """As one line of JSON. Raises JobError if `options` holds what JSON cannot say."""
        try:
            values = asdict(self) | {"options": dict(self.options)}
            values.pop("stop")
            # Not said where they are as usual, so that sessions are found again that began without them.
            if self.stop is not None:
                values["stop"] = self.stop.model_dump()
            if not self.logs:
                values.pop("logs")
            return json.dumps(values, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as wrong:
            raise JobError(f"job {self.name!r}: options cannot be written as JSON: {wrong}") from None


def global_batch(spec: JobSpec, workers: int, chosen: int | None) -> int:
    """Samples of a step, all workers together. chosen: by the scheduler; None: by the job's own rule."""
    if chosen is not None:
        return chosen
    return spec.batch_size * (workers if spec.batch_rule == "per_worker" else 1)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the controller's disk. step: training step it holds. sha256: of the file, in hexadecimal."""

    step: int
    path: str
    sha256: str


@dataclass(frozen=True)
class Measured:
    """Throughput of one size of a job: samples per second over `count` measured steps on `nodes` nodes.

    servers: parameter servers beside the workers, 0 where workers average gradients among themselves. gpu: kind of GPU.
    """

    workers: int
    nodes: int
    samples_per_second: float
    count: int
    servers: int = 0
    gpu: str = ONE_KIND


@dataclass(frozen=True)
class JobReport:
    """What a controller says about its job at one moment. Numbers that are not known are NaN.

    job: its id. generation: of the newest command taken. applied: newest generation that is wholly in force.
    holding: node id of every worker that is alive or being started: the truth about GPUs in use.
    training_on: node ids of the workers that train together now. serving_on: node ids of the parameter servers that are
        alive or being started. rolled_back: newest generation whose new workers and servers have not come up in time:
        it was given up, and the job goes on with those it had. batch_size: samples of their steps; 0: none yet.
    step: steps done. progress: scale-invariant epochs. loss: mean over the newest steps. accuracy: of the newest
        evaluation. samples_per_second: over the newest steps. noise_scale: gradient noise scale in samples.
    accuracy_curve: (epochs, accuracy) of evaluations, thinned out to a bounded number.
    throughput: what was measured for each size so far, at batch sizes of the job's own choice.
    rescales: changes of the group of workers while the job trained. rescale_seconds: time without a training step
        those cost. pauses: the newest of them, s each.
    checkpoint: newest one on disk. recoveries: faults survived. recovery_seconds: the newest of them, s each, from
        noticing to training again.
    failure: text of the newest failure, kept after recovery; empty if there was none.
    note: that the job has stopped early, and where; empty for all others.
    staleness: mean number of updates between pull and push of a gradient (asynchronous parameter servers).
    pid: of the controller's process. time: when this was said, s since the epoch of `time.time`; that clock may jump.
    number: of the question that this answers, counted up by the scheduler: it orders the reports of a job.
    """

    job: str
    generation: int = 0
    applied: int = 0
    state: JobState = "waiting"
    holding: tuple[str, ...] = ()
    training_on: tuple[str, ...] = ()
    serving_on: tuple[str, ...] = ()
    rolled_back: int = 0
    batch_size: int = 0
    step: int = 0
    progress: float = 0.0
    loss: float = math.nan
    accuracy: float = math.nan
    samples_per_second: float = math.nan
    noise_scale: float = math.nan
    accuracy_curve: tuple[tuple[float, float], ...] = ()
    throughput: tuple[Measured, ...] = ()
    rescales: int = 0
    rescale_seconds: float = 0.0
    pauses: tuple[float, ...] = ()
    checkpoint: Checkpoint | None = None
    recoveries: int = 0
    recovery_seconds: tuple[float, ...] = ()
    failure: str = ""
    note: str = ""
    staleness: float = math.nan
    pid: int = 0
    time: float = 0.0
    number: int = 0

    @property
    def ended(self) -> bool:
        """True once the job neither trains nor ever will."""
        return self.state in ("finished", "failed")
