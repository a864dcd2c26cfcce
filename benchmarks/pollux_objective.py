"""Pollux's objective: the policy's search against stored rounds of its simulator, and how long a decision takes.

Stored are 40 rounds with the relaxed bound and what the original's genetic search came to. Times are CPU milliseconds
of one search with the policy's own number of steps, in runs of rounds on crowds of the same jobs. About 10 CPU-seconds.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import _common
import numpy as np
from _pollux_instances import Round, load, rounds

from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.performance.metrics import UtilityBand
from rlpto.policies.pollux.objective import power_mean
from rlpto.policies.pollux.policy import PolluxOptions, desired_nodes, utility
from rlpto.policies.pollux.search import least_cost

STORED = "pollux-objective-instances.json"
STEPS = PolluxOptions().steps
SEEDS = 5
CROWDS = (
    # jobs, nodes, GPUs of each, rounds, most CPU ms in 99 of 100
    (30, 16, 4, 300, 5.0),
    (160, 16, 4, 100, 100.0),
    (1000, 250, 4, 20, 1000.0),
    (250, 250, 4, 20, 1000.0),
)

BANDS = ((0.35, 0.65), (0.5, 0.8), (0.6, 0.9))
"""AdaptDL's thresholds of utility, and raised ones."""

Row = dict[str, object]


def value(rows: Round, placement: IntArray) -> float:
    """The objective, a power mean."""
    return power_mean(rows.speedup, rows.held, rows.factor, placement, rows.size)


def bound(rows: Round) -> float:
    """The relaxed least sum of costs."""
    return least_cost(rows.speedup, rows.held, rows.factor, rows.least, rows.most, rows.size)


def objective(stored: list[Round]) -> tuple[list[_common.Check], list[Row]]:
    """Whether the objective is the reference's, and how near the search comes to its optimum."""
    off = [abs(len(rows.held) / rows.stored_cost / value(rows, rows.stored) - 1) for rows in stored]
    bounds = [abs(bound(rows) / rows.bound - 1) for rows in stored]
    best = np.array([len(rows.held) / rows.bound for rows in stored])
    genetic = np.array([rows.genetic for rows in stored])
    found = np.array([[value(rows, rows.solve(STEPS, seed)) for rows in stored] for seed in range(SEEDS)])
    of_best, of_genetic = found / best, found / genetic
    crowded = np.array([len(rows.held) >= 16 for rows in stored])
    checks = [
        _common.Check("stored bounds that come out otherwise", sum(error > 1e-12 for error in bounds), "", 0, False),
        _common.Check("stored costs that come out to the digit", sum(error < 1e-12 for error in off), "", 36, True),
        _common.Check("share of the relaxed bound, mean", float(of_best.mean()), "", 0.995, True),
        _common.Check("share of the genetic search, least", float(of_genetic.min()), "", 0.99, True),
    ]
    rows: list[Row] = []
    for name, part in (("3 to 8", ~crowded), ("16 to 29", crowded)):
        shares = (of_best, genetic / best, of_genetic, stored_shares(stored) / genetic)
        ours, theirs, ratio, reference = (share[..., part] for share in shares)
        rows.append(
            {
                "jobs": name,
                "rounds": int(part.sum()),
                "share of the bound": round(float(ours.mean()), 4),
                "least": round(float(ours.min()), 4),
                "genetic search's": round(float(theirs.mean()), 4),
                "of the genetic search": round(float(ratio.mean()), 3),
                "reference's search": round(float(reference.mean()), 3),
                "moved rows a round": round(moved(stored, part), 1),
            }
        )
    return checks, rows


def stored_shares(stored: list[Round]) -> FloatArray:
    """What the reference's own search came to."""
    return np.array([len(rows.held) / rows.stored_cost for rows in stored])


def moved(stored: list[Round], part: BoolArray) -> float:
    """Rows of running jobs that the search changes in a round, on average."""
    return float(np.mean([_moved(rows) for rows, counts in zip(stored, part, strict=True) if counts]))


