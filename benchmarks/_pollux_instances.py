"""Scheduling rounds of Pollux's simulator, stored ones and larger ones made from their jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.policies.pollux.search import search

NODES, GPUS_PER_NODE = 16, 4
RESTART_S = 30.0
INTERVAL_S = 60.0
CANDIDATES = 50
"""Batch sizes that goodput is optimised over, spaced geometrically."""


@dataclass(frozen=True)
class Round:
    """What `search` is told, and what is known of the best placement.

    speedup, held, factor, least, most, order, size: as there. bound: the relaxed least sum of costs. genetic: the power
    mean of the genetic search. stored: the placement of the reference's own search, and stored_cost what another run of
    it came to.
    """

    speedup: FloatArray
    held: IntArray
    factor: FloatArray
    least: IntArray
    most: IntArray
    order: IntArray
    size: IntArray
    bound: float = np.nan
    genetic: float = np.nan
    stored: IntArray | None = None
    stored_cost: float = np.nan

    def solve(self, steps: int, seed: int) -> IntArray:
        return search(
            self.speedup,
            self.held,
            self.factor,
            np.ones(len(self.factor)),
            self.least,
            self.most,
            self.order,
            self.size,
            steps,
            seed,
        )


def load(path: Path) -> list[Round]:
    """The stored rounds of pollux-objective-instances.json."""
    return [_round(entry) for entry in json.loads(path.read_text())]


def _round(entry: dict[str, Any]) -> Round:
    jobs, gpus = entry["jobs"], NODES * GPUS_PER_NODE
    speedup = np.stack([speedups(job, gpus, -(-gpus // len(jobs))) for job in jobs])
    age = entry["time"] - np.array([job["submit"] for job in jobs], dtype=np.float64)
    restarts = np.array([job["restarts"] for job in jobs])
    return Round(
        speedup,
        np.array(entry["base"], dtype=np.int64),
        restart_factor(age, restarts),
        np.ones(len(jobs), dtype=np.int64),
        np.array([job["max_gpus"] for job in jobs], dtype=np.int64),
        np.argsort([job["attained_gpu_s"] for job in jobs], kind="stable"),
        np.full(NODES, GPUS_PER_NODE, dtype=np.int64),
        entry["bound_cost"],
        entry["ga_mean"],
        np.array(entry["search"], dtype=np.int64),
        entry["search_cost_100"],
    )


def restart_factor(age: FloatArray, restarts: IntArray) -> FloatArray:
    """[n] share of a job's pace that counts if it is restarted once more."""
    return np.asarray(np.maximum(age - RESTART_S * restarts, 0) / (age + RESTART_S))


def speedups(job: dict[str, Any], gpus: int, fair: int) -> FloatArray:
    """[2, gpus + 1] goodput of a stored job on one node, and on several, relative to `fair` GPUs on one node."""
    if not job["params"]:  # nothing is known before the first fit
        return np.tile(np.arange(gpus + 1) / fair, (2, 1))
    key = *job["params"], job["grad_sqr"], job["grad_var"]
    goodput = _goodput(key, job["base_batch"], job["largest"], job["min_local"], job["max_local"], gpus)
    return goodput / goodput[0, fair]


@lru_cache(maxsize=4096)
def _goodput(key: tuple[float, ...], base: int, largest: int, min_local: int, max_local: int, most: int) -> FloatArray:
    """[2, most + 1] samples' worth of progress per second at the best batch size; Pollux (OSDI 2021), section 3."""
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma, sqr, var = key
    gpus = np.arange(1, most + 1)[:, None]
    first = np.maximum(base, min_local * gpus[:, 0])
    total = np.geomspace(first, largest, CANDIDATES).T
    steps = np.ceil(total / gpus / max_local - 1e-8) - 1
    steps = np.maximum(steps, (gpus == 1) & (total > base))
    local = np.ceil(total / gpus / (steps + 1) - 1e-8)
    scale = gpus * local * (steps + 1) / base
    noise = var / scale + sqr
    gain = np.where(noise > 0, (var + sqr) / noise, 1.0)
    compute = alpha_c + beta_c * local
    beyond = np.maximum(gpus - 2, 1e-8)
    found = np.zeros((2, most + 1))
    for spread, sync in enumerate((alpha_r + beta_r * beyond, alpha_n + beta_n * beyond)):
        both = (compute**gamma + np.where(gpus == 1, 1e-8, sync) ** gamma) ** (1 / gamma)
        rate = gpus * local * (steps + 1) / (steps * compute + both) * gain / scale
        rate[(local < min_local) | (local > max_local) | (first > largest)[:, None]] = 0.0
        found[spread, 1:] = rate.max(axis=1)
    found[1, 1] = 0.0
    return found


def rounds(entries: Sequence[dict[str, Any]], jobs: int, size: IntArray, count: int, seed: int) -> Iterator[Round]:
    """`count` decisions in a row on a crowd of stored jobs, each starting from the placement of the one before.

    A tenth of the jobs, drawn at random, is replaced by new ones in every round. A job may have twice the GPUs that it
    has had, one to begin with.
    """
    rng = np.random.default_rng(seed)
    gpus = int(size.sum())
    fair = -(-gpus // jobs)
    known = [job for entry in entries for job in entry["jobs"] if job["params"]]
    table = np.stack([speedups(known[i], gpus, fair) for i in rng.choice(len(known), min(200, len(known)), False)])
    kind = rng.integers(len(table), size=jobs)
    limit = rng.choice([8, 16, 32, 64, gpus], size=jobs)
    age, restarts = rng.uniform(60, 20_000, jobs), rng.integers(0, 5, jobs)
    peak, attained = np.ones(jobs, dtype=np.int64), rng.uniform(0, 1e5, jobs)
    held = np.zeros((jobs, len(size)), dtype=np.int64)
    for number in range(count):
        now = Round(
            table[kind],
            held,
            restart_factor(age, restarts),
            np.ones(jobs, dtype=np.int64),
            np.minimum(2 * peak, limit),
            np.argsort(attained, kind="stable"),
            size,
        )
        yield now
        placement = now.solve(20, number)
        restarts += (placement != held).any(axis=1) & (peak > 1)
        peak = np.maximum(peak, placement.sum(axis=1))
        attained += INTERVAL_S * placement.sum(axis=1)
        age += INTERVAL_S
        held = placement
        new = rng.random(jobs) < 0.1
        kind = np.where(new, rng.integers(len(table), size=jobs), kind)
        held[new], peak[new], restarts[new], attained[new], age[new] = 0, 1, 0, 0.0, rng.uniform(0, 60, new.sum())
