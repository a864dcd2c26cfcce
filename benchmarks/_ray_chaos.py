"""A soak: jobs under a real policy, a fault every 20 s, and an eye on everything that was promised."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from _chaos import Faults, Scheduler, Watcher, free_gpus, query
from _common import Check
from _ray_job import cluster, experiment, load

from rlpto.ray_cluster.controllers import find_controllers

JOBS, NODES, GPUS = 12, 4, 2
FAULT_INTERVAL_S = 20.0
"""s between faults."""
PACE, STEPS = 0.5, 23
"""s of a step with one worker; steps of an epoch."""
SHARE, STARTS = 0.78, 20.0
"""Of all GPU time that there is in the soak, what the jobs need; GPU seconds of it that starts of each take."""
INTERVAL = 10.0
"""s between checkpoints."""
SLACK = 5.0
"""s that a loss may seem longer than it is: samples are a second apart, and a checkpoint takes time to be written."""
FINISH_TIMEOUT_S = 2400.0
"""s after the last fault within which all jobs must have finished."""
SEED = 5


def run(minutes: float) -> tuple[list[Check], dict[str, object]]:
    epochs = max(round((SHARE * 60 * minutes * NODES * GPUS / JOBS - STARTS) / (PACE * STEPS)), 1)
    with tempfile.TemporaryDirectory() as folder, cluster(NODES, GPUS) as started:
        scheduler = Scheduler(Path(folder), started.address, config(minutes, epochs))
        watcher = Watcher(started, scheduler.session, scheduler.database, GPUS)
        faults = Faults(started, watcher, scheduler, random.Random(SEED), GPUS)
        began = time.monotonic()
        scheduler.start()
        watcher.start()
        try:
            wreak(faults, scheduler, 60 * minutes)
            calm = time.monotonic()
            code = scheduler.wait(FINISH_TIMEOUT_S)
        finally:
            scheduler.kill()
            watcher.stop()
        facts: dict[str, object] = {
            "minutes with faults": round((calm - began) / 60, 1),
            "minutes until all jobs had finished": round((time.monotonic() - began) / 60, 1),
            "load during chaos": load(),
        }
        if code != 0:
            facts["the scheduler said"] = scheduler.said()
        checks, more = verdict(scheduler, watcher, faults, code, epochs)
    return checks, facts | more


def config(minutes: float, epochs: int) -> str:
    """Jobs of equal length that come during the first half."""
    jobs = {"count": JOBS, "every": 30 * minutes / JOBS, "epochs": epochs, "max_gpus": 4}
    program = {"epochs": epochs, "pace": PACE}
    ray = {"checkpoint_interval": INTERVAL, "heartbeat_timeout": 5, "retries": 5}
    return experiment("chaos", NODES, GPUS, jobs, program, **ray)


def wreak(faults: Faults, scheduler: Scheduler, seconds: float) -> None:
    """A fault every `FAULT_INTERVAL_S` seconds, as long as there is work."""
    began = time.monotonic()
    due = began + FAULT_INTERVAL_S
    while (time.monotonic() < began + seconds and not scheduler.ended) or faults.mend():
        time.sleep(0.5)
        faults.mend()
        if due <= time.monotonic() < began + seconds:
            done = faults.strike() or "nothing to break"
            print(f"{time.monotonic() - began:6.0f} s  {done}", file=sys.stderr, flush=True)
            due += FAULT_INTERVAL_S


def verdict(
    scheduler: Scheduler, watcher: Watcher, faults: Faults, code: int | None, epochs: int
) -> tuple[list[Check], dict[str, object]]:
    """What was promised, against what was seen."""
    jobs = query(scheduler.database, "SELECT id, state, step, recoveries, failure FROM jobs")
    finished = Counter(
        row[0]
        for row in query(scheduler.database, "SELECT job FROM events WHERE json_extract(body, '$.what') = 'finished'")
    )
    short = [row for row in jobs if row[1] != "finished" or row[2] != epochs * STEPS]
    free, total = settled_gpus()
    limit = INTERVAL + SLACK
    checks = [
        Check("jobs", len(jobs), "", 10, True),
        Check("jobs that have not finished all their steps", len(short), "", 0, False),
        Check("jobs that finished twice", sum(count > 1 for count in finished.values()), "", 0, False),
        Check("the scheduler's exit code", -1 if code is None else code, "", 0, False),
        Check("samples in which a promise was broken", len(watcher.wrong), "", 0, False),
        Check("controllers left", len(find_controllers(scheduler.session)), "", 0, False),
        Check("GPUs that are not free again", total - free, "", 0, False),
        Check("training taken back by a fault, at most", max(watcher.lost, default=0.0), "s", limit, False),
        Check(
            "the same after a damaged checkpoint", max(watcher.lost_twice, default=0.0), "s", limit + INTERVAL, False
        ),
    ]
    facts: dict[str, object] = {
        "faults": dict(sorted(faults.done.items())),
        "restarts of the scheduler": scheduler.restarts,
        "recoveries of jobs": sum(row[3] for row in jobs),
        "GPUs held at once, at most": watcher.most_held,
        "samples": watcher.samples,
        "times that training was taken back": len(watcher.lost) + len(watcher.lost_twice),
        "epochs of each job": epochs,
    }
    if watcher.wrong:
        facts["broken promises"] = watcher.wrong[:20]
    if short:
        facts["jobs that fell short"] = short
    return checks, facts


def settled_gpus() -> tuple[float, float]:
    """Free GPUs and all GPUs, once Ray has counted what has just ended."""
    by = time.monotonic() + 15
    while time.monotonic() < by and len(set(free_gpus())) > 1:
        time.sleep(0.5)
    return free_gpus()
