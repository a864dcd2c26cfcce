"""Pollux against its acceptance: objective, thresholds, and parity with its simulator; about two CPU-minutes.

Stored are 40 rounds of its simulator with the relaxed bound and what the original's genetic search came to.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
from _cells import finished
from _plan import Measured, Plan, Study
from _pollux_instances import Round, load, rounds
from parity import PUBLISHED, config_of, rules_of

from rlpto.io.arrays import IntArray
from rlpto.performance.metrics import UtilityBand
from rlpto.policies.pollux.objective import power_mean
from rlpto.policies.pollux.policy import PolluxOptions, desired_nodes, utility
from rlpto.policies.pollux.search import least_cost

STORED = "pollux-objective-instances.json"
STEPS = PolluxOptions().steps
SEEDS = 5
CROWDS = ((30, 16, 4, 300), (160, 16, 4, 100), (1000, 250, 4, 20), (250, 250, 4, 20))
"""Jobs, nodes, GPUs of each, rounds."""
BANDS = ((0.35, 0.65), (0.5, 0.8), (0.6, 0.9))
"""AdaptDL's thresholds of utility, and raised ones."""

Row = dict[str, object]


def measure(plan: Plan, _: Study) -> Measured:
    """Claims and tables; nothing without the folder of data, which has the stored rounds."""
    if plan.data is None or not (path := plan.data / "pollux" / STORED).is_file():
        return Measured()
    stored = load(path)
    stored[0].solve(1, 0)  # compile
    parts = {
        "Parity: mean JCT with jobs' own fits, against the published one": parity(plan),
        "The objective on stored rounds": objective(stored),
        "Thresholds on stored rounds": thresholds(stored),
        "Crowds": latency(json.loads(path.read_text())),
    }
    figures = {name: figure for found, _ in parts.values() for name, figure in found.items()}
    return Measured(figures, tables={title: rows for title, (_, rows) in parts.items()})


def parity(plan: Plan) -> tuple[dict[str, float], list[Row]]:
    """Mean JCT on the published workloads."""
    assert plan.data is not None
    config = config_of(plan.data / "traces" / "pollux", plan.data / "profiles", *rules_of("pollux"))
    done = finished(plan, config, ["pollux"], "parity", windows=lambda window: ("pollux", window) in PUBLISHED)
    found = np.array([one.metrics["jct_mean"] for one in done])
    published = np.array([PUBLISHED["pollux", one.cell.window] for one in done])
    off = 100 * (found / published - 1)
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
    mean = 100 * abs(float(found.mean() / published.mean()) - 1)
    return {"parity, worst workload off by": float(np.abs(off).max()), "parity, mean of workloads off by": mean}, rows


def value(rows: Round, placement: IntArray) -> float:
    """The objective, a power mean."""
    return power_mean(rows.speedup, rows.held, rows.factor, placement, rows.size)


def bound(rows: Round) -> float:
    """The relaxed least sum of costs."""
    return least_cost(rows.speedup, rows.held, rows.factor, rows.least, rows.most, rows.size)


def objective(stored: list[Round]) -> tuple[dict[str, float], list[Row]]:
    """Whether the objective is the reference's, and how near the search comes to its optimum."""
    off = [abs(len(rows.held) / rows.stored_cost / value(rows, rows.stored) - 1) for rows in stored]
    bounds = [abs(bound(rows) / rows.bound - 1) for rows in stored]
    best = np.array([len(rows.held) / rows.bound for rows in stored])
    genetic = np.array([rows.genetic for rows in stored])
    reference = np.array([len(rows.held) / rows.stored_cost for rows in stored])
    found = np.array([[value(rows, rows.solve(STEPS, seed)) for rows in stored] for seed in range(SEEDS)])
    of_best, of_genetic = found / best, found / genetic
    crowded = np.array([len(rows.held) >= 16 for rows in stored])
    figures = {
        "stored bounds that come out otherwise": sum(error > 1e-12 for error in bounds),
        "stored costs that come out to the digit": sum(error < 1e-12 for error in off),
        "share of the relaxed bound, mean": float(of_best.mean()),
        "share of the genetic search, least": float(of_genetic.min()),
    }
    rows: list[Row] = []
    for name, part in (("3 to 8", ~crowded), ("16 to 29", crowded)):
        shares = (of_best, genetic / best, of_genetic, reference / genetic)
        ours, theirs, ratio, stored_ratio = (share[..., part] for share in shares)
        rows.append(
            {
                "jobs": name,
                "rounds": int(part.sum()),
                "share of the bound": round(float(ours.mean()), 4),
                "least": round(float(ours.min()), 4),
                "genetic search's": round(float(theirs.mean()), 4),
                "of the genetic search": round(float(ratio.mean()), 3),
                "reference's search": round(float(stored_ratio.mean()), 3),
                "moved rows a round": round(float(np.mean([moved(stored[i]) for i in np.flatnonzero(part)])), 1),
            }
        )
    return figures, rows


