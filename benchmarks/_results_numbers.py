"""The numbers of the studies that compare cells of evaluations. Each gives frames for tables, and facts for claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import _common
import large
import numpy as np
import pandas as pd
from _results_plan import AGENT, START, TUNED, Plan, Study
from _results_runs import MEMBER, agents, billed, cells_of

from rlpto.arrays import FloatArray
from rlpto.config import load_config
from rlpto.evaluation.metrics import LOWER_BOUND
from rlpto.evaluation.statistics import Interval, bootstrap_interval
from rlpto.experiment import Experiment

OWN = (AGENT, START, LOWER_BOUND)
"""Rows that are no rivals of the agent: itself, what it starts from, and the bound."""
PUBLISHED = ("optimus", "hesrpt", "tiresias", "equal_share")
TIME_TUNED = "tuned_index (time)"
WHOLE = "the agent"
DECISIONS = 100
"""Decisions whose latency is measured at 1,000 nodes."""


@dataclass(frozen=True)
class Numbers:
    """What a study found. tables: frames that become tables. saved: frames to keep. facts: for text and claims."""

    tables: Mapping[str, pd.DataFrame]
    saved: Mapping[str, pd.DataFrame]
    facts: Mapping[str, object] = field(default_factory=dict)


def reward(plan: Plan, study: Study) -> Numbers:
    """Total reward of every policy, and how far the agent is ahead of the best of the others."""
    cells = cells_of(plan, study)
    verdicts = pd.DataFrame([verdict(cells, *place, plan.seeds) for place in plan.places(study)])
    least = verdicts.iloc[int(verdicts["difference"].argmin())]
    above = verdicts["low"] > 0
    facts = {
        "rows": len(verdicts),
        "above": int(above.sum()),
        "all_above": bool(above.all()),
        "ahead": int((verdicts["difference"] > 0).sum()),
        "least": least["difference"],
        "least_workload": least["workload"],
        "least_load": least["load"],
    }
    means = pd.concat([mean_rewards(cells, workload) for workload in plan.workloads])
    return Numbers({"reward": verdicts, "by policy": means}, {"reward-cells": cells, "reward": verdicts}, facts)


def jct(plan: Plan, study: Study) -> Numbers:
    """Mean JCT of the agent that is rewarded for time alone, relative to others."""
    cells = cells_of(plan, study)
    rows = []
    for workload, load in plan.places(study):
        here = at(cells, workload, load)
        ratios = {
            "tuned": ratio(here, AGENT, [TIME_TUNED], "jct_mean"),
            "index": ratio(here, AGENT, ["index"], "jct_mean"),
            "published": ratio(here, AGENT, PUBLISHED, "jct_mean"),
            "bound": ratio(here, LOWER_BOUND, [AGENT], "jct_mean"),
        }
        ends = {f"{name}{end}": value for name, found in ratios.items() for end, value in _ends(found)}
        rows.append({"workload": workload, "load": load, **ends})
    found = pd.DataFrame(rows)
    facts: dict[str, object] = {"rows": len(found)}
    for name, claim in zip(("tuned", "published"), study.claims, strict=True):
        least, most = found[name].min(), found[name].max()
        reached = int((found[name] <= claim.at_most).sum())
        facts |= {f"{name}_least": least, f"{name}_most": most, f"{name}_reached": reached}
    return Numbers({"jct": found}, {"jct-cells": cells, "jct": found}, facts)


def ablations(plan: Plan, study: Study) -> Numbers:
    """The agent without one of its parts, against the whole agent."""
    cells = cells_of(plan, study)
    cells = cells[cells["policy"] == AGENT].drop(columns="policy").rename(columns={"label": "policy"})
    here = {load: at(cells, plan.home, load) for load in plan.loads}
    alike = len({frozenset(mine["window"]) for mine in here.values()}) == 1
    rows = []
    for name in [run.label for run in study.runs if run.label != WHOLE]:
        gains = [by_window(mine, name, "reward") - by_window(mine, WHOLE, "reward") for mine in here.values()]
        pooled = bootstrap_interval(np.mean(gains, axis=0) if alike else np.concatenate(gains))
        row = {"name": name}
        for load, gain in zip(here, gains, strict=True):
            found = bootstrap_interval(gain)
            row[f"load {load:g}"] = f"{found.estimate:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
        row["all loads"] = shown(pooled, 2)
        row["verdict"] = "worse" if pooled.high < 0 else "better" if pooled.low > 0 else "not worse"
        rows.append(row)
    worse = sum(row["verdict"] == "worse" for row in rows)
    return Numbers({"differences": pd.DataFrame(rows)}, {"ablations": cells}, {"rows": len(rows), "worse": worse})


def scale(plan: Plan, study: Study) -> Numbers:
    """The agent on other sizes of cluster, without training it anew."""
    cells = cells_of(plan, study).rename(columns={"label": "gpus"}).drop(columns=["workload", "load"])
    rows = pd.DataFrame([_normalised(int(gpus), mine) for gpus, mine in cells.groupby("gpus", sort=False)])
    home = rows.loc[rows["gpus"] == 64, "normalised"].item()
    spec = agents(plan, plan.home)[0]
    with billed(plan, "evaluation"):
        latency = decision_latency(spec)
    facts = {
        "apart": float((rows["normalised"] - home).abs().max()),
        "latency": latency,
        "active": large.ACTIVE,
        "decisions": DECISIONS,
    }
    return Numbers({"scales": rows}, {"scale": cells}, facts)


def _normalised(gpus: int, cells: pd.DataFrame) -> dict[str, object]:
    """Means of jobs and rewards; the agent's reward where FIFO is 0 and the tuned index, or the bound, is 1."""
    mean = {name: by_window(cells, name, "reward").mean() for name in (AGENT, TUNED, "fifo", LOWER_BOUND)}
    ahead = mean[AGENT] - mean["fifo"]
    return {
        "gpus": gpus,
        "jobs": by_window(cells, AGENT, "jobs").mean(),
        **mean,
        "normalised": ahead / (mean[TUNED] - mean["fifo"]),
        "of_bound": ahead / (mean[LOWER_BOUND] - mean["fifo"]),
    }


