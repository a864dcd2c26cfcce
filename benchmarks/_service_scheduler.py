"""The scheduler of a job service after 10,000 finished jobs: memory, restart, and the longest wait for the database.

The scheduler, with its databases, is that of a service; controllers are in memory and time is
virtual, so that ten thousand trainings take minutes.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rlpto.store.jobs import NewJob, count_jobs, insert_job
from tests.service.scheduler.virtual import VirtualService, config

JOBS, AT_ONCE = 10_000, 20
MOST_GROWTH_MB, MOST_RESTART_S, MOST_WAIT_S = 20.0, 5.0, 0.1


def resident_mb() -> float:
    """Memory that this process holds."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise OSError("no VmRSS in /proc/self/status")


def finish(service: VirtualService, jobs: int) -> None:
    """Submit so many jobs in lots, and serve until all have finished."""
    done = count_jobs(service.store, ("finished",))
    for lot in range(0, jobs, AT_ONCE):
        with service.store.transaction():
            for number in range(AT_ONCE):
                insert_job(service.store, NewJob(f"user-{number % 5}", "a job", "tiny", 1.0), service.now())
        wanted = done + lot + AT_ONCE
        service.run(lambda wanted=wanted: count_jobs(service.store, ("finished",)) >= wanted)


def scheduler_after_many_jobs(jobs: int = JOBS) -> dict[str, float]:
    """Growth of memory [MB] from the first tenth on, seconds from a restart to a decision, longest wait [s]."""
    with tempfile.TemporaryDirectory() as folder:
        service = VirtualService(Path(folder), config(600.0, 60.0), rate=0.1)
        finish(service, jobs // 10)
        before, began = resident_mb(), time.perf_counter()
        finish(service, jobs - jobs // 10)
        grown, took = resident_mb() - before, time.perf_counter() - began
        waited = service.parts.store.longest_wait_s
        insert_job(service.store, NewJob("ann", "a job", "tiny", 1.0), service.now())
        began = time.perf_counter()
        service.restart()
        decided = service.parts.status.decisions
        service.run(lambda: service.parts.status.decisions > decided)
        restart = time.perf_counter() - began
        size = service.settings.database.stat().st_size / 1e6
        service.close()
    return {
        "growth_mb": grown, "restart_s": restart, "longest_wait_s": waited, "database_mb": size,
        "ms_per_job": 1000 * took / (jobs - jobs // 10),
    }  # fmt: skip


def falls_short(found: dict[str, float]) -> list[str]:
    """What is not as it must be."""
    limits = {"growth_mb": MOST_GROWTH_MB, "restart_s": MOST_RESTART_S, "longest_wait_s": MOST_WAIT_S}
    return [f"{name} is {found[name]:.3g}, expected at most {most:g}" for name, most in limits.items()
            if found[name] > most]  # fmt: skip


if __name__ == "__main__":
    import sys

    result = scheduler_after_many_jobs(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS)
    print({name: round(value, 4) for name, value in result.items()})
    wrong = falls_short(result)
    print("\n".join(wrong))
    sys.exit(bool(wrong))
