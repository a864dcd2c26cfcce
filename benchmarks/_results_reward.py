"""The first two points of the proof: the largest reward, and with time alone rewarded the shortest JCT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from _results_page import Claim, Section, save_section, shown, table
from _results_plan import AGENT, CONTENDERS, START, Plan, time_alone, tuned
from _results_runs import MEMBER, agents, evaluated, label_of, starts

from rlpto.arrays import FloatArray
from rlpto.evaluation.metrics import LOWER_BOUND
from rlpto.evaluation.statistics import Interval, bootstrap_interval

OWN = (AGENT, START, LOWER_BOUND)
"""Rows that are no rivals of the agent: itself, what it starts from, and the bound."""
PUBLISHED = ("optimus", "hesrpt", "tiresias", "equal_share")
TIME_TUNED = "tuned_index (time)"


def reward(plan: Plan) -> Section:
    """Total reward of every policy, and how far the agent is ahead of the best of the others."""
    cells = pd.concat([reward_cells(plan, workload, load) for workload in plan.workloads for load in plan.loads])
    verdicts = pd.DataFrame(
        [verdict(cells, workload, load, plan.seeds) for workload in plan.workloads for load in plan.loads]
    )
    ahead = bool((verdicts["low"] > 0).all())
    worst = verdicts.iloc[int(verdicts["difference"].argmin())]
    claim = Claim(
        "1. The agent has the largest total reward on every workload and load; the interval of the difference "
        "from the runner-up is above zero",
        f"in {int((verdicts['low'] > 0).sum())} of {len(verdicts)} (ahead on average in "
        f"{int((verdicts['difference'] > 0).sum())}); least: {worst['difference']:+.1f} on {worst['workload']} "
        f"at load {worst['load']:g}",
        ahead,
    )
    text = "\n\n".join([DEFINITION, verdict_table(verdicts), *(reward_table(cells, name) for name in plan.workloads)])
    section = Section("reward", "Total reward", text, [claim], {"agents": f"{len(plan.seeds)} seeds of training"})
    save_section(plan.folder, section, {"reward-cells": cells, "reward": verdicts})
    return section


DEFINITION = (
    "Mean total reward of a test window. `agent` is the mean of the agents of all training seeds in every window, "
    "`agent_start` what they start from before anything is learned, `tuned_index` the index tuned on training windows "
    "at all loads. A *draw* of a window gives its jobs what is not recorded: their class, and where the trace does not "
    "have it their model. All policies run on the first draw of every window (the tables by workload below); the best "
    f"{CONTENDERS} of them, the agents and their start on all draws (windows x draws in the first table). The "
    "runner-up is the best of these. Differences are averaged over the draws of a window and paired by window, with "
    "95 % bootstrap intervals over windows."
)


def reward_cells(plan: Plan, workload: str, load: float) -> pd.DataFrame:
    """Every policy, the agents, and their start on the test windows of a workload at a load.

    The first draw of each window is for all of them; its best CONTENDERS, the agents and their start go on to further
    draws, which say more about who is ahead where windows differ by the draw of their jobs.
    """
    config, name = plan.config(workload, load), f"{workload}-{load:g}"
    own = [*agents(plan, workload), *starts(plan, workload)]
    first = evaluated(plan, config, [*config.policies, *own], name)
    order = sorted(rivals(first), key=lambda policy: -by_window(first, policy, "reward").mean())
    best = [spec for spec in config.policies if label_of(spec) in order[:CONTENDERS]]
    further = evaluated(plan, config, [*best, *own], name, plan.draws)
    seen = further[further["seed"] != config.seed]
    return pd.concat([first, seen], ignore_index=True).assign(workload=workload, load=load)


def first_draw(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells of the first draw of every window of a workload, which all policies have."""
    return cells[cells["seed"] == cells["seed"].min()]


def contenders(cells: pd.DataFrame) -> list[str]:
    """Rivals of the agent that have been run on all draws."""
    return [
        name for name in rivals(cells) if cells[cells["policy"] == name]["seed"].nunique() == cells["seed"].nunique()
    ]


def at(cells: pd.DataFrame, workload: str, load: float) -> pd.DataFrame:
    """Cells of one workload at one load."""
    return cells[(cells["workload"] == workload) & (cells["load"] == load)]


def by_window(cells: pd.DataFrame, policy: str, metric: str) -> FloatArray:
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


