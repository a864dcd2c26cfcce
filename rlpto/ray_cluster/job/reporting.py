"""Running statistics of a job's training: the figures of its reports."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import numpy as np

from rlpto.core.stopping import has_flattened
from rlpto.performance.tables import ANY_GPU
from rlpto.ray_cluster.messages import Interruptions, JobReport, JobSpec, KeptTraining, Measured
from rlpto.ray_cluster.worker.training import Chunk

MAX_CURVE_POINTS = 200
"""Most points of the accuracy curve; when it is full, every other point is dropped."""

RECENT_CHUNKS = 20
"""Chunks over which the present loss and speed are computed; also the number of pauses and recoveries kept."""

CHUNK_TARGET_S = 0.12
"""Target duration of a chunk in s: long enough to make its overhead negligible, short enough to react."""

MAX_CHUNKS_IN_FLIGHT = 2
"""Chunks handed to the workers at once, which spares them waiting for the controller."""
LONG_STEP_S = 0.3
"""Step time above which waiting for the controller is negligible [s]."""

NOTE_INTERVAL_S = 2.0
"""Least time between two notes of a job's progress, and from a report to the first note after it."""
MOST_NOTES = 500
"""Most notes kept; at this number every other one is dropped, and notes become half as frequent."""


class ProgressNotes:
    """Reduced reports while no scheduler asks for one, which close the gaps in a job's curves."""

    def __init__(self, kept: Sequence[Mapping[str, Any]] = ()) -> None:
        self.reports = [JobReport(**one) for one in kept]
        self._interval, self._at = NOTE_INTERVAL_S, time.monotonic()

    def note(self, report: Callable[[], JobReport], last: bool = False) -> None:
        """Add a note of the present report if one is due, or if it is the last."""
        if not last and time.monotonic() < self._at + self._interval:
            return
        self._at = time.monotonic()
        if len(self.reports) >= MOST_NOTES:
            self.reports, self._interval = self.reports[::2], 2 * self._interval
        self.reports.append(JobReport(**report().figures()))

    def take(self) -> tuple[JobReport, ...]:
        """Return the notes and clear them, for a report that includes them."""
        taken, self.reports = tuple(self.reports), []
        self._interval, self._at = NOTE_INTERVAL_S, time.monotonic()
        return taken


@dataclass(frozen=True)
class Size:
    """Size of a group: workers, their nodes, parameter servers (0 if none), and GPU type."""

    workers: int
    nodes: int
    servers: int = 0
    gpu: str = ANY_GPU


