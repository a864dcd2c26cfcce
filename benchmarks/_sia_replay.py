"""Sia's own parity case, replayed: its simulator's rules for jobs, our programme, fits, batch choice and placement.

Jobs know only what they have observed: one fit for every job and kind of GPU, refitted whenever a new (nodes, GPUs,
local batch) is seen. On a kind that a job has not run on, its speed is that on the first kind it ran on times the ratio
of one GPU's throughputs; before it has run at all, one GPU of any kind is worth 1. Rules after `pollux-and-sia.md`,
section 3; speeds are measured ones, divided by Sia's constants.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rlpto.performance.batch_choice import BatchChoices, batch_choices, choose_batch, fill_goodput

from rlpto.arrays import FloatArray, IntArray
from rlpto.cluster import ClusterShape, Node
from rlpto.kinds import NO_KIND, place_on_kinds, room_of
from rlpto.performance.measured import MeasuredModel, MeasuredProfiles
from rlpto.performance.measurements import smallest_rotation
from rlpto.performance.online_fit import fit_observed, theta_of
from rlpto.policies.sia import Choices, configurations, costs, restart_factor, solve

SHAPE = ClusterShape(
    (*[Node(4, gpu="aws")] * 6, *[Node(8, gpu="dgx-ext")] * 2, *[Node(8, gpu="rtx")] * 3)
)  # T4, A100, 2080 Ti
INTERVAL_S = 60.0
CHARGED_S = {"cifar10": 50, "deepspeech2": 25, "yolov3": 80, "bert": 120, "imagenet": 250}
"""Seconds without progress after a change, by model; BELIEVED_S: what the policy takes it to be."""
BELIEVED_S = {"cifar10": 30, "deepspeech2": 25, "yolov3": 45, "bert": 120, "imagenet": 250}
SLOWDOWNS = {"cifar10": 1.8}
SLOWDOWN = 1.2
"""What Sia's simulator divides all speeds by, and those of other models."""
POWER, WAITING, GROWTH = -0.5, 1.1, 2


@dataclass
class Shared:
    """What all jobs of the case share: measurements by model and kind, and lookups that have been made before."""

    profiles: MeasuredProfiles
    most: int = SHAPE.most_gpus
    _choices: dict[tuple[str, int], BatchChoices] = field(default_factory=dict)
    _steps: dict[tuple[str, int, tuple[int, ...], int], tuple[float, float]] = field(default_factory=dict)

    def model(self, name: str, kind: int) -> MeasuredModel:
        return self.profiles.model(name, SHAPE.kinds[kind])

    def choices(self, name: str, kind: int) -> BatchChoices:
        if (name, kind) not in self._choices:
            self._choices[name, kind] = batch_choices(self.model(name, kind).limits, self.most)
        return self._choices[name, kind]

    def one_gpu(self, name: str, kind: int) -> float:
        """Samples/s of one GPU with the largest local batch that was measured on it."""
        alone = self.model(name, kind).measured.placements[(1,)]
        return float(alone.local_batch.max() / alone.step_time.max())

    def step(self, name: str, kind: int, placement: tuple[int, ...], local: int) -> tuple[float, float]:
        """True seconds of a step, and of its synchronisation."""
        key = (name, kind, placement, local)
        if key not in self._steps:
            model, batch = self.model(name, kind), np.array([local])
            measured = smallest_rotation(placement)
            steps = model.exact_steps(measured, batch) if measured in model.measured.placements else None
            if steps is None or not np.isfinite(steps.step[0]):
                steps = model.size_steps(np.array([len(placement)]), np.array([sum(placement)]), batch)
            self._steps[key] = float(steps.step[0]), float(steps.sync[0])
        return self._steps[key]