def verdict_table(verdicts: pd.DataFrame) -> str:
    """One row a workload and load."""
    rows = [
        [
            row["workload"],
            f"{row['load']:g}",
            f"{row['windows']} x {row['draws']}",
            f"{row['agent']:.1f} ({row['lowest_seed']:.1f} to {row['highest_seed']:.1f})",
            f"{row['runner_up']} {row['runner_up_reward']:.1f}",
            f"{row['difference']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]",
            f"{row['won']:.0%}",
            f"{row['learned']:+.2f} [{row['learned_low']:+.2f}, {row['learned_high']:+.2f}]",
            f"{row['lower_bound']:.1f}",
        ]
        for row in verdicts.to_dict("records")
    ]
    heads = ["workload", "load", "windows x draws", "agent (seeds)", "runner-up", "agent - runner-up", "windows won"]
    return table([*heads, "agent - agent_start", "bound"], rows)


def reward_table(cells: pd.DataFrame, workload: str) -> str:
    """Mean reward of every policy of a workload by load, best first at the highest."""
    mine = first_draw(cells[cells["workload"] == workload])
    mine = mine[~mine["policy"].str.fullmatch(MEMBER.pattern)]
    means = mine.pivot_table(index="policy", columns="load", values="reward", aggfunc="mean")
    means = means.sort_values(means.columns[-1], ascending=False)
    order = [name for name in means.index if name != LOWER_BOUND] + [LOWER_BOUND]
    rows = [[str(name), *(f"{means.loc[name, load]:.1f}" for load in means.columns)] for name in order]
    return f"**{workload}**\n\n" + table(["policy", *(f"load {load:g}" for load in means.columns)], rows)


def jct(plan: Plan) -> Section:
    """Mean JCT of the agent that is rewarded for time alone, relative to others."""
    cells = pd.concat([time_cells(plan, workload, load) for workload in plan.workloads for load in plan.loads])
    found = [
        (workload, load, time_ratios(at(cells, workload, load))) for workload in plan.workloads for load in plan.loads
    ]
    rows = [[name, f"{load:g}", *(shown(value, 3) for value in ratios.values())] for name, load, ratios in found]
    heads = ["workload", "load", "to the tuned index", "to the two-parameter index", "to the best published"]
    flat = pd.DataFrame(
        [
            {"workload": workload, "load": load}
            | {f"{name}{end}": value for name, interval in ratios.items() for end, value in _ends(interval)}
            for workload, load, ratios in found
        ]
    )
    claims = [
        _at_most("2. With time alone rewarded, mean JCT at most .97 of the tuned index's", flat, "tuned", 0.97),
        _at_most(
            "2. ... and at most .90 of the best of Optimus, heSRPT, Tiresias and equal share", flat, "published", 0.9
        ),
    ]
    text = (
        "Mean JCT of the agent trained with reward weights accuracy 0, time 1, resources 0, rescale 0, relative to the "
        "index tuned for JCT, to the index of two parameters, to the best of Optimus, heSRPT, Tiresias and equal "
        "share; and of the lower bound relative to the agent. Ratios of means over windows, 95 % intervals.\n\n"
    ) + table([*heads, "bound to agent"], rows)
    section = Section("jct", "Time alone", text, claims)
    save_section(plan.folder, section, {"jct-cells": cells, "jct": flat})
    return section


def time_ratios(cells: pd.DataFrame) -> dict[str, Interval]:
    """Mean JCT of the agent over that of others, and of the bound over the agent's."""
    return {
        "tuned": ratio(cells, AGENT, [TIME_TUNED], "jct_mean"),
        "index": ratio(cells, AGENT, ["index"], "jct_mean"),
        "published": ratio(cells, AGENT, PUBLISHED, "jct_mean"),
        "bound": ratio(cells, LOWER_BOUND, [AGENT], "jct_mean"),
    }


def time_cells(plan: Plan, workload: str, load: float) -> pd.DataFrame:
    """Cells of point 1's configuration, whose reward weights move none of these policies: only JCTs are looked at."""
    index = f"index:label={TIME_TUNED},weights={tuned(workload, 'jct')}"
    specs = [*PUBLISHED, "index", index, *agents(plan, workload, time_alone(workload))]
    return evaluated(plan, plan.config(workload, load), specs, f"{workload}-{load:g}").assign(
        workload=workload, load=load
    )


def _ends(interval: Interval) -> list[tuple[str, float]]:
    return [("", interval.estimate), ("_low", interval.low), ("_high", interval.high)]


def _at_most(text: str, found: pd.DataFrame, column: str, limit: float) -> Claim:
    """A claim about the largest of the ratios."""
    values = found[column].to_numpy(dtype=np.float64)
    figure = f"{values.min():.3f} to {values.max():.3f}; reached in {int((values <= limit).sum())} of {len(values)}"
    return Claim(text, figure, bool((values <= limit).all()))
