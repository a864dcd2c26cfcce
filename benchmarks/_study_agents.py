"""Studies of trained agents, from cells of evaluations: rewards, JCT, ablations, and other sizes of cluster."""

from __future__ import annotations

import _common
import numpy as np
import pandas as pd
import speed
from _cells import (
    AGENT,
    MEMBER,
    START,
    TUNED,
    agents,
    billed,
    by_window,
    cells_of,
    difference,
    ends_of,
    ratio,
    shown,
)
from _plan import Measured, Plan, Study

from rlpto.evaluation.metrics import LOWER_BOUND
from rlpto.evaluation.statistics import bootstrap_interval
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment

OWN = (AGENT, START, LOWER_BOUND)
"""Rows that are no rivals of the agent: itself, what it starts from, and the bound."""
PUBLISHED = ("optimus", "hesrpt", "tiresias", "equal_share")
TIME_TUNED = "tuned_index (time)"
WHOLE = "the agent"
DECISIONS = 100
"""Decisions whose latency is measured at 1,000 nodes."""


JCT_LIMITS = {"tuned": 0.97, "published": 0.90}
"""Of the JCT of the tuned index, and of the best published heuristic: at most what the agent's should be."""


def reward(plan: Plan, study: Study) -> Measured:
    """Total reward of every policy, and how far the agent is ahead of the best of the others."""
    cells = cells_of(plan, study)
    verdicts = pd.DataFrame([verdict(cells, *place, plan.seeds) for place in plan.places()])
    least = verdicts.iloc[int(verdicts["difference"].argmin())]
    facts = {
        "agents": plan.seeds,
        "contenders": study.contenders,
        "above": int((verdicts["difference_low"] > 0).sum()),
        "ahead": int((verdicts["difference"] > 0).sum()),
        "least": {name: least[name] for name in ("difference", "workload", "load")},
        "verdicts": verdicts,
        "means": {workload: mean_rewards(cells, workload) for workload in plan.workloads},
    }
    return Measured(facts=facts)


def jct(plan: Plan, study: Study) -> Measured:
    """Mean JCT of the agent that is rewarded for time alone, relative to others."""
    cells = cells_of(plan, study)
    rows = []
    for workload, load in plan.places():
        here = at(cells, workload, load)
        ratios = {
            "tuned": ratio(here, AGENT, [TIME_TUNED], "jct_mean"),
            "index": ratio(here, AGENT, ["index"], "jct_mean"),
            "published": ratio(here, AGENT, PUBLISHED, "jct_mean"),
            "bound": ratio(here, LOWER_BOUND, [AGENT], "jct_mean"),
        }
        ends = {key: value for name, found in ratios.items() for key, value in ends_of(name, found).items()}
        rows.append({"workload": workload, "load": load, **ends})
    found = pd.DataFrame(rows)
    claims = {
        name: {"least": found[name].min(), "most": found[name].max(), "reached": int((found[name] <= limit).sum())}
        for name, limit in JCT_LIMITS.items()
    }
    return Measured(facts={"ratios": found, "claims": claims, "limits": JCT_LIMITS})


def ablations(plan: Plan, study: Study) -> Measured:
    """The agent without one of its parts, against the whole agent."""
    cells = cells_of(plan, study)
    cells = cells[cells["policy"] == AGENT].drop(columns="policy").rename(columns={"label": "policy"})
    here = {load: at(cells, plan.home, load) for load in plan.loads}
    alike = len({frozenset(mine["window"]) for mine in here.values()}) == 1
    rows = []
    for name in [run.label for run in study.runs if run.label != WHOLE]:
        gains = [by_window(mine, name, "reward") - by_window(mine, WHOLE, "reward") for mine in here.values()]
        pooled = bootstrap_interval(np.mean(gains, axis=0) if alike else np.concatenate(gains))
        by_load = zip(here, map(bootstrap_interval, gains), strict=True)
        verdict = "worse" if pooled.high < 0 else "better" if pooled.low > 0 else "not worse"
        at_loads = {f"load {load:g}": shown(gain, "+.2f") for load, gain in by_load}
        rows.append({"": name, **at_loads, "all loads": shown(pooled, ".2f"), "verdict": verdict})
    found = pd.DataFrame(rows)
    facts = {"home": plan.home, "seeds": plan.seeds, "worse": int((found["verdict"] == "worse").sum())}
    return Measured(facts={"differences": found, **facts})


def scale(plan: Plan, study: Study) -> Measured:
    """The agent on other sizes of cluster, without another training."""
    cells = cells_of(plan, study).rename(columns={"label": "gpus"}).drop(columns=["workload", "load"])
    rows = pd.DataFrame([_normalised(int(gpus), mine) for gpus, mine in cells.groupby("gpus", sort=False)])
    home = rows.loc[rows["gpus"] == 64, "normalised"].item()
    spec = agents(plan, plan.home)[0]
    with billed(plan, "evaluation"):
        latency = decision_latency(spec)
    facts = {"home": plan.home, "busy": plan.busy, "active": speed.ACTIVE, "decisions": DECISIONS}
    apart = float((rows["normalised"] - home).abs().max())
    return Measured(facts={"sizes": rows, "apart": apart, "latency": latency, **facts})


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
    return float(np.percentile(speed.latencies(experiment, spec, speed.crowd(experiment), DECISIONS), 99))


def contenders(cells: pd.DataFrame) -> list[str]:
    """Rivals of the agent that have been run on all draws."""
    draws = cells.groupby("policy")["seed"].nunique()
    return [name for name in rivals(cells) if draws[name] == cells["seed"].nunique()]


def at(cells: pd.DataFrame, workload: str, load: float) -> pd.DataFrame:
    """Cells of one workload at one load."""
    return cells[(cells["workload"] == workload) & (cells["load"] == load)]


def rivals(cells: pd.DataFrame) -> list[str]:
    """Policies other than the agent in any form."""
    return [name for name in cells["policy"].unique() if name not in OWN and not MEMBER.fullmatch(name)]


def verdict(cells: pd.DataFrame, workload: str, load: float, seeds: int) -> dict[str, object]:
    """The agent against the best of the others, against its start, and the bound."""
    here = at(cells, workload, load)
    second = max(contenders(here), key=lambda name: by_window(here, name, "reward").mean())
    ahead, learned = difference(here, AGENT, second), difference(here, AGENT, START)
    of_seeds = [by_window(here, f"{AGENT}-{seed}", "reward").mean() for seed in range(seeds)]
    return {
        "workload": workload,
        "load": load,
        "windows": ahead.samples,
        "draws": here["seed"].nunique(),
        "agent": by_window(here, AGENT, "reward").mean(),
        "runner_up": second,
        "runner_up_reward": by_window(here, second, "reward").mean(),
        **ends_of("difference", ahead),
        "won": float((by_window(here, AGENT, "reward") > by_window(here, second, "reward")).mean()),
        **ends_of("learned", learned),
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
    return means.rename(columns="load {:g}".format).map("{:.1f}".format).reset_index()
