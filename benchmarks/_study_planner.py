"""Value of looking ahead, and of knowledge: `planner` against its base index, and all policies on Pollux's workloads
under each setting of knowledge. Pages: docs/planning.md, docs/results.md, docs/systems/README.md.

Weights were tuned on the generated workloads 101-106.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import _common
import numpy as np
import pandas as pd
from _studies import (
    MISSION,
    TIME_ONLY,
    Part,
    Plan,
    Row,
    Workload,
    agents,
    by_window,
    difference,
    finished,
    ratio_of_means,
    shown,
    tuned,
)
from _studies import TUNED as TUNED_INDEX
from _study_pollux import ONLINE, PUBLISHED_JCT_S, config_of
from _study_windows import run_of
from speed import decided

from rlpto.agents.window_training import WEIGHTS
from rlpto.core.queues import Queue
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.tables import frame
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.policies.spec import policy_label
from rlpto.simulator.cluster import SimulatedCluster

WINDOWS: dict[Workload, int] = {"synthetic": 6, "philly": 25, "pollux": 24}
"""Most windows of each workload: a window of synthetic takes many times the others' time."""
FRESH_SEED = "seed=71"
"""Draws windows of synthetic and pollux that nothing was tuned or compared on before."""
SHARED = (*ONLINE, "knowledge.fits=shared")
UNKNOWN = "knowledge.remaining=unknown"
SETTINGS: dict[str, tuple[str, ...]] = {
    "true speeds, declared epochs": (),
    "true speeds, epochs unknown": (UNKNOWN,),
    "true speeds, by the curve": ("knowledge.remaining=curve",),
    "own fits, declared epochs": ONLINE,
    "own fits, epochs unknown": (*ONLINE, UNKNOWN),
    "own fits, by the curve": (*ONLINE, "knowledge.remaining=curve"),
    "shared fits, declared epochs": SHARED,
    "shared fits, learnt or by the curve": (*SHARED, "knowledge.remaining=learnt_or_curve"),
    "shared fits, epochs unknown": (*SHARED, UNKNOWN),
    "shared fits, by the curve": (*SHARED, "knowledge.remaining=curve"),
}
"""Overrides for the knowledge of policies and jobs, by name."""
CLAIMED = (
    *("true speeds, declared epochs", "own fits, declared epochs", "own fits, by the curve"),
    *("shared fits, declared epochs", "shared fits, learnt or by the curve", "shared fits, by the curve"),
)
FOLDERS = ("traces/pollux", "pollux/generated")
"""Pollux's published workloads, and the workloads that the weights were tuned on, with true speeds."""
ESTIMATES: dict[str, tuple[str, ...]] = {
    "Pollux's fit, jobs not observed look short": ("knowledge.fit=pollux",),
    "fit with a prior": (),
    "the same, epochs unknown: as many left as done": (UNKNOWN, "knowledge.tail=1"),
    "the same, epochs unknown: twice as many left as done": (UNKNOWN,),
    "the same, epochs by the curve": ("knowledge.remaining=curve",),
}
TUNED = tuned("pollux-adaptive")
SEARCH = "perturbations=24,spread=0.25"
"""Options of the planner on Pollux's workloads, chosen on the generated workloads 101 to 106."""
PLANNER = f"planner:base={TUNED.removeprefix('index:weights=')},{SEARCH}"
NEED_EPOCHS = ("srtf", "hesrpt", "optimus", "index", "pollux:favour=remaining", TUNED, PLANNER)
"""Policies that use the remaining work; the others are not affected by it."""
POLICIES = (
    *(PLANNER, TUNED, "pollux:favour=remaining", "pollux:favour=attained", "pollux", "index", "hesrpt"),
    *("max_throughput", "equal_share", "srtf", "optimus", "las", "tiresias", "elastic_fifo", "round_robin", "fifo"),
)
PLACES = (("results/synthetic", 16, 100), ("large", 1000, 10_000))
"""Config, nodes and active jobs for which the time of a decision is measured."""
DECISIONS = 60


