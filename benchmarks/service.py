"""The job service: load, a long history, the pages, policies compiled under load, time to the queue, predictions."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _common
import _service_virtual
import _service_web
from _common import Check, Found, progress
from _service_web import SECONDS, p95, submit_at_once

from rlpto.store.status import heartbeat
from tests.service.served import TINY, Served, served

NODES, GPUS = 3, 2
COMPILED = ("pollux", "planner")
SILENCE_S = 3.0
"""Longest time without a sign of life, which there is one of every second."""
SLOW = {**TINY, "program": {**TINY["program"], "pace": 2.0}}
"""A program whose steps take long, so that its jobs hold GPUs and leave the cores to the service."""
RATE = 230.0
"""Submissions a second of all clients together."""
LOOK_S, PATIENCE_S = 0.02, 7200.0


@contextmanager
def service(**more: Any) -> Iterator[Served]:
    """A service of its own, with its cluster."""
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), NODES, GPUS, **more) as started:
        yield started


def compiling() -> Found:
    """The first switch to policies that have to be compiled: whether jobs are served meanwhile."""
    with (
        tempfile.TemporaryDirectory() as cache,
        service(variables={"NUMBA_CACHE_DIR": cache}) as started,
        ThreadPoolExecutor(1) as pool,
    ):
        jobs, took, silences = [started.submit(100_000.0)], [], [0.0]
        started.until(lambda: started.states(*jobs) == {"running"})
        started.switch("elastic_fifo")  # what is made ready without being asked for is ready now
        started.switch("round_robin")
        for policy in COMPILED:
            progress(f"compiling {policy}")
            epochs = started.row(jobs[0]).progress
            begun = time.monotonic()
            switch = pool.submit(started.switch, policy)
            jobs.append(started.submit(1.0))
            last = time.time()
            while not switch.done():
                beat = heartbeat(started.store)
                last = last if beat is None else max(last, beat[0])
                silences.append(time.time() - last)
                time.sleep(LOOK_S)
            took.append(f"{policy} {time.monotonic() - begun:.1f}")
            switch.result()
            assert started.row(jobs[0]).progress > epochs
        rows = started.over(*jobs[1:])
        started.client.cancel(jobs[0])
        queued = [(row.queued or float("inf")) - row.submitted for row in rows]
    return [
        Check("policies that were compiled and are in force", len(took), "", len(COMPILED), True),
        Check("longest silence of the scheduler meanwhile", max(silences), "s", SILENCE_S, False),
        Check("a job that is submitted meanwhile is queued", max(queued), "s", SILENCE_S, False),
    ], {"from the request to in force [s]": took}


def queued() -> Found:
    """32 clients that submit at a steady rate: how soon the scheduler has put their jobs into the queue."""
    with service(programs={"tiny": TINY, "slow": SLOW}) as started:
        running = [started.submit(100_000.0, program="slow") for _ in range(NODES * GPUS)]
        started.until(lambda: started.states(*running) == {"running"})
        took = submit_at_once(started.address, started.store, "tiny", RATE)
        asked = "SELECT queued - submitted FROM jobs WHERE program = 'tiny' AND queued IS NOT NULL"
        started.until(lambda: len(started.store.rows(asked)) >= len(took), PATIENCE_S)
        waited = [row[0] for row in started.store.rows(asked)]
        beat = heartbeat(started.store)
        assert beat is not None
        for job in running:
            started.client.cancel(job)
    return [
        Check("submissions a second, 32 clients, with a scheduler", len(took) / SECONDS, "1/s", 200.0, True),
        Check("p95 of a submission then", 1000 * p95(took), "ms", 150.0, False),
        Check("jobs seen in the queue", len(waited), "", len(took), True),
        Check("submitted to queued, p95", p95(waited), "s", 0.3, False),
        Check("scheduler's longest wait for the database", 1000 * beat[1].longest_wait, "ms", 100.0, False),
    ], {"submitted to queued, median, slowest [s]": (round(statistics.median(waited), 3), round(max(waited), 3))}


PARTS = {
    **_service_web.PARTS,
    "compiling": compiling,
    "queued": queued,
    "predictions": _service_virtual.predictions_made,
}


def main() -> None:
    options = _common.parser(__doc__, PARTS).parse_args()
    checks, facts = _common.run_parts(PARTS, options.parts)
    if "paint" not in PARTS:
        print("paint and live skipped: no Chromium is installed", file=sys.stderr)
    _common.finish(checks, **facts)


if __name__ == "__main__":
    main()
