"""Messages between the scheduler and job controllers, made of plain values.

A job's controller is an actor (`rlpto.ray_cluster.job.controller.JobController`) in namespace `NAMESPACE`, named by
`controller_name`. It answers at once, also while its job trains, to

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlpto.core.stopping import StopRule
from rlpto.io.errors import JobError
from rlpto.knowledge.evidence import Step
from rlpto.performance.tables import ANY_GPU
from rlpto.store.checkpoints import Checkpoint
from rlpto.store.program_keys import Architecture, BatchRule, Device, LrRule, OnNonfinite

GPU_TYPE_RESOURCE = "gpu_type:"
"""Prefix of the name of the Ray resource for a node's GPU type, such as `gpu_type:t4`."""
GPU_TYPE_LABEL, MARKET_LABEL = "ray.io/accelerator-type", "ray.io/market-type"
"""Labels that Ray assigns to nodes, or takes from `ray start --labels`."""
RECORD = "controller.json"
"""Name of the file in a job's folder with the state that outlives its controller."""
NAMESPACE = "rlpto"
"""Ray namespace of all named actors."""

JobState = Literal["waiting", "starting", "running", "finished", "failed"]


_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""Allowed characters of ids, which are parts of actor and folder names."""


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
    """The allocation of a job: one worker on each of `nodes`, none while it waits.

    batch_size: samples of a step, all workers together. Default: the job's own choice. servers: Ray's node id of every
    parameter server, in order of the parts of the weights that they hold. Default: the number in the job's
    specification, on the controller's node.
    """

    nodes: Nodes = ()
    batch_size: int | None = None
    servers: Nodes = ()


@dataclass(frozen=True, slots=True)
class Command:
    """A command to a controller: from `generation` on, the job trains by `plan`."""

    job: str
    generation: int
    plan: Plan


@dataclass(frozen=True)
class FaultTolerance:
    """Reaction of a job's controller to faults.

    backoff: seconds before the first retry, doubled for each later one. The others are keys of `RaySettings`.
    """

    checkpoint_interval: float = 30.0
    heartbeat_timeout: float = 5.0
    start_timeout: float = 120.0
    retries: int = 3
    backoff: float = 1.0


@dataclass(frozen=True)
class JobSpec:
    """Everything a controller needs to know about its job. Raises JobError for invalid values.

    id: the job within its session, made by the scheduler (`job_id`): part of the names of actors and folders.
    name: a label for people, any text. session: the run of the scheduler that the job belongs to.
    folder: of this job alone, on the controller's node: checkpoints and the log of failures.
    epochs: scale-invariant epochs to train. data_size: samples of an epoch. seed: of initial weights, order of data
        and every random number of training.
    stop: rule for finishing early once accuracy has flattened. Default: never.
    logs: keep the output of workers and the progress of training in the folder.
    The others are keys of `rlpto.store.program_keys.ProgramKeys` or of `RaySettings`.
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
    faults: FaultTolerance = FaultTolerance()
    float64: bool = False
    device: Device = "auto"
    on_nonfinite: OnNonfinite = "fail"
    pace: float | None = None
    stop: StopRule | None = None
    pip: Sequence[str] = ()
    storage: str = ""
    logs: bool = False

    def __post_init__(self) -> None:
        for key in ("id", "session"):
            if not _ID.fullmatch(getattr(self, key)):
                raise JobError(f"job {self.name!r}: {key} is {getattr(self, key)!r}: expected letters, digits, - and _")
        positive = ("batch_size", "data_size", "epochs", "servers", "pace")
        for key in (*positive, "checkpoint_interval", "heartbeat_timeout", "start_timeout"):
            value = getattr(self if key in positive else self.faults, key)
            if value is not None and not 0 < value < math.inf:
                raise JobError(f"job {self.name!r}: {key} is {value}: expected a positive number")

    @property
    def runtime_env(self) -> dict[str, Any] | None:
        """Ray's `runtime_env` of workers and servers, in addition to the driver's; None if nothing is added."""
        return {"pip": list(self.pip)} if self.pip else None

    def to_json(self) -> str:
        """Return one line of JSON. Raises JobError if `options` holds values that JSON cannot represent."""
        stop = None if self.stop is None else self.stop.model_dump()
        plain = {"options": dict(self.options), "faults": vars(self.faults), "stop": stop}
        try:
            return json.dumps(vars(self) | plain, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as wrong:
            raise JobError(f"job {self.name!r}: options cannot be written as JSON: {wrong}") from None

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Read a specification written by `to_json`."""
        values = json.loads(text)
        stop = None if values["stop"] is None else StopRule.model_validate(values["stop"])
        nested = {"faults": FaultTolerance(**values["faults"]), "pip": tuple(values["pip"]), "stop": stop}
        return cls(**values | nested)


def raised_in(text: str) -> str:
    """The exception line of a traceback, that is, the first after its frames. For any other text, its last line."""
    lines = text.strip().splitlines() or ["no reason given"]
    framed = [number for number, line in enumerate(lines[:-1]) if line.startswith("  ")]
    return lines[framed[-1] + 1] if lines[0].startswith("Traceback") and framed else lines[-1]


def reason_of(error: BaseException) -> str:
    """Ray's reason for a failed call, in a line: the exception raised by a process, if any, or pip's error."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return next((line for line in reversed(lines) if re.match(r"([\w.]*(Error|Exception)|ERROR):", line)), lines[0])


def global_batch(spec: JobSpec, workers: int, chosen: int | None) -> int:
    """Samples of a step, all workers together. chosen: the scheduler's choice. If None, the job's own rule applies."""
    if chosen is not None:
        return chosen
    return spec.batch_size * (workers if spec.batch_rule == "per_worker" else 1)


@dataclass(frozen=True)
class Measured:
    """Throughput of one size of a job: samples per second over `count` measured steps on `nodes` nodes.

    servers: parameter servers, 0 if workers average gradients among themselves. gpu: GPU type.
    """

    workers: int
    nodes: int
    samples_per_second: float
    count: int
    servers: int = 0
    gpu: str = ANY_GPU

    def step(self, batch_size: int, *, fixed: bool) -> Step:
        """Return the mean step; the synchronisation of several workers was not measured. batch_size: samples of all
        workers if `fixed`, otherwise of each."""
        batch = batch_size / (self.workers if fixed else 1)
        seconds = self.workers * batch / self.samples_per_second
        sync = math.nan if self.workers > 1 else 0.0
        return Step(self.nodes, self.workers, batch, seconds, sync, self.servers, self.gpu, self.count)


@dataclass(frozen=True)
class Interruptions:
    """Interruptions of a job's training.

    rescales: changes of the group of workers while the job trained. rescale_seconds: time without a training step
    during them. pauses: the newest of these times [s]. recoveries: faults survived. recovery_seconds: durations of the
    newest recoveries, from noticing the fault to training again [s].
    """

    rescales: int = 0
    rescale_seconds: float = 0.0
    pauses: Sequence[float] = ()
    recoveries: int = 0
    recovery_seconds: Sequence[float] = ()


@dataclass(frozen=True)
class KeptTraining:
    """Duration of the training that led to a job's present step [s, GPU-s]."""

    seconds: float = 0.0
    gpu_seconds: float = 0.0


@dataclass(frozen=True)
class JobReport:
    """A controller's report on its job at one moment. Unknown numbers are NaN.

    generation: of the newest command taken. applied: newest generation that is completely in force.
    holding: node id of every worker that is alive or being started: the authoritative list of GPUs in use.
    training_on: node ids of the workers that train together now. serving_on: node ids of the parameter servers that are
        alive or being started. rolled_back: newest generation whose new workers and servers did not come up in time:
        it was given up, and the job continues with its former ones. batch_size: samples of a step; 0 before the first.
    progress: scale-invariant epochs. loss, samples_per_second: of the newest steps. accuracy: of the newest evaluation.
    noise_scale: gradient noise scale in samples. accuracy_curve: (epochs, accuracy) of evaluations, thinned out to a
        bounded number. throughput: of each size so far, at batch sizes of the job's own choice.
    checkpoint: newest one on disk. failure: text of the newest failure, kept after recovery. note: set if the job has
        stopped early, with the epoch.
    earlier: reduced reports since the previous one, for curves, if no scheduler has asked for long.
    pid: of the controller's process. time: of the report, s since the epoch of `time.time`; that clock may jump.
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
    interruptions: Interruptions = Interruptions()
    kept: KeptTraining = KeptTraining()
    checkpoint: Checkpoint | None = None
    failure: str = ""
    note: str = ""
    earlier: tuple[JobReport, ...] = ()
    pid: int = 0
    time: float = 0.0

    @property
    def ended(self) -> bool:
        """True once the job has ended and will not train again."""
        return self.state in ("finished", "failed")

    def figures(self) -> dict[str, Any]:
        """Figures of this report for notes and records, as JSON; non-finite numbers are left out."""
        names = ("job", "state", "training_on", "batch_size", "step", "progress", "loss", "accuracy", "note", "time")
        found = {name: getattr(self, name) for name in (*names, "samples_per_second", "noise_scale")}
        return {name: value for name, value in found.items() if not isinstance(value, float) or math.isfinite(value)}


def last_report(spec: JobSpec) -> JobReport | None:
    """The last report of a finished job whose controller is gone, from the record in its folder. None without such a
    record: the job resumes from its checkpoint."""
    try:
        kept = json.loads(Path(spec.folder, RECORD).read_text(encoding="utf-8"))
        earlier, sums = tuple(JobReport(**one) for one in kept["earlier"]), kept["statistics"]
        interruptions, training = Interruptions(**sums["interruptions"]), KeptTraining(**sums["kept"])
        report = JobReport(**kept["report"], interruptions=interruptions, kept=training, earlier=earlier)
        return report if report.state == "finished" else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