def decision_latency(spec: str) -> float:
    """99th percentile of a decision's milliseconds at 1,000 nodes with 10,000 active jobs."""
    experiment = Experiment(load_config(_common.CONFIGS / "large.yaml"))
    return float(np.percentile(large.latencies(experiment, spec, large.crowd(experiment), DECISIONS), 99))


def contenders(cells: pd.DataFrame) -> list[str]:
    """Rivals of the agent that have been run on all draws."""
    draws = cells.groupby("policy")["seed"].nunique()
    return [name for name in rivals(cells) if draws[name] == cells["seed"].nunique()]


def at(cells: pd.DataFrame, workload: str, load: float) -> pd.DataFrame:
    """Cells of one workload at one load."""
    return cells[(cells["workload"] == workload) & (cells["load"] == load)]


def by_window(cells: pd.DataFrame, policy: str | int, metric: str) -> FloatArray:
    """[windows] a metric of a policy, in order of the windows: the mean over all draws of each that it has."""
    mine = cells[cells["policy"] == policy].groupby("window")[metric].mean().sort_index()
    return mine.to_numpy(dtype=np.float64)


def difference(cells: pd.DataFrame, policy: str, other: str, metric: str = "reward") -> Interval:
    """Mean over windows of policy - other, with its interval."""
    return bootstrap_interval(by_window(cells, policy, metric) - by_window(cells, other, metric))


def ratio(cells: pd.DataFrame, policy: str, others: Sequence[str], metric: str) -> Interval:
    """Mean of a metric over that of the best of `others` (the lowest mean), windows resampled in pairs."""
    best = min(others, key=lambda name: by_window(cells, name, metric).mean())
    mine, theirs = by_window(cells, policy, metric), by_window(cells, best, metric)
    rows = np.arange(len(mine), dtype=np.float64)

    def quotient(units: FloatArray, counts: FloatArray) -> FloatArray:
        picked = units.astype(np.int64)
        found: FloatArray = (counts @ mine[picked]) / (counts @ theirs[picked])
        return found

    return bootstrap_interval(rows, statistic=quotient)


def rivals(cells: pd.DataFrame) -> list[str]:
    """Policies other than the agent in any form."""
    return [name for name in cells["policy"].unique() if name not in OWN and not MEMBER.fullmatch(name)]


def verdict(cells: pd.DataFrame, workload: str, load: float, seeds: Sequence[int]) -> dict[str, object]:
    """The agent against the best of the others, against its start, and beside the bound."""
    here = at(cells, workload, load)
    second = max(contenders(here), key=lambda name: by_window(here, name, "reward").mean())
    ahead, learned = difference(here, AGENT, second), difference(here, AGENT, START)
    of_seeds = [by_window(here, f"{AGENT}-{seed}", "reward").mean() for seed in seeds]
    return {
        "workload": workload,
        "load": load,
        "windows": ahead.samples,
        "draws": here["seed"].nunique(),
        "agent": by_window(here, AGENT, "reward").mean(),
        "runner_up": second,
        "runner_up_reward": by_window(here, second, "reward").mean(),
        "difference": ahead.estimate,
        "low": ahead.low,
        "high": ahead.high,
        "won": float((by_window(here, AGENT, "reward") > by_window(here, second, "reward")).mean()),
        "learned": learned.estimate,
        "learned_low": learned.low,
        "learned_high": learned.high,
        "lowest_seed": min(of_seeds),
        "highest_seed": max(of_seeds),
        "lower_bound": by_window(here, LOWER_BOUND, "reward").mean(),
    }


def mean_rewards(cells: pd.DataFrame, workload: str) -> pd.DataFrame:
    """Mean reward of every policy of a workload by load on the first draws, best first at the highest load."""
    mine = cells[(cells["workload"] == workload) & (cells["seed"] == cells["seed"].min())]
    mine = mine[~mine["policy"].str.fullmatch(MEMBER.pattern)]
    means = mine.pivot_table(index="policy", columns="load", values="reward", aggfunc="mean")
    means = means.sort_values(means.columns[-1], ascending=False)
    means = means.loc[[*(name for name in means.index if name != LOWER_BOUND), LOWER_BOUND]]
    return means.rename(columns="load {:g}".format).reset_index().assign(workload=workload)


def shown(interval: Interval, digits: int = 1) -> str:
    """An estimate with its interval."""
    return f"{interval.estimate:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def _ends(interval: Interval) -> list[tuple[str, float]]:
    return [("", interval.estimate), ("_low", interval.low), ("_high", interval.high)]