def _moved(rows: Round) -> int:
    found = rows.solve(STEPS, 0)
    return int(((found != rows.held).any(axis=1) & rows.held.any(axis=1)).sum())


def latency(entries: list[dict[str, object]]) -> tuple[list[_common.Check], list[Row]]:
    """CPU milliseconds of a search, by size."""
    checks, rows = [], []
    for jobs, nodes, gpus, count, limit in CROWDS:
        size = np.full(nodes, gpus, dtype=np.int64)
        taken, shares = [], []
        for number, told in enumerate(rounds(entries, jobs, size, count, 0)):
            start = time.process_time()
            placement = told.solve(STEPS, number)
            taken.append(1000 * (time.process_time() - start))
            shares.append(value(told, placement) * bound(told) / jobs)
        p99 = float(np.percentile(taken, 99))
        checks.append(_common.Check(f"{jobs} jobs on {nodes * gpus} GPUs, p99", p99, "CPU ms", limit, False))
        share = f"{np.mean(shares):.4f} ({min(shares):.4f})"
        rows.append({"jobs": jobs, "nodes": nodes, "GPUs": nodes * gpus, "rounds": count, "share of the bound": share})
    return checks, rows


def thresholds(stored: list[Round]) -> tuple[list[_common.Check], list[Row]]:
    """AdaptDL's thresholds (A5), with what the search finds on 1 to 16 nodes in every stored round."""
    chosen, inside, feasible, useful = [], [], [], []
    for rows in stored:
        found = [_utility_on(rows, nodes) for nodes in range(1, len(rows.size) + 1)]
        counts = [desired_nodes(lambda nodes, u=found: u[nodes - 1], len(found), UtilityBand(*band)) for band in BANDS]
        chosen.append(counts)
        useful.append([found[count - 1] for count in counts])
        feasible.append([any(low <= u <= high for u in found) for low, high in BANDS])
        inside.append([low <= found[count - 1] <= high for count, (low, high) in zip(counts, BANDS, strict=True)])
    grown = sum(int(np.sum(np.diff(counts) > 0)) for counts in chosen)
    lost = [int(np.sum(np.array(feasible)[:, band] & ~np.array(inside)[:, band])) for band in range(len(BANDS))]
    rows_: list[Row] = [
        {
            "thresholds": f"{low:.2f} to {high:.2f}",
            "nodes": round(float(np.mean(np.array(chosen)[:, band])), 1),
            "utility": round(float(np.mean(np.array(useful)[:, band])), 2),
            "rounds inside": f"{int(np.sum(np.array(inside)[:, band]))} of {int(np.sum(np.array(feasible)[:, band]))}",
        }
        for band, (low, high) in enumerate(BANDS)
    ]
    checks = [
        _common.Check("A5 raised thresholds that add nodes", grown, "cases", 0, False),
        _common.Check("A5 rounds outside of 0.35 to 0.65 where some nodes are inside", lost[0], "rounds", 0, False),
    ]
    return checks, rows_


def _utility_on(rows: Round, nodes: int) -> float:
    """Utility of the best placement on the first so many nodes."""
    size = np.where(np.arange(len(rows.size)) < nodes, rows.size, 0)
    placement = replace(rows, size=size).solve(STEPS, 0)
    pace = rows.speedup[
        np.arange(len(placement)), np.clip((placement > 0).sum(axis=1), 1, 2) - 1, placement.sum(axis=1)
    ]
    return utility(pace / rows.speedup[:, 0, 1], int(size.sum()))


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--instances", type=Path, help=f"a file like {STORED}")
    options = arguments.parse_args()
    path = _common.needed(options.instances, "pollux", STORED)
    entries, stored = json.loads(path.read_text()), load(path)
    stored[0].solve(1, 0)  # compile
    near, quality = objective(stored)
    limited, bands = thresholds(stored)
    fast, times = latency(entries)
    checks = near + limited + fast
    _common.finish(checks, options.json, steps=STEPS, seeds=SEEDS, rounds=quality, bands=bands, crowds=times)


if __name__ == "__main__":
    main()
