"""Pollux: parity with its simulator, and the duration of a search; about two CPU-minutes.

Stored for tests are 40 rounds of its simulator, with the relaxed bound and the result of the original's genetic search.
Larger rounds are made from their jobs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import _common
import numpy as np
from _studies import Part, Plan, Row, finished

from rlpto.experiments.config import Config, load_config
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.policies.pollux.objective import power_mean
from rlpto.policies.pollux.policy import STEPS, restart_factor
from rlpto.policies.pollux.search import least_cost, search

PUBLISHED_JCT_S = {"workload-1": 2089.0, "workload-2": 3323.0, "workload-3": 2188.0, "workload-4": 2721.0}
"""Mean JCT by the authors of Pollux (OSDI'21 artifact)."""
ADAPTIVE = "workload.mapping.adaptive_batch=true"
ONLINE = ("knowledge.mode=online", "workload.mapping.fixed_batch_models=[ncf]")
"""Jobs use fits of their own speeds. In the simulator ncf always trains at 32,768."""
STORED = "pollux/pollux-objective-instances.json"
CROWDS = ((30, 16, 4, 300), (160, 16, 4, 100), (1000, 250, 4, 20), (250, 250, 4, 20))
"""Jobs, nodes, GPUs of each node, rounds."""
NODES, GPUS_PER_NODE = 16, 4
RESTART_S = 30.0
INTERVAL_S = 60.0
CANDIDATES = 50
"""Number of batch sizes over which goodput is optimised, spaced geometrically."""


def parity(plan: Plan) -> Part:
    """Mean JCT on the published workloads."""
    done = finished(plan, config_of(plan, *ONLINE), ["pollux"], "parity", windows=PUBLISHED_JCT_S.__contains__)
    found = np.array([one.metrics["jct_mean"] for one in done])
    published = np.array([PUBLISHED_JCT_S[one.cell.window] for one in done])
    off = 100 * (found / published - 1)
    figures = {
        "parity, worst workload off by": float(np.abs(off).max()),
        "parity, mean of workloads off by": 100 * abs(float(found.mean() / published.mean()) - 1),
    }
    rows: list[Row] = [
        {
            "workload": one.cell.window,
            "mean JCT [s]": float(found[i]),
            "published [s]": float(published[i]),
            "off [%]": float(off[i]),
            "restarts": one.metrics["rescales_per_job"],
        }
        for i, one in enumerate(done)
    ]
    return Part(figures, rows)


def config_of(plan: Plan, *overrides: str) -> Config:
    """Pollux's rules on its workloads and measured profiles, with jobs that choose their batch sizes."""
    assert plan.data is not None
    paths = {"workload.path": str(plan.data / "traces" / "pollux" / "*.csv")}
    paths |= {"profiles.folder": str(plan.data / "profiles")}
    given = [f"{key}={json.dumps(path)}" for key, path in paths.items()]
    return load_config(_common.CONFIGS / "pollux.yaml", [*given, ADAPTIVE, *overrides])


def latency(plan: Plan) -> Part:
    """CPU milliseconds of a search, by size, in runs of rounds on crowds of the same jobs."""
    found = Part()
    stored_round(entries(plan)[0]).solve(1, 0)  # compile
    for jobs, nodes, gpus, count in CROWDS:
        taken, shares = [], []
        for number, given in enumerate(crowd_rounds(plan, jobs, np.full(nodes, gpus, dtype=np.int64), count)):
            start = time.process_time()
            placement = given.solve(STEPS, number)
            taken.append(1000 * (time.process_time() - start))
            shares.append(given.value(placement) * given.least_cost() / jobs)
        found.figures[f"{jobs} jobs on {nodes * gpus} GPUs, p99"] = float(np.percentile(taken, 99))
        share = f"{np.mean(shares):.4f} ({min(shares):.4f})"
        found.rows.append(
            {"jobs": jobs, "nodes": nodes, "GPUs": nodes * gpus, "rounds": count, "share of the bound": share}
        )
    return found


# Rounds -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """Arguments of `search`, with the same names, and known results for comparison.

    bound: the relaxed least sum of costs. genetic: the power mean of the genetic search. stored: the placement of the
    reference's own search. stored_cost: the result of another run of that search.
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
        """The placement that the search finds."""
        weight = np.ones(len(self.factor))
        limits = (self.least, self.most, self.order, self.size)
        return search(self.speedup, self.held, self.factor, weight, *limits, steps, seed)

    def value(self, placement: IntArray) -> float:
        """The objective, a power mean."""
        return power_mean(self.speedup, self.held, self.factor, placement, self.size)

    def least_cost(self) -> float:
        """The relaxed least sum of costs."""
        return least_cost(self.speedup, self.held, self.factor, self.least, self.most, self.size)


def entries(plan: Plan) -> list[dict[str, Any]]:
    """The stored rounds, in the form of their file."""
    assert plan.data is not None
    return read_entries(plan.data / STORED)


@lru_cache
def read_entries(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def stored_round(entry: dict[str, Any]) -> Round:
    """A round of the reference's simulator."""
    jobs, gpus = entry["jobs"], NODES * GPUS_PER_NODE
    age = entry["time"] - np.array([job["submit"] for job in jobs], dtype=np.float64)
    restarts = np.array([job["restarts"] for job in jobs])
    return Round(
        np.stack([job_speedups(job, gpus, -(-gpus // len(jobs))) for job in jobs]),
        np.array(entry["base"], dtype=np.int64),
        restart_factor(age, restarts, np.full(len(jobs), RESTART_S)),
        np.ones(len(jobs), dtype=np.int64),
        np.array([job["max_gpus"] for job in jobs], dtype=np.int64),
        np.argsort([job["attained_gpu_s"] for job in jobs], kind="stable"),
        np.full(NODES, GPUS_PER_NODE, dtype=np.int64),
        entry["bound_cost"],
        entry["ga_mean"],
        np.array(entry["search"], dtype=np.int64),
        entry["search_cost_100"],
    )


def job_speedups(job: dict[str, Any], gpus: int, fair: int) -> FloatArray:
    """[2, gpus + 1] goodput of a stored job on one node, and on several, relative to `fair` GPUs on one node."""
    if not job["params"]:  # nothing is known before the first fit
        return np.tile(np.arange(gpus + 1) / fair, (2, 1))
    key = *job["params"], job["grad_sqr"], job["grad_var"]
    goodput = _goodput(key, job["base_batch"], job["largest"], job["min_local"], job["max_local"], gpus)
    relative: FloatArray = goodput / goodput[0, fair]
    return relative


@lru_cache(maxsize=4096)
def _goodput(key: tuple[float, ...], base: int, largest: int, min_local: int, max_local: int, most: int) -> FloatArray:
    """[2, most + 1] samples' worth of progress per second at the best batch size; Pollux (OSDI 2021), section 3.

    Follows its simulator, synchronisation of one GPU included, to reproduce stored costs to the digit.
    """
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


def crowd_rounds(plan: Plan, jobs: int, size: IntArray, count: int) -> Iterator[Round]:
    """Yield `count` successive decisions on a crowd of stored jobs, each starting from the placement before it.

    In every round, a tenth of the jobs, drawn at random, is replaced by new ones. A job may have twice its largest
    number of GPUs so far, starting with one.
    """
    rng = np.random.default_rng(0)
    gpus = int(size.sum())
    fair = -(-gpus // jobs)
    known = [job for entry in entries(plan) for job in entry["jobs"] if job["params"]]
    table = np.stack([job_speedups(known[i], gpus, fair) for i in rng.choice(len(known), min(200, len(known)), False)])
    job_type = rng.integers(len(table), size=jobs)
    limit = rng.choice([8, 16, 32, 64, gpus], size=jobs)
    age, restarts = rng.uniform(60, 20_000, jobs), rng.integers(0, 5, jobs)
    peak, attained = np.ones(jobs, dtype=np.int64), rng.uniform(0, 1e5, jobs)
    held = np.zeros((jobs, len(size)), dtype=np.int64)
    for number in range(count):
        now = Round(
            table[job_type],
            held,
            restart_factor(age, restarts, np.full(jobs, RESTART_S)),
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
        job_type = np.where(new, rng.integers(len(table), size=jobs), job_type)
        held[new], peak[new], restarts[new], attained[new], age[new] = 0, 1, 0, 0.0, rng.uniform(0, 60, new.sum())
