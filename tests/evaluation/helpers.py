"""Run records made by hand, and by short simulations."""

import zlib
from dataclasses import replace

import numpy as np

from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.records import AllocationChanges, DecisionRecords, JobRecords, RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.runner import Cell
from rlpto.policies.registry import make_policy
from tests.builders import make_cluster, random_jobs, random_tables

TINY_GPUS = 4
ELASTIC = ("equal_share", "elastic_fifo", "optimus")


def tiny_record(finish: tuple[float, ...] = (100.0, 200.0, 350.0), **overrides: object) -> RunRecord:
    """Three jobs on 4 GPUs: two run side by side, the third waits for the second.

    job 0: 0 to 100 s on 2 GPUs; job 1: 0 to 200 s on 2 GPUs; job 2: submitted at 50 s, 200 to 350 s on 4 GPUs.
    """
    jobs = JobRecords(
        names=("a", "b", "c"),
        models=("resnet18", "bert", "bert"),
        priority=np.array([0, 1, 2]),
        requested_gpus=np.array([2, 2, 4]),
        max_gpus=np.array([4, 4, 4]),
        rescales=np.array([1, 1, 1]),
        peak_gpus=np.array([2, 2, 4]),
        data_size=np.array([1e3, 1e3, 2e3]),
        epochs=np.array([5.0, 5.0, 5.0]),
        submit_time=np.array([0.0, 0.0, 50.0]),
        start_time=np.array([0.0, 0.0, 200.0]),
        finish_time=np.array(finish),
        gpu_seconds=np.array([200.0, 400.0, 600.0]),
        final_accuracy=np.array([0.9, 0.8, 0.7]),
        reached_90=np.array([60.0, 120.0, 250.0]),
        reached_95=np.array([80.0, 160.0, 300.0]),
        reached_99=np.array([90.0, 190.0, np.nan]),
        alone_time=np.array([50.0, 100.0, 150.0]),
        requested_time=np.array([100.0, 200.0, 150.0]),
        trained_epochs=np.array([5.0, 5.0, 5.0]),
        full_accuracy=np.full(3, np.nan),
        kept_seconds=np.array([90.0, 180.0, 100.0]),
        lost_gpu_seconds=np.array([0.0, 0.0, 7200.0]),
    )
    decisions = DecisionRecords(
        time=np.array([0.0, 50.0, 100.0, 200.0]),
        latency=np.array([0.001, 0.002, 0.003, 0.004]),
        capacity=np.array([4, 4, 4, 4]),
        held=np.array([4, 4, 2, 4]),
        active=np.array([2, 3, 2, 1]),
        waiting=np.array([0, 1, 1, 0]),
        reward=np.array([
            [1.0, -1.0, -0.5, -0.25, 0.0, 0.0],
            [0.5, -1.0, -0.5, 0.0, 0.0, 0.0], [0.5, -1.0, -0.25, 0.0, 0.0, 0.0], [1.0, -2.0, -1.0, -0.25, 0.0, 0.0],
        ]),
        shortfall=np.array([50.0, 70.0, 90.0, 30.0]),
        cost=np.zeros(4),
    )  # fmt: skip
    changes = AllocationChanges(
        time=np.array([0.0, 0.0, 100.0, 200.0, 200.0, 350.0]),
        job=np.array([0, 1, 0, 1, 2, 2]),
        gpus=np.array([2, 2, 0, 0, 4, 0]),
        accuracy=np.array([0.1, 0.1, 0.9, 0.8, 0.1, 0.7]),
    )
    fields: dict[str, object] = {
        "policy": "tiny", "window": "w0", "seed": 0, "capacity": TINY_GPUS,
        "jobs": jobs, "decisions": decisions, "changes": changes, "wall_seconds": 0.5, "end": 350.0,
    }  # fmt: skip
    return RunRecord(**(fields | overrides))


def empty_record() -> RunRecord:
    """A run of a workload without jobs."""
    none, nothing = np.zeros(0), np.zeros(0, dtype=np.int64)
    jobs = JobRecords((), (), *[nothing] * 5, *[none] * 16)
    decisions = DecisionRecords(none, none, nothing, nothing, nothing, nothing, np.zeros((0, 6)), none, none)
    return RunRecord("none", "w0", 0, 4, jobs, decisions, AllocationChanges(none, nothing, nothing, none), 0.0, 0.0)


def toy_record(cell: Cell, jobs: int = 40, max_hours: float | None = None) -> RunRecord:
    """Random jobs of a window and a seed on 16 GPUs, under FIFO or, for any other name, an elastic policy."""
    seed = zlib.crc32(f"{cell.window}/{cell.seed}".encode())
    tables = random_tables(seed, 16, 5.0)
    cluster = make_cluster(random_jobs(seed, jobs, 8, 16), tables, [4] * 4, seed, max_hours=max_hours)
    policy = make_policy("fifo" if cell.policy == "fifo" else ELASTIC[len(cell.policy) % len(ELASTIC)])
    record = run(cluster, policy, QueueSettings(), RewardWeights(), window=cell.window, seed=cell.seed)
    return replace(record, policy=cell.policy)
