"""What a job on Ray takes longer than plain torch with one worker, and what its reports cost."""

from __future__ import annotations

import statistics
import time

import torch
from _common import Check
from _ray_equivalence import plain_torch
from _ray_job import cluster, job, load

from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.worker import worker_group
from rlpto.ray_cluster.worker.training import Trainer

SIZES = {"7 ms": (64, 0.10), "50 ms": (512, 0.03)}
REPORTS = 0.02
SECONDS = 6.0
"""For which a job trains on Ray, then in plain torch, to be compared."""
TIMES = 3
"""Such comparisons for every repeat: on a shared machine one of the two may be slower by half than a minute later."""
BLOCK = 40
"""Steps with, then steps without measuring."""
BLOCKS_SECONDS = 40.0
"""CPU seconds of such blocks for every repeat: on a shared machine one block differs from the next by a tenth."""
LEAST_PAIRS = 5


def run(repeats: int) -> tuple[list[Check], dict[str, object]]:
    torch.set_num_threads(1)
    checks: list[Check] = []
    facts: dict[str, object] = {}
    with cluster(nodes=1, gpus=1) as started:
        for name, (batch, limit) in SIZES.items():
            ratios, steps = [], []
            with job(batch_size=batch) as running:
                running.command([started.node_ids[0]])
                running.steps(10)
                spec = running.spec
                plain = plain_seconds(spec, 10)
                count = max(10, round(SECONDS / plain))
                for _ in range(TIMES * repeats):
                    begin = running.steps(1)
                    end = running.steps(count)
                    on_ray = (end.time - begin.time) / (end.step - begin.step)
                    running.command([])  # the two must not share the machine
                    plain = plain_seconds(spec, count)
                    running.command([started.node_ids[0]])
                    ratios.append(on_ray / plain - 1)
                    steps.append(round(1000 * plain, 1))
            checks.append(Check(f"overhead of {name} steps", statistics.median(ratios), "of a step", limit, False))
            facts[f"overhead of {name} steps, each"] = [round(ratio, 3) for ratio in ratios]
            facts[f"plain torch at {name}, ms"] = steps
            cost, pairs = reporting(spec, repeats)
            facts[f"pairs of blocks compared for reporting, {name} steps"] = pairs
            checks.append(Check(f"reporting, {name} steps", cost, "of a step", REPORTS, False))
    facts["load during overhead"] = load()
    return checks, facts


def plain_seconds(spec: JobSpec, steps: int) -> float:
    """Mean seconds of a step of plain torch."""
    plain_torch(spec, 3)
    start = time.perf_counter()
    plain_torch(spec, steps)
    return (time.perf_counter() - start) / steps


def reporting(spec: JobSpec, repeats: int) -> tuple[float, int]:
    """CPU time that measuring the noise of gradients adds to a step: median over pairs of blocks with and without, and
    how many pairs."""
    trainer = Trainer(spec)
    trainer.run(5)
    usual, ratios, spent = worker_group.MEASURE_EVERY_STEPS, [], 0.0
    try:
        while len(ratios) < LEAST_PAIRS * repeats or spent < BLOCKS_SECONDS * repeats:
            pair, taken = len(ratios), {}
            # Which of the two comes first changes, so that a machine that grows slower is no advantage.
            for measured in (pair % 2 == 0, pair % 2 == 1):
                worker_group.MEASURE_EVERY_STEPS = usual if measured else 10**12
                trainer._evaluation_due = float("inf")
                start = time.process_time()
                trainer.run(trainer.position.step + BLOCK)
                taken[measured] = time.process_time() - start
            ratios.append(taken[True] / taken[False] - 1)
            spent += sum(taken.values())
    finally:
        worker_group.MEASURE_EVERY_STEPS = usual
    return statistics.median(ratios), len(ratios)