class TrainingStatistics:
    """Running figures of one job.

    interruptions, kept, ... are fields of `JobReport`. step_seconds: duration of a step in the present group,
    estimated until measured. batch_size: samples of the newest steps. ended: end of the newest step. All times are on
    this process's monotonic clock, because other clocks may jump.
    """

    def __init__(self) -> None:
        self.step = self.batch_size = 0
        self.samples_done = 0.0
        self.loss = self.accuracy = self.noise_scale = math.nan
        self.interruptions, self.kept = Interruptions(), KeptTraining()
        self.curve: list[tuple[float, float]] = []
        self.speeds: dict[Size, tuple[float, float, int]] = {}
        self.step_seconds = 0.0
        self.ended: float | None = None
        self._size = Size(0, 0)
        self._behind: float | None = None
        self._paused_since: float | None = None
        self._recovering_since: float | None = None
        self._first = True
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT_CHUNKS)
        self._losses: deque[tuple[float, int]] = deque(maxlen=RECENT_CHUNKS)

    @property
    def samples_per_second(self) -> float:
        """Speed over the newest chunks of the present group; NaN before the first."""
        seconds = sum(seconds for _, seconds in self._recent)
        return sum(samples for samples, _ in self._recent) / seconds if seconds else math.nan

    def faulted(self) -> None:
        """Start to count the time of a recovery, unless one is under way."""
        self._recovering_since = self._recovering_since or time.monotonic()

    def grouped(self, size: Size, rescaled: bool) -> None:
        """Start the statistics of a new group. rescaled: whether it continues another group that met no fault."""
        if self._size.workers and size.workers:
            self.step_seconds *= self._size.workers / size.workers
        self._size, self._first, self._behind = size, True, None
        self._recent.clear()
        if rescaled:
            self.interruptions = replace(self.interruptions, rescales=self.interruptions.rescales + 1)
            self._paused_since = self._paused_since or self.ended

    def released(self) -> None:
        """Handle the job's return to the queue; its time there does not count as a pause."""
        self.ended = None

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Add the results of all workers of the group, by rank."""
        # Within a group the two clocks differ by a constant; the delay of its first answer counts as part of that.
        if self._behind is None:
            self._behind = time.monotonic() - chunks[0].ended
        first = replace(chunks[0], first=chunks[0].first + self._behind, ended=chunks[0].ended + self._behind)
        self.step, self.samples_done = first.position.step, first.position.progress
        self.kept = KeptTraining(first.position.seconds, first.position.gpu_seconds)
        if not math.isnan(first.accuracy):
            self.accuracy = first.accuracy
            # After a fault the job may repeat epochs: the newer results count.
            self.curve = [point for point in self.curve if point[0] < first.evaluated_at]
            if len(self.curve) >= MAX_CURVE_POINTS:
                self.curve = self.curve[::2]
            self.curve.append((first.evaluated_at, first.accuracy))
        if first.steps == 0:
            return
        if first.batch_size != self.batch_size:
            self._recent.clear()
            self.batch_size = first.batch_size
        rest = (first.ended - first.first) / (first.steps - 1) if first.steps > 1 else 0.0
        if self._first:
            self._began(first, rest)
        elif self.ended is not None:
            seconds = first.ended - self.ended
            self._recent.append((first.samples, seconds))
            self.step_seconds = 0.7 * self.step_seconds + 0.3 * seconds / first.steps
            if not first.chosen:  # speeds by size are measured at the job's own batch sizes
                known = self.speeds.get(self._size, (0.0, 0.0, 0))
                self.speeds[self._size] = (known[0] + first.samples, known[1] + seconds, known[2] + first.steps)
        self.ended = first.ended
        self._losses.append((sum(chunk.loss for chunk in chunks) / len(chunks), first.steps))
        self.loss = sum(loss * steps for loss, steps in self._losses) / sum(steps for _, steps in self._losses)
        self.noise_scale = first.noise_scale

    def flattened(self, spec: JobSpec) -> bool:
        """True if, by its evaluations so far, the job should stop early."""
        points = np.array(self.curve, dtype=np.float64).reshape(-1, 2)
        return spec.stop is not None and has_flattened(spec.stop, spec.epochs, points[:, 0], points[:, 1])

    def chunk_steps(self) -> int:
        """Steps of a chunk that takes about `CHUNK_TARGET_S`."""
        return max(1, min(10_000, round(CHUNK_TARGET_S / self.step_seconds))) if self.step_seconds > 0 else 1

    def chunks_ahead(self, asynchronous: bool) -> int:
        """Chunks to hand out at once: one if steps are long, because a change then takes effect a step sooner.
        Asynchronous workers always get more, as they would otherwise wait for each other at every step."""
        return 1 if self.step_seconds >= LONG_STEP_S and not asynchronous else MAX_CHUNKS_IN_FLIGHT

    def throughput(self) -> tuple[Measured, ...]:
        """Samples per second of every size measured so far."""
        return tuple(
            Measured(size.workers, size.nodes, samples / seconds, count, size.servers, size.gpu)
            for size, (samples, seconds, count) in sorted(self.speeds.items(), key=lambda item: item[0].workers)
            if seconds > 0
        )

    def figures(self) -> dict[str, Any]:
        """The training fields of a report, by their names in `JobReport`."""
        names = ("step", "interruptions", "kept", "loss", "accuracy", "noise_scale")
        more = {"accuracy_curve": tuple(self.curve), "throughput": self.throughput()}
        return {name: getattr(self, name) for name in names} | more

    def lasting(self) -> dict[str, Any]:
        """The statistics that outlive the controller, as JSON values."""
        return {
            "step": self.step,
            "samples_done": self.samples_done,
            "interruptions": asdict(replace(self.interruptions, pauses=(), recovery_seconds=())),
            "kept": asdict(self.kept),
            "curve": self.curve,
            "speeds": [[astuple(size), *measured] for size, measured in self.speeds.items()],
            "accuracy": self.accuracy if math.isfinite(self.accuracy) else None,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Restore the result of `lasting`."""
        self.step, self.samples_done = kept["step"], kept["samples_done"]
        self.interruptions, self.kept = Interruptions(**kept["interruptions"]), KeptTraining(**kept["kept"])
        self.curve = [(float(epochs), float(accuracy)) for epochs, accuracy in kept["curve"]]
        self.speeds = {Size(*size): (samples, seconds, count) for size, samples, seconds, count in kept["speeds"]}
        self.accuracy = math.nan if kept["accuracy"] is None else kept["accuracy"]

    def _began(self, chunk: Chunk, step: float) -> None:
        """Process the first chunk of a group. It ends a pause, which includes the excess of its first step over an
        ordinary one."""
        self._first = False
        if step > 0:
            self.step_seconds = step
        so_far = self.interruptions
        if self._paused_since is not None:
            pause = max(chunk.first - self._paused_since - self.step_seconds, 0.0)
            pauses = (*so_far.pauses, pause)[-RECENT_CHUNKS:]
            so_far = replace(so_far, rescale_seconds=so_far.rescale_seconds + pause, pauses=pauses)
        if self._recovering_since is not None:
            seconds = (*so_far.recovery_seconds, chunk.first - self._recovering_since)[-RECENT_CHUNKS:]
            so_far = replace(so_far, recoveries=so_far.recoveries + 1, recovery_seconds=seconds)
        self.interruptions = so_far
        self._paused_since = self._recovering_since = None