def moved(rows: Round) -> int:
    """Rows of running jobs that the search changes."""
    found = rows.solve(STEPS, 0)
    return int(((found != rows.held).any(axis=1) & rows.held.any(axis=1)).sum())


def latency(entries: list[dict[str, Any]]) -> tuple[dict[str, float], list[Row]]:
    """CPU milliseconds of a search, by size, in runs of rounds on crowds of the same jobs."""
    figures: dict[str, float] = {}
    rows: list[Row] = []
    for jobs, nodes, gpus, count in CROWDS:
        size = np.full(nodes, gpus, dtype=np.int64)
        taken, shares = [], []
        for number, given in enumerate(rounds(entries, jobs, size, count, 0)):
            start = time.process_time()
            placement = given.solve(STEPS, number)
            taken.append(1000 * (time.process_time() - start))
            shares.append(value(given, placement) * bound(given) / jobs)
        figures[f"{jobs} jobs on {nodes * gpus} GPUs, p99"] = float(np.percentile(taken, 99))
        share = f"{np.mean(shares):.4f} ({min(shares):.4f})"
        rows.append({"jobs": jobs, "nodes": nodes, "GPUs": nodes * gpus, "rounds": count, "share of the bound": share})
    return figures, rows


def thresholds(stored: list[Round]) -> tuple[dict[str, float], list[Row]]:
    """AdaptDL's thresholds (A5), with what the search finds on 1 to 16 nodes in every stored round."""
    chosen, inside, feasible, useful = [], [], [], []
    for rows in stored:
        found = [_utility_on(rows, nodes) for nodes in range(1, len(rows.size) + 1)]
        counts = [desired_nodes(lambda nodes, u=found: u[nodes - 1], len(found), UtilityBand(*band)) for band in BANDS]
        chosen.append(counts)
        useful.append([found[count - 1] for count in counts])
        feasible.append([any(low <= u <= high for u in found) for low, high in BANDS])
        inside.append([low <= found[count - 1] <= high for count, (low, high) in zip(counts, BANDS, strict=True)])
    grown = int((np.diff(chosen) > 0).sum())
    lost = int((np.array(feasible)[:, 0] & ~np.array(inside)[:, 0]).sum())
    rows_: list[Row] = [
        {
            "thresholds": f"{low:.2f} to {high:.2f}",
            "nodes": round(float(np.mean(np.array(chosen)[:, band])), 1),
            "utility": round(float(np.mean(np.array(useful)[:, band])), 2),
            "rounds inside": f"{int(np.sum(np.array(inside)[:, band]))} of {int(np.sum(np.array(feasible)[:, band]))}",
        }
        for band, (low, high) in enumerate(BANDS)
    ]
    return {
        "A5 raised thresholds that add nodes": grown,
        "A5 rounds outside of 0.35 to 0.65 where some nodes are inside": lost,
    }, rows_


def _utility_on(rows: Round, nodes: int) -> float:
    """Utility of the best placement on the first nodes."""
    size = np.where(np.arange(len(rows.size)) < nodes, rows.size, 0)
    placement = replace(rows, size=size).solve(STEPS, 0)
    pace = rows.speedup[
        np.arange(len(placement)), np.clip((placement > 0).sum(axis=1), 1, 2) - 1, placement.sum(axis=1)
    ]
    return utility(pace / rows.speedup[:, 0, 1], int(size.sum()))