class ReplayedJob:
    """A job that knows what it has observed. All times in seconds."""

    def __init__(self, name: str, model: str, submitted: float, shared: Shared) -> None:
        self.name, self.model, self.submitted, self.shared = name, model, submitted, shared
        self.measured = shared.model(model, 0)
        self.now, self.finished = submitted, math.nan
        self.kind, self.placement, self.row = NO_KIND, (), np.zeros(len(SHAPE), dtype=np.int64)
        self.starting, self.restarts, self.largest = 0.0, -1, 0
        self.epoch, self.progress = 0, 0.0
        self.local = self.accumulation = 0
        self.gradient = (0.0, 0.0)
        self.observed: list[dict[tuple[int, int, int], tuple[float, float]]] = [{} for _ in SHAPE.kinds]
        self.theta: dict[int, FloatArray] = {}  # by kind, in the order in which the job came to them

    @property
    def gpus(self) -> int:
        return sum(self.placement)

    def place(self, row: IntArray, kind: int) -> None:
        """Go on with the GPUs of a row [N] of a placement."""
        self.row, self.placement = row, tuple(int(gpus) for gpus in row if gpus)
        self.kind = kind if self.placement else NO_KIND
        if self.placement:
            self.starting, self.restarts = float(CHARGED_S[self.model]), self.restarts + 1
            self._choose_batch()

    def _choose_batch(self) -> None:
        gpus, limits = self.gpus, self.shared.model(self.model, self.kind).limits
        if self.kind in self.theta:
            choices = self.shared.choices(self.model, self.kind)
            best, _ = choose_batch(choices, self.theta[self.kind], len(self.placement), gpus, *self.gradient, 1.0)
            self.local, self.accumulation = int(choices.capped[gpus, best]), int(choices.accumulation[gpus, best])
            return
        total = max(limits.base, limits.min_local * gpus)
        share = -(-total // gpus)
        self.accumulation = -(-share // limits.max_local) - 1
        if gpus == 1 and total > limits.base:
            self.accumulation = max(1, self.accumulation)
        each = self.accumulation + 1
        self.local = min(-(-share // each), limits.largest // (gpus * each))

    def advance(self, seconds: float) -> None:
        """Train; epochs end at whole seconds."""
        delay = min(self.starting, seconds) if self.placement else seconds
        self.starting -= delay if self.placement else 0.0
        self.now, seconds = self.now + delay, seconds - delay
        while seconds > 0 and math.isnan(self.finished):
            speed, due = self._observe(), float(self.measured.measured.progress[self.epoch + 1])
            if self.progress + speed * seconds < due:
                self.progress, self.now, seconds = self.progress + speed * seconds, self.now + seconds, 0.0
            else:
                passed = round((due - self.progress) / speed)
                self.epoch, self.progress, self.now, seconds = self.epoch + 1, due, self.now + passed, seconds - passed
                if self.epoch == self.measured.epochs:
                    self.finished = self.now
            if math.isnan(self.finished):
                self._choose_batch()

    def _observe(self) -> float:
        """Iterations at the base batch per second, now; what the job sees of them is fitted."""
        nodes, gpus = len(self.placement), self.gpus
        step, sync = self.shared.step(self.model, self.kind, self.placement, self.local)
        batch = gpus * self.local * (self.accumulation + 1)
        sqr, var = self._statistics(batch)
        self.gradient, self.largest = (sqr, var), max(self.largest, gpus)
        seen = self.observed[self.kind]
        if (nodes, gpus, self.local) not in seen:
            seen[nodes, gpus, self.local] = step, sync
            keys, times = np.array(list(seen)), np.array(list(seen.values()))
            self.theta[self.kind] = theta_of(fit_observed(*keys.T, *times.T))
        gain = (var + sqr) / (var / (batch / self.measured.limits.base) + sqr)
        return float(gain / (step + (step - sync) * self.accumulation) / SLOWDOWNS.get(self.model, SLOWDOWN))

    def _statistics(self, batch: int) -> tuple[float, float]:
        """Squared norm and variance of the gradient at a batch in this epoch, linear between the runs."""
        runs, epoch = self.measured.measured, self.epoch
        sqr, var = (runs.stacked(name)[:, epoch] for name in ("grad_sqr", "grad_var"))
        return float(np.interp(batch, runs.batches, sqr)), float(np.interp(batch, runs.batches, var))

    def believed(self, sizes: list[list[int]]) -> list[dict[int, float]]:
        """For every kind what is believed of the sizes that the job may have, by GPUs, in samples/s."""
        if not self.theta:
            return [{1: 1.0} for _ in sizes]
        most, found = max(1, GROWTH * self.largest), []
        for kind, (gpu, possible) in enumerate(zip(SHAPE.kinds, sizes, strict=True)):
            known = kind if kind in self.theta else next(iter(self.theta))
            goodput = np.zeros((2, self.shared.most + 1))
            fill_goodput(self.shared.choices(self.model, known), self.theta[known], *self.gradient, 1.0, goodput)
            ratio = self.shared.one_gpu(self.model, kind) / self.shared.one_gpu(self.model, known)
            on = {size: float(goodput[int(size > SHAPE.kind_sizes[gpu]), size] * ratio) for size in possible}
            found.append({size: value for size, value in on.items() if value > 0 and size <= most})
        return found


def replay(folder: Path) -> list[ReplayedJob]:
    """The jobs of `folder`/philly-3-first30.csv, finished. folder: the one called sia in the data folder."""
    shared = Shared(MeasuredProfiles(folder / "traces"))
    with (folder / "philly-3-first30.csv").open(newline="") as file:
        jobs = [
            ReplayedJob(row["name"], row["application"], float(row["time"]), shared) for row in csv.DictReader(file)
        ]
    time, coming, active = 0.0, list(jobs), list[ReplayedJob]()
    while coming or active:
        time += INTERVAL_S
        for job in active:
            job.advance(INTERVAL_S)
        active = [job for job in active if math.isnan(job.finished)]
        while coming and coming[0].submitted <= time:
            active.append(coming.pop(0))
            active[-1].now = time
        if active:
            decide(active, time)
    return jobs


def decide(active: list[ReplayedJob], time: float) -> None:
    """One decision: jobs that are starting stay, the others get what the programme says."""
    room, sizes = room_of(SHAPE), configurations(SHAPE)
    gpus, kind = np.zeros(len(active), dtype=np.int64), np.full(len(active), NO_KIND)
    entries: list[tuple[int, int, int, float]] = []
    for row, job in enumerate(active):
        if job.placement and job.starting > 0:
            gpus[row], kind[row] = job.gpus, job.kind
            room[job.kind] -= job.gpus
            continue
        age, restarts = np.array([time - job.submitted]), np.array([job.restarts if job.placement else 0])
        factor = float(restart_factor(age, restarts, np.array([float(BELIEVED_S[job.model])]))[0])
        believed = job.believed(sizes)
        lowest = min(value for on in believed for value in on.values())
        for number, on in enumerate(believed):
            for size, value in on.items():
                present = job.kind == number and job.gpus == size
                entries.append((row, number, size, (1.0 if present else factor) * value / lowest))
    rows, kinds, counts, values = map(np.array, zip(*entries, strict=True)) if entries else [np.zeros(0, int)] * 4
    choices = Choices(rows, kinds, counts, costs(values.astype(float), POWER))
    chosen = solve(choices, room, WAITING)
    gpus[choices.row[chosen]], kind[choices.row[chosen]] = choices.gpus[chosen], choices.kind[chosen]
    held = np.stack([job.row for job in active])
    placed = place_on_kinds(SHAPE, held, gpus, kind, make_room=True)
    for row, job in enumerate(active):
        if not np.array_equal(placed[row], held[row]):
            job.place(placed[row], int(kind[row]))
