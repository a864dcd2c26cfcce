"""Studies of the agent itself: what each of its parts is worth, other sizes of cluster, and other actions."""

from __future__ import annotations

import _common
import large
import numpy as np
import pandas as pd
from _results_page import Claim, Section, save_section, shown, table
from _results_plan import ABLATIONS, AGENT, RESERVATIONS, SCALES, SEEING, TUNED, Plan
from _results_reward import at, by_window, difference
from _results_runs import KEEPING, agents, billed, evaluated, label_of

from rlpto.config import load_config
from rlpto.evaluation.metrics import LOWER_BOUND
from rlpto.evaluation.statistics import bootstrap_interval
from rlpto.experiment import Experiment

FULL = "the agent"
KEPT = "without shrink"
DECISIONS = 100
"""Decisions whose latency is measured at 1,000 nodes."""


def ablations(plan: Plan) -> Section:
    """The agent without one of its parts, against the whole agent."""
    specs = {name: agents(plan, plan.home, variant) for name, variant in ABLATIONS.items()}
    whole = agents(plan, plan.home)
    specs[KEPT] = [KEEPING + spec for spec in whole]
    specs |= dict.fromkeys(RESERVATIONS, whole)
    changes = SEEING | RESERVATIONS
    tables = []
    for load in plan.loads:
        config = plan.config(plan.home, load)
        for name, mine in {FULL: whole, **specs}.items():
            seeing = plan.config(plan.home, load, *changes[name]) if name in changes else config
            cells = evaluated(plan, seeing, mine, f"{plan.home}-{load:g}")
            tables.append(cells[cells["policy"] == AGENT].assign(policy=name, workload=plan.home, load=load))
    cells = pd.concat(tables)
    rows, worse = [], 0
    for name in specs:
        entries = []
        for load in plan.loads:
            found = difference(at(cells, plan.home, load), name, FULL)
            entries.append(f"{found.estimate:+.2f} [{found.low:+.2f}, {found.high:+.2f}]")
        pooled = bootstrap_interval(
            np.mean([_gain(at(cells, plan.home, load), name) for load in plan.loads], axis=0)
            if _same_windows(cells)
            else np.concatenate([_gain(at(cells, plan.home, load), name) for load in plan.loads])
        )
        word = "worse" if pooled.high < 0 else "better" if pooled.low > 0 else "not worse"
        worse += word == "worse"
        rows.append([name, *entries, f"{shown(pooled, 2)}", word])
    claim = Claim(
        "5. Each ablation has its row; those that are not worse are named", f"{worse} of {len(specs)} worse", None
    )
    text = (
        f"Difference in mean total reward to the whole agent on {plan.home}, paired by window, means over "
        f"{len(plan.seeds)} seeds of training, with 95 % bootstrap intervals. *Without priorities*: trained on jobs "
        "that are all of one class, run on the same windows as the others. *Without shrink*: the whole agent, but no "
        "job gives up a GPU before it ends. *Without warm start*: trained from the two-parameter index, not from the "
        "tuned one. *With a forecast*: the agents above know none; these were trained with one in sight, and run with "
        "it. *Held back*: the whole agent, while up to a fifth of the GPUs is held back for predicted jobs of class "
        "high; the perfect forecast is an oracle.\n\n"
    ) + table(["", *(f"load {load:g}" for load in plan.loads), "all loads", "verdict"], rows)
    section = Section("ablations", "Ablations", text, [claim])
    save_section(plan.folder, section, {"ablations": cells})
    return section


def _gain(cells: pd.DataFrame, name: str) -> np.ndarray:
    return by_window(cells, name, "reward") - by_window(cells, FULL, "reward")


def _same_windows(cells: pd.DataFrame) -> bool:
    """True if all loads have the same windows, so that a window's differences can be averaged over loads."""
    return len({frozenset(mine["window"]) for _, mine in cells.groupby("load")}) == 1


def scale(plan: Plan) -> Section:
    """The agent on other sizes of cluster, without training it anew."""
    specs = [*agents(plan, plan.home)]
    tables = []
    for gpus, (count, each) in SCALES.items():
        nodes = f"cluster.nodes=[{{count: {count}, gpus: {each}}}]"
        config = plan.config(plan.home, plan.busy, nodes, windows=8 if gpus <= 256 else 4)
        tuned = [spec for spec in config.policies if label_of(spec) == TUNED]
        tables.append(evaluated(plan, config, [*specs, *tuned, "fifo"], f"scale-{gpus}").assign(gpus=gpus))
    cells = pd.concat(tables)
    found = {gpus: _normalised(cells[cells["gpus"] == gpus]) for gpus in SCALES}
    home = found[64]["normalised"]
    apart = max(abs(row["normalised"] - home) for row in found.values())
    with billed(plan, "evaluation"):
        latency = decision_latency(specs[0])
    rows = [
        [
            f"{gpus:,}",
            f"{row['jobs']:.0f}",
            *(f"{row[name]:.1f}" for name in ("fifo", TUNED, AGENT, LOWER_BOUND)),
            f"{row['normalised']:.3f}",
            f"{row['of_bound']:.3f}",
        ]
        for gpus, row in found.items()
    ]
    claims = [
        Claim(
            "6. Trained at 64 GPUs: normalised reward at 16, 256 and 1,024 GPUs within 5 % of that at 64",
            f"at most {apart:.3f} apart",
            apart <= 0.05,
        ),
        Claim("6. ... decision p99 under 100 ms at 1,000 nodes", f"{latency:.0f} ms", latency < 100),
    ]
    text = (
        f"The agents of {plan.home}, trained at 64 GPUs, at load {plan.busy:g} on clusters of other sizes with as many "
        "times more jobs (8 windows, 4 at 1,024 GPUs). Normalised reward: FIFO is 0 and the tuned index 1, which was "
        "tuned at 64 GPUs too; beside it with the lower bound as 1, which is further away where the cluster is small "
        "and queues are longer. p99 of one decision (table, queue, policy, checks, placement): 1,000 nodes of 8 GPUs, "
        f"{large.ACTIVE:,} active jobs, {DECISIONS} decisions, wall clock.\n\n"
    ) + table(["GPUs", "jobs in a window", "FIFO", "tuned index", "agent", "bound", "normalised", "of the bound"], rows)
    section = Section("scale", "Scale", text, claims)
    save_section(plan.folder, section, {"scale": cells})
    return section


def _normalised(cells: pd.DataFrame) -> dict[str, float]:
    """Means of jobs and rewards; the agent's reward where FIFO is 0 and the tuned index, or the bound, is 1."""
    mean = {name: by_window(cells, name, "reward").mean() for name in (AGENT, TUNED, "fifo", LOWER_BOUND)}
    ahead = mean[AGENT] - mean["fifo"]
    return {
        "jobs": by_window(cells, AGENT, "jobs").mean(),
        **mean,
        "normalised": ahead / (mean[TUNED] - mean["fifo"]),
        "of_bound": ahead / (mean[LOWER_BOUND] - mean["fifo"]),
    }


def decision_latency(spec: str) -> float:
    """99th percentile of a decision's milliseconds at 1,000 nodes with 10,000 active jobs."""
    experiment = Experiment(load_config(_common.CONFIGS / "large.yaml"))
    return float(np.percentile(large.latencies(experiment, spec, large.crowd(experiment), DECISIONS), 99))
