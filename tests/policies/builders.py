"""Small hand-made states for the tests of policies."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterShape, ClusterState, Node
from rlpto.core.job_store import JobStore
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import Job

from ..builders import make_tables

EPOCHS = 4


@dataclass(frozen=True)
class J:
    """A job as a test wants it: `speed` in epochs/s with 1, 2, ... GPUs (one value: linear), `work` in epochs left."""

    work: float = 100.0
    speed: tuple[float, ...] = (1.0,)
    requested: int = 1
    lowest: int = 1
    highest: int | None = None
    held: int = 0
    attained: float = 0.0
    priority: int = 1
    delay: float = 30.0
    name: str = ""
    submitted: float = 0.0

    @property
    def top(self) -> int:
        return self.highest if self.highest is not None else max(self.requested, len(self.speed))


def power(p: float, gpus: int, unit: float = 1.0) -> tuple[float, ...]:
    """Speeds k**p for 1..gpus GPUs."""
    return tuple(unit * k**p for k in range(1, gpus + 1))


def shape_of(capacity: int) -> ClusterShape:
    """A cluster of `capacity` GPUs on nodes of eight."""
    full, rest = divmod(capacity, 8)
    return ClusterShape((Node(8),) * full + ((Node(rest),) if rest else ()))


def make_state(jobs: list[J], capacity: int, time: float = 0.0, interval: float = 60.0) -> ClusterState:
    """A state with these jobs as rows, submitted in this order."""
    most = max(job.top for job in jobs)
    count = len(jobs)
    rates = np.empty((count, 1, most, EPOCHS))
    for row, job in zip(rates, jobs, strict=True):
        for k in range(most):
            row[0, k] = job.speed[0] * (k + 1) if len(job.speed) == 1 else job.speed[min(k, len(job.speed) - 1)]
    tables = make_tables(rates, [job.delay for job in jobs], np.linspace(0.1, 0.9, EPOCHS + 1))
    store = JobStore.from_jobs(
        [
            Job(
                name=job.name or f"job{i}",
                submit_time=job.submitted,
                model=f"m{i}",
                epochs=job.work,
                data_size=1000.0,
                requested_gpus=job.requested,
                min_gpus=job.lowest,
                max_gpus=job.top,
                priority=job.priority,
            )
            for i, job in enumerate(jobs)
        ],
        tables,
    )
    store.gpus[:] = [job.held for job in jobs]
    store.attained_service[:] = [job.attained for job in jobs]
    store.start_time[store.gpus > 0] = time
    table = JobTable(store, tables, np.arange(count), store.priority, gpus_per_node=8)
    return ClusterState(time, table, shape_of(capacity), interval)


@st.composite
def states(draw: st.DrawFn) -> tuple[list[J], int]:
    """Jobs in queue order, holding GPUs within capacity, and the capacity."""
    capacity = draw(st.integers(1, 24))
    free = capacity
    jobs = []
    for priority in sorted(draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))):
        lowest = draw(st.integers(1, 3))
        requested = lowest + draw(st.integers(0, 3))
        highest = requested + draw(st.integers(0, 4))
        gains = draw(st.lists(st.floats(-0.5, 1.5), min_size=highest - 1, max_size=highest - 1))
        speed = np.maximum(np.cumsum([1.0, *gains]), 0.05) * draw(st.sampled_from([0.001, 0.01, 0.1]))
        held = draw(st.sampled_from([0, requested, lowest, highest]))
        held = held if held <= free else 0
        free -= held
        jobs.append(
            J(
                work=draw(st.sampled_from([0.5, 1.0, 10.0, 500.0])),
                speed=tuple(map(float, speed)) if highest > 1 else (0.01,),
                requested=requested,
                lowest=lowest,
                highest=highest,
                held=held,
                attained=draw(st.sampled_from([0.0, 100.0, 57600.0, 1e6])),
                priority=priority,
                delay=draw(st.sampled_from([0.0, 30.0, 300.0, 4000.0])),
            )
        )
    return jobs, capacity