def windows(plan: Plan, label: str = "", settings: tuple[str, ...] = (), *, around_agents: bool = False) -> Part:
    """Test windows under weighted classes by mean JCT, each against the index tuned for JCT. Time alone is rewarded.

    label: prefix of the figures' names. around_agents: whether the planner's bases are the agents trained on whole
    windows at all loads, instead of the tuned index.
    """
    rows, ratios = list[Row](), list[float]()
    for workload, load in plan.places():
        given = (FRESH_SEED, *TIME_ONLY, "queue.classes=weighted", *settings)
        config = plan.config(workload, load, *given, windows=WINDOWS[workload])
        index = tuned(f"{workload}-jct-weighted")
        agent = run_of(plan, workload, "JCT", (), 0) / WEIGHTS if around_agents else None
        specs = [index, f"planner:base={agent or index.removeprefix('index:weights=')}"]
        done = finished(plan, config, specs, f"{workload}-{load:g}", range(plan.draws))
        cells = named(done, config.knowledge.mode)
        found = ratio_of_means(*(by_window(cells, name, "jct_mean") for name in ("planner", "index")))
        latency = np.concatenate([one.record().decisions.latency for one in done[len(done) // 2 :]])
        ratios.append(found.estimate)
        rows.append(
            {"workload": workload, "load": load, "windows x draws": f"{found.samples} x {plan.draws}"}
            | {"planner / tuned index": f"{found.estimate:.3f}"}
            | {"95 % interval": f"{found.low:.3f} to {found.high:.3f}", "ms a decision": f"{1e3 * latency.mean():.1f}"}
        )
    overall = float(np.exp(np.mean(np.log(ratios))))
    figures = {f"{label}geometric mean of the cells": overall, f"{label}worst cell": max(ratios)}
    return Part(figures, rows)


around_agents = partial(windows, label="around agents, ", around_agents=True)
noisy = partial(windows, label="with 20 % noise of estimates, ", settings=("knowledge.mode=noisy",))
"""With errors in the estimates of speeds and work."""


def rewards(plan: Plan) -> Part:
    """Test windows by the quickstart's reward: agents, and planners around the tuned index and around the agents."""
    rows, beyond, gained = list[Row](), 0.0, 0.0
    for workload, load in plan.places():
        config = plan.config(workload, load, FRESH_SEED, *MISSION, windows=WINDOWS[workload])
        labels, agent = {policy_label(spec): spec for spec in config.policies}, agents(plan, workload)[0]
        bases = {"planner": labels[TUNED_INDEX], "around agent": agent}
        planners = [f"planner:label={label},base={spec.partition('weights=')[2]}" for label, spec in bases.items()]
        done = finished(plan, config, [agent, *planners], f"{workload}-{load:g}", range(plan.draws))
        cells, own = frame(done, config.knowledge.mode), policy_label(agent)
        ahead, around = difference(cells, own, "planner"), difference(cells, "around agent", own)
        beyond, gained = beyond + (ahead.low > 0), gained + (around.low > 0)
        mean = {name: f"{by_window(cells, name, 'reward').mean():.1f}" for name in (own, *bases)}
        rows.append(
            {"workload": workload, "load": load, "windows x draws": f"{ahead.samples} x {plan.draws}"}
            | {"agent": mean[own], "planner around the tuned index": mean["planner"]}
            | {"agent - planner": shown(ahead, "+.2f"), "planner around the agent - agent": shown(around, "+.2f")}
        )
    figures = {
        "cells where the agent's total reward is above the planner's around the tuned index": beyond,
        "cells where a planner around the agent is above the agent": gained,
    }
    return Part(figures, rows)


def named(done: Sequence[FinishedCell], knowledge: str) -> pd.DataFrame:
    """A frame of cells in which planners and indices are named by their policy alone, without options."""
    cells = frame(done, knowledge)
    return cells.assign(policy=cells["policy"].str.replace(r"^(planner|index):.*", r"\1", regex=True))


def knowledge(plan: Plan) -> Part:
    """All policies in each setting; 22 CPU-minutes. Only time is rewarded, as the planner assumes."""
    ratios: dict[str, dict[str, float]] = {}
    names = {PLANNER: "planner", TUNED: "tuned index"}
    for spec in POLICIES:
        asked = {name: name if spec in NEED_EPOCHS else f"{name.split(',')[0]}, declared epochs" for name in SETTINGS}
        wanted = dict.fromkeys(asked.values())
        found = {name: of_published(plan, spec, (*TIME_ONLY, *SETTINGS[name])) for name in wanted}
        ratios[names.get(spec, spec)] = {name: found[asked[name]] for name in SETTINGS}
    rows: list[Row] = [
        {"policy": name, **{key: f"{ratio:.3f}" for key, ratio in row.items()}} for name, row in ratios.items()
    ]
    return Part({f"best policy, {name}": min(row[name] for row in ratios.values()) for name in CLAIMED}, rows)


def estimates(plan: Plan) -> Part:
    """Value of each part of the estimates to the tuned index, if each job fits its own speed."""
    rows = list[Row]()
    for name, settings in ESTIMATES.items():
        found = [of_published(plan, TUNED, (*ONLINE, *settings), folder) for folder in FOLDERS]
        rows.append({"estimates": name, "workloads 1-4": f"{found[0]:.3f}", "workloads 101-106": f"{found[1]:.3f}"})
    return Part(rows=rows)


def of_published(plan: Plan, spec: str, settings: tuple[str, ...], folder: str = FOLDERS[0]) -> float:
    """Mean JCT over a folder's workloads relative to Pollux's published mean; jobs choose their batch sizes."""

    def wanted(window: str) -> bool:
        return folder != FOLDERS[0] or window in PUBLISHED_JCT_S

    assert plan.data is not None
    path = f"workload.path={json.dumps(str(plan.data / folder / '*.csv'))}"
    done = finished(plan, config_of(plan, *settings, path), [spec], "known", windows=wanted)
    return float(np.mean([one.metrics["jct_mean"] for one in done]) / np.mean(list(PUBLISHED_JCT_S.values())))


def latency(_: Plan) -> Part:
    """Wall-clock time of a decision in which a plan is made, at 100 jobs; and of any at 10,000 on 1,000 nodes."""
    figures, rows = dict[str, float](), list[Row]()
    for file, nodes, active in PLACES:
        experiment = Experiment(load_config(_common.CONFIGS / f"{file}.yaml"))
        jobs = experiment.jobs(experiment.windows()[0], 0)
        picked = np.random.default_rng(0).choice(len(jobs), active, replace=len(jobs) < active)
        crowd = [replace(jobs[one], name=f"job-{i}", submit_time=0.0) for i, one in enumerate(picked)]
        cluster = SimulatedCluster(experiment.shape, crowd, experiment.tables(), experiment.config.simulator)
        policy, taken = experiment.policy("planner"), []
        for alone, _state in islice(decided(cluster, Queue(experiment.config.queue), policy), DECISIONS):
            taken.append(1e3 * alone)
            policy.reset(0)  # makes it plan every time
        p99 = float(np.percentile(taken[2:], 99))
        figures[f"decision, {active} jobs on {nodes} nodes, p99"] = p99
        rows.append(
            {"active jobs": active, "nodes": nodes, "median ms": f"{np.median(taken):.1f}", "p99 ms": f"{p99:.1f}"}
        )
    return Part(figures, rows)
