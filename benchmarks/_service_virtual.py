"""Predictions of a job service's scheduler in virtual time, over controllers in memory whose speeds follow laws.

Programs differ from their guessed speeds, jobs of a program differ a little, and several workers are slower than the
same multiple of one: the scheduler learns all that from reports, as on a real cluster. Time is virtual.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from _common import Check, Found

from rlpto.arrivals.sampled import Futures
from rlpto.ray_cluster.messages import JobReport, Measured
from rlpto.store.jobs import JobRow, Priority, get_job, insert_job
from rlpto.store.status import PredictionRow, predictions
from tests.ray_cluster.fakes import FakeController
from tests.service.scheduler.virtual import Act, VirtualBackend, VirtualService, config

POLICIES = ("fifo", "elastic_fifo", "index")
CASES = (*((policy, "declared") for policy in POLICIES), ("fifo", "learnt"), ("index", "learnt"))
"""Policies whose intervals are checked, each with `knowledge.remaining`."""
NODES = [{"count": 4, "gpus": 4}]
HOUR_S = 3600.0
PROGRAMS = 3
PRIORITIES: tuple[Priority, ...] = get_args(Priority)
GUESS_OFF, JOB_OFF, STEP_OFF = 0.4, 0.03, 0.02
"""Standard deviations of logarithms: true speed of a program relative to its guess, of a job relative to its program,
and of a measurement relative to the truth."""
SYNC = 0.08
"""Share of a one-worker step that each additional node costs; n workers also cost half of it times (n - 1) / n."""
BATCH, STEPS = 64, 100
"""Samples of a step, and steps of an epoch. A step is guessed to take 0.5 to 2 seconds."""
ALONE_RUNS, ALONE_JOBS, ALONE_EVERY_S = 4, 24, 600.0
RUNS, HISTORY_H, JOBS_PER_HOUR = 24, 5.0, 10.0
PROCESSES = 2
MOST_ERROR, COVERAGE = 0.15, (0.70, 0.90)


@dataclass
class LawController(FakeController):
    """Trains at `alone` epochs per second with one worker, and slower per worker by SYNC. seen: measured speeds."""

    alone: float = 1.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    seen: dict[tuple[int, int], float] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int, int]:
        return len(self.training_on), len(set(self.training_on))

    @property
    def speed(self) -> float:
        workers, nodes = self.size
        if not workers:
            return 0.0
        return self.alone / (1.0 / workers + SYNC * (nodes - 1) + SYNC / 2 * (workers - 1) / workers)


@dataclass
class LawBackend(VirtualBackend):
    """A cluster of `LawController`. speeds: epochs per second of one worker, by program."""

    speeds: dict[str, float] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        self.controller = self._made

    def _made(self, spec: Any, delay: float, rate: float, progress: float) -> LawController:
        alone = self.speeds[spec.training] * float(np.exp(JOB_OFF * self.rng.standard_normal()))
        return LawController(spec, delay, rate, progress=progress, alone=alone, rng=self.rng)

    def report(self, controller: FakeController) -> JobReport:
        assert isinstance(controller, LawController)
        if controller.speed:
            off = float(np.exp(STEP_OFF * controller.rng.standard_normal()))
            controller.seen.setdefault(controller.size, controller.speed * controller.spec.data_size * off)
        sizes = tuple(Measured(*size, speed, 100) for size, speed in sorted(controller.seen.items()))
        return replace(super().report(controller), throughput=sizes, samples_per_second=controller.speed)


@contextmanager
def world(
    policy: str, seed: int, look_every: float, remaining: str = "declared", forecast: str = "on"
) -> Iterator[tuple[VirtualService, np.random.Generator]]:
    """A service whose programs have speeds drawn by the seed, and a generator for other draws. look_every [s].

    remaining, forecast: `knowledge.remaining` and `forecast.mode` of the service.
    """
    rng = np.random.default_rng(seed)
    names = [f"program_{number}" for number in range(PROGRAMS)]
    paces = rng.uniform(0.5, 2.0, PROGRAMS)
    off = np.exp(GUESS_OFF * rng.standard_normal(PROGRAMS))
    alone = 1 / (STEPS * paces * off)  # epochs per second
    classes = [f"some.{name}:Program" for name in names]
    speeds = dict(zip(classes, alone.tolist(), strict=True))
    same = {"epochs": 50, "samples": STEPS * BATCH, "batch_size": BATCH}
    tasks = [{"training": one, "pace": pace, **same} for one, pace in zip(classes, paces.tolist(), strict=True)]
    setup = config(
        60.0, cluster={"nodes": NODES}, forecast={"mode": forecast}, knowledge={"remaining": remaining}, seed=seed
    )
    with tempfile.TemporaryDirectory() as folder:
        service = VirtualService(
            Path(folder),
            setup,
            settings={"scheduler": {"policy": policy, "predict_every": look_every}},
            look_ahead=True,
            backend=partial(LawBackend, speeds=speeds, rng=rng),
            programs=dict(zip(names, tasks, strict=True)),
            poll=60.0,
        )
        service.loop.step()
        try:
            yield service, rng
        finally:
            service.close()


def asked(rng: np.random.Generator) -> JobRow:
    """A job of some minutes to some hours on its requested GPUs."""
    gpus = int(rng.choice([1, 2, 4], p=[0.5, 0.3, 0.2]))
    epochs = float(np.clip(np.exp(rng.normal(np.log(15.0), 0.7)), 3.0, 150.0)) * gpus
    number, priority = int(rng.integers(PROGRAMS)), PRIORITIES[int(rng.choice(3, p=[0.2, 0.6, 0.2]))]
    return JobRow("ann", "a job", f"program_{number}", epochs, gpus=gpus, max_gpus=2 * gpus, priority=priority)


def submitting(at: float, job: JobRow) -> Act:
    return at, lambda service: insert_job(service.store, job, service.now())


def poisson(rng: np.random.Generator, begins: float, hours: float) -> list[Act]:
    times = np.sort(rng.uniform(0.0, hours * HOUR_S, rng.poisson(JOBS_PER_HOUR * hours)))
    return [submitting(begins + at, asked(rng)) for at in times.tolist()]


def all_rows(service: VirtualService) -> dict[str, JobRow]:
    ids = [row[0] for row in service.store.rows("SELECT id FROM jobs")]
    return {job: row for job in ids if (row := get_job(service.store, job)) is not None}


def errors_alone(policy: str, seed: int) -> list[float]:
    """Relative errors of the finishes predicted every ten minutes once no more jobs are submitted, without forecast."""
    with world(policy, seed, ALONE_EVERY_S, forecast="off") as (service, rng):
        last = service.now() + HOUR_S
        times = np.sort(rng.uniform(service.now(), last, ALONE_JOBS))
        service.backend.acts = [submitting(at, asked(rng)) for at in times.tolist()]
        predicted: list[tuple[str, float, float]] = []
        looked = last

        def over() -> bool:
            nonlocal looked
            rows = predictions(service.store)
            newest = max((row.as_of for row in rows.values()), default=0.0)
            if newest > looked:
                looked = newest
                predicted.extend((job, row.as_of, row.finish) for job, row in rows.items() if row.finish is not None)
            known = all_rows(service)
            return len(known) == ALONE_JOBS and all(row.is_over for row in known.values())

        service.run(over)
        ended = {job: row.ended for job, row in all_rows(service).items() if row.ended is not None}
        late = [(abs(finish - ended[job]), ended[job] - at) for job, at, finish in predicted]
        return [error / left for error, left in late if left > 60.0]


class Outcome(NamedTuple):
    """How a prediction came true.

    finish, start: whether it lies in its interval; start is None if the job had started. width: of the finish's
    interval by the time to the finish. off: error of the finish by this time. late [s]: error of the start.
    """

    finish: bool
    start: bool | None
    width: float
    off: float
    late: float


def covered(policy: str, remaining: str, seed: int) -> list[Outcome]:
    """The outcome for every job that is present after some hours.

    Later arrivals are drawn from the forecaster. remaining: `knowledge.remaining` of the service.
    """
    with world(policy, seed, HISTORY_H * HOUR_S, remaining) as (service, rng):
        until = service.now() + HISTORY_H * HOUR_S
        service.backend.acts = poisson(rng, service.now(), HISTORY_H)
        service.run(lambda: service.now() >= until)
        service.backend.acts = poisson(rng, service.now(), 1.0)
        service.run(lambda: any(row.as_of > until for row in predictions(service.store).values()))
        predicted = predictions(service.store)
        volume = service.loop.decisions.volume
        assert volume is not None
        futures = volume.futures(service.now() - service.began, salt=1)
        if futures is None:
            return []
        service.backend.acts = drawn_acts(service, futures)
        service.run(lambda: all(row.is_over for job, row in all_rows(service).items() if job in predicted))
        jobs = all_rows(service)
        return [outcome(predicted[job], jobs[job]) for job in predicted]


def outcome(row: PredictionRow, job: JobRow) -> Outcome:
    """Compare a prediction with the job's true times."""
    assert job.ended is not None
    assert job.started is not None
    assert row.finish is not None
    left = max(job.ended - row.as_of, 60.0)
    off = abs(row.finish - job.ended) / left
    if row.finish_low is None or row.finish_high is None or row.start_low is None or row.start_high is None:
        return Outcome(False, None, 0.0, off, 0.0)
    started, late = None, 0.0
    if job.started > row.as_of:
        assert row.start is not None
        started, late = row.start_low - 1.0 <= job.started <= row.start_high + 1.0, abs(row.start - job.started)
    inside = row.finish_low - 1.0 <= job.ended <= row.finish_high + 1.0
    return Outcome(inside, started, (row.finish_high - row.finish_low) / left, off, late)


