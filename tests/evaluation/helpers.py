"""Run records made by hand, and by a toy scheduler that is easy to check."""

from __future__ import annotations

import numpy as np

from rlpto.core.records import AllocationChanges, DecisionRecords, JobRecords, RunRecord
from rlpto.evaluation.runner import Cell

TINY_GPUS = 4


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
    )
    decisions = DecisionRecords(
        time=np.array([0.0, 50.0, 100.0, 200.0]),
        latency=np.array([0.001, 0.002, 0.003, 0.004]),
        capacity=np.array([4, 4, 4, 4]),
        held=np.array([4, 4, 2, 4]),
        active=np.array([2, 3, 2, 1]),
        waiting=np.array([0, 1, 1, 0]),
        reward=np.array([
            [1.0, -1.0, -0.5, -0.25, 0.0],
            [0.5, -1.0, -0.5, 0.0, 0.0], [0.5, -1.0, -0.25, 0.0, 0.0], [1.0, -2.0, -1.0, -0.25, 0.0],
        ]),
        shortfall=np.array([50.0, 70.0, 90.0, 30.0]),
    )  # fmt: skip
    changes = AllocationChanges(
        time=np.array([0.0, 0.0, 100.0, 200.0, 200.0, 350.0]),
        job=np.array([0, 1, 0, 1, 2, 2]),
        gpus=np.array([2, 2, 0, 0, 4, 0]),
        accuracy=np.array([0.1, 0.1, 0.9, 0.8, 0.1, 0.7]),
    )
    fields: dict[str, object] = {
        "policy": "tiny", "window": "w0", "seed": 0, "capacity": TINY_GPUS,
        "jobs": jobs, "decisions": decisions, "changes": changes, "wall_seconds": 0.5,
    }  # fmt: skip
    return RunRecord(**(fields | overrides))  # type: ignore[arg-type]


def empty_record() -> RunRecord:
    """A run of a workload without jobs."""
    none, nothing = np.zeros(0), np.zeros(0, dtype=np.int64)
    jobs = JobRecords((), (), *[nothing] * 5, *[none] * 14)
    decisions = DecisionRecords(none, none, nothing, nothing, nothing, nothing, np.zeros((0, 5)), none)
    return RunRecord("none", "w0", 0, 4, jobs, decisions, AllocationChanges(none, nothing, nothing, none), 0.0)


def toy_record(cell: Cell, jobs: int = 40, gpus: int = 16, max_seconds: float = np.inf) -> RunRecord:
    """A small simulation of policy `fifo` (requested GPUs) or any other name (equal shares).

    Work is GPU-seconds, speed gpus**0.8, accuracy saturating; decisions at arrivals and completions.
    """
    rng = np.random.default_rng([cell.seed, sum(map(ord, cell.window))])
    submit = np.sort(rng.uniform(0, 36_000, jobs))
    work = rng.lognormal(8.5, 1.0, jobs)
    request = rng.choice([1, 2, 4, 8], jobs)
    priority = rng.integers(0, 3, jobs)
    share = sum(map(ord, cell.policy)) % 5 / 10 + 0.5
    left, held = work.copy(), np.zeros(jobs, dtype=np.int64)
    start, finish = np.full(jobs, np.nan), np.full(jobs, np.nan)
    gpu_seconds, rescales, peak = np.zeros(jobs), np.zeros(jobs, dtype=np.int64), np.zeros(jobs, dtype=np.int64)
    changes: list[tuple[float, int, int, float]] = []
    decisions: list[tuple[float, int, int, int, list[float]]] = []
    accuracy = np.full(jobs, 0.1)
    now = float(submit[0])

    def change(j: int, count: int) -> None:
        changes.append((now, j, count, float(accuracy[j])))
        held[j] = count

    while np.isnan(finish).any() and now < max_seconds:
        active = np.flatnonzero((submit <= now) & np.isnan(finish))
        active = active[np.argsort(priority[active], kind="stable")]
        free, target = gpus, np.zeros(jobs, dtype=np.int64)
        for j in active:
            wish = request[j] if cell.policy == "fifo" else max(1, int(share * gpus / len(active)))
            target[j] = min(wish, free) if cell.policy != "fifo" or wish <= free else 0
            free -= target[j]
        begun = 0
        for j in active:
            if target[j] != held[j]:
                change(j, int(target[j]))
                rescales[j] += target[j] > 0
                begun += 1
                if np.isnan(start[j]) and target[j]:
                    start[j] = now
        peak = np.maximum(peak, held)
        speed = held**0.8
        ends = now + np.divide(left, speed, out=np.full(jobs, np.inf), where=held > 0)
        arrivals = submit[submit > now]
        later = min(float(ends.min()), float(arrivals[0]) if len(arrivals) else np.inf)
        span = later - now
        before = accuracy.copy()
        finished = ends <= later
        left = np.where(finished, 0.0, left - speed * span)
        accuracy = 0.1 + 0.8 * (1 - np.exp(-4 * (1 - left / work)))
        gain = float((np.array([3, 2, 1])[priority] * (accuracy - before)).sum() / 0.8)
        parts = [gain, -len(active) * span / 3600, -0.02 * held.sum() * span / 3600, -0.1 * begun * 30 / 3600, 0.0]
        decisions.append((now, int(held.sum()), len(active), int((held[active] == 0).sum()), parts))
        gpu_seconds += held * span
        now = later
        for j in np.flatnonzero(finished):
            finish[j] = now
            change(int(j), 0)
    time, held_at, active_at, waiting_at, rewards = zip(*decisions, strict=True)
    c_time, c_job, c_gpus, c_accuracy = zip(*changes, strict=True)
    d = len(time)
    return RunRecord(
        policy=cell.policy,
        window=cell.window,
        seed=cell.seed,
        capacity=gpus,
        jobs=JobRecords(
            names=tuple(f"job-{i}" for i in range(jobs)),
            models=tuple(str(m) for m in rng.choice(["resnet18", "bert", "neumf"], jobs)),
            priority=priority, requested_gpus=request, max_gpus=np.full(jobs, gpus), rescales=rescales,
            peak_gpus=peak, data_size=np.full(jobs, 1e4), epochs=np.full(jobs, 10.0), submit_time=submit,
            start_time=start, finish_time=finish, gpu_seconds=gpu_seconds, final_accuracy=accuracy,
            reached_90=finish - 30.0, reached_95=finish - 20.0, reached_99=finish - 10.0,
            alone_time=work / gpus**0.8, requested_time=work / request**0.8,
            trained_epochs=10.0 * (1 - left / work), full_accuracy=np.full(jobs, np.nan),
        ),
        decisions=DecisionRecords(
            np.array(time), rng.lognormal(-7, 0.5, d), np.full(d, gpus), np.array(held_at), np.array(active_at),
            np.array(waiting_at), np.array(rewards), np.array(active_at) * 1.0,
        ),
        changes=AllocationChanges(np.array(c_time), np.array(c_job), np.array(c_gpus), np.array(c_accuracy)),
        wall_seconds=0.25,
    )  # fmt: skip
