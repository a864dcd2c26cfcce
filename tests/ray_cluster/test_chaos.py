"""Jobs under a real policy, a fault every 3.5 s, and all promises checked every second.

12 s; `--soak 30` goes on for half an hour, with a fault every 15 s.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from rlpto.ray_cluster.controllers import find_controllers
from rlpto.ray_cluster.nodes.local import LocalCluster
from tests.ray_cluster.chaos import Faults, Scheduler, Watcher, free_gpus, query
from tests.ray_cluster.conftest import GPUS, NODES
from tests.ray_cluster.test_commands import experiment
from tests.ray_cluster.test_real import wait_until

MINUTES = 0.2
JOBS = 6
FAULT_INTERVAL_S, SOAK_INTERVAL_S = 3.5, 15.0
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


def test_all_promises_are_kept_under_faults(
    ray_cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    soak = request.config.getoption("--soak")
    minutes, interval = (soak, SOAK_INTERVAL_S) if soak else (MINUTES, FAULT_INTERVAL_S)
    epochs = max(round((SHARE * 60 * minutes * NODES * GPUS / JOBS - STARTS) / (PACE * STEPS)), 1)
    scheduler = Scheduler(tmp_path, ray_cluster.address, jobs_of_equal_length(tmp_path, minutes, epochs))
    watcher = Watcher(ray_cluster, scheduler.session, scheduler.database, GPUS)
    faults = Faults(ray_cluster, watcher, scheduler, random.Random(5), GPUS)
    try:
        with watcher:
            wait_until(lambda: any(one.training_on for one in list(watcher.reports.values())) or scheduler.ended)
            wreak(faults, scheduler, 60 * minutes, interval)
            code = scheduler.wait(FINISH_TIMEOUT_S)
    finally:
        scheduler.kill()
        while faults.mend():
            time.sleep(0.5)
    jobs = query(scheduler.database, "SELECT id, state, step, recoveries FROM jobs")
    print(f"{dict(faults.done)}, {sum(row[3] for row in jobs)} recoveries, {scheduler.restarts} restarts")
    print(f"{watcher.samples} samples, training taken back: {watcher.lost}, {watcher.lost_twice} [s]")
    assert code == 0, scheduler.output()
    assert [row[1:3] for row in jobs] == [("finished", epochs * STEPS)] * JOBS
    ended = "SELECT job FROM events WHERE json_extract(body, '$.what') = 'finished'"
    assert set(Counter(row[0] for row in query(scheduler.database, ended)).values()) == {1}
    assert watcher.wrong == []
    assert find_controllers(scheduler.session) == {}
    wait_until(lambda: len(set(free_gpus())) == 1)
    assert max(watcher.lost, default=0.0) <= INTERVAL + SLACK
    assert max(watcher.lost_twice, default=0.0) <= 2 * INTERVAL + SLACK, "after a damaged checkpoint"
    assert faults.done.total() >= 3 * minutes


def jobs_of_equal_length(folder: Path, minutes: float, epochs: int) -> Path:
    """The experiment: they come during the first half."""
    program = {"training": "rlpto.ray_cluster.programs.digits:DigitsMlp", "samples": 1437, "batch_size": 64}
    jobs = {"model": "digits", "gpus": 1, "max_gpus": 4, "count": JOBS, "every": 30 * minutes / JOBS, "epochs": epochs}
    return experiment(
        folder,
        cluster={"nodes": [{"count": NODES, "gpus": GPUS}]},
        workload={"source": "jobs", "jobs": [jobs]},
        simulator={"interval": 10},
        ray={
            "programs": {"digits": {**program, "epochs": epochs, "pace": PACE}},
            "checkpoint_interval": INTERVAL,
            "heartbeat_timeout": 5,
            "retries": 5,
        },
        policies=["equal_share"],
        evaluation={"reference": "equal_share"},
    )


def wreak(faults: Faults, scheduler: Scheduler, seconds: float, interval: float) -> None:
    """A fault every `interval` seconds, as long as there is work."""
    began = time.monotonic()
    due = began + interval
    while (time.monotonic() < began + seconds and not scheduler.ended) or faults.mend():
        time.sleep(0.5)
        faults.mend()
        if due <= time.monotonic() < began + seconds:
            print(f"{time.monotonic() - began:6.0f} s  {faults.strike() or 'nothing to break'}")
            due += interval