def drawn_acts(service: VirtualService, futures: Futures) -> list[Act]:
    """Submissions of the first of some futures."""
    one, rows = futures.arrivals[0], all_rows(service)
    acts = []
    for at, donor, priority in zip(one.submit.tolist(), one.donor.tolist(), one.priority.tolist(), strict=True):
        like = rows[futures.donors[donor].name]
        job = JobRow("ann", "a job", like.program, like.epochs, gpus=like.gpus, max_gpus=like.max_gpus,
                     priority=PRIORITIES[priority])  # fmt: skip
        acts.append(submitting(service.began + at, job))
    return acts


def predictions_made() -> Found:
    """Errors without arrivals, and coverage with them, for some policies; for two also if lengths are learnt."""
    checks: list[Check] = []
    facts: dict[str, object] = {}
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        alone = {policy: pool.map(partial(errors_alone, policy), range(ALONE_RUNS)) for policy in POLICIES}
        among = {case: pool.map(partial(covered, *case), range(RUNS)) for case in CASES}
        for (policy, remaining), runs in among.items():
            found = [one for run in runs for one in run]
            share, said = 100 * float(np.mean([one.finish for one in found])), f"{policy}, lengths {remaining}"
            waiting = [one for one in found if one.start is not None]
            width, off = np.median([(one.width, one.off) for one in found], axis=0).tolist()
            checks += [
                Check(f"{said}: finishes within their 80 % interval", share, "%", 100 * COVERAGE[0], True),
                Check(f"{said}: the same, not too many", share, "%", 100 * COVERAGE[1], False),
            ]
            facts[said] = {
                "finishes predicted, with later arrivals": len(found),
                "starts within their interval [%]": round(100 * float(np.mean([one.start for one in waiting])), 1),
                "width of the interval by the time left, median": round(width, 2),
                "error of a finish by the time left, median": round(off, 3),
                "error of a start, mean [min]": round(float(np.mean([one.late for one in waiting])) / 60, 1),
            }
            print(f"{said}: {facts[said]} {[round(check.value, 1) for check in checks[-2:]]}", file=sys.stderr)
        for policy, every in alone.items():
            errors = [error for run in every for error in run]
            middle = 100 * float(np.median(errors))
            checks.append(
                Check(f"{policy}: median error of a finish, no later arrivals", middle, "%", 100 * MOST_ERROR, False)
            )
            facts[policy] = {
                "finishes predicted, no later arrivals": len(errors),
                "90 % of errors at most [%]": round(100 * float(np.quantile(errors, 0.9)), 1),
            }
            print(f"{policy}: {facts[policy]} {middle:.1f}", file=sys.stderr)
    return checks, facts
