"""Rented nodes: forecasts and trained agents against the best tuned heuristic. The page is docs/nodes.md.

Jobs have recorded sizes (gangs) on nodes of 4 GPUs. The training windows choose the options of every provisioner. The
costs are of the test days: job-hours of lateness, plus money for idle GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import _common
import numpy as np
from _studies import Part, Plan, geometric_mean, ratio_of_means, shown, training_of

from rlpto.core.renting import TICK_S
from rlpto.envs.nodes import NodesSetup, play_windows
from rlpto.experiments.config import Config, load_config
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.nodes_environments import nodes_setup
from rlpto.experiments.tune import tune
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ConfigError
from rlpto.io.files import write_text
from rlpto.io.reading import read_json
from rlpto.policies.spec import parse_spec
from rlpto.provisioning.demand import Demand
from rlpto.provisioning.registry import make_provisioner

CELLS = [(cluster, boot) for cluster in ("04", "07", "Philly") for boot in (300, 600)]
"""Clusters with frequent arrivals, each with two boot times [s]."""
HEURISTICS = ("reactive", "spare", "average")
"""Provisioners of which the best on training days is the reference."""
TRUTH = "forecast:level=mean,factor=1"
"""Provisioner that wants the arrivals of `known_arrivals`."""
STEPS = "agent.steps=500000"
SIZES = (1, 8)
"""GPUs of a node in `sizes`; `provisioners` has 4."""
MOST_GPUS = 1600
"""Most GPUs that may be rented in `sizes`."""


def provisioners(plan: Plan) -> Part:
    """Cost under the forecast and under agents that start from it, relative to the best heuristic."""
    part, ratios = Part(), dict[str, list[float]]()
    for cluster, boot in CELLS:
        name = f"{cluster}, {boot // 60} min"
        config = config_of(plan, cluster, boot)
        chosen = tuned(plan, f"{cluster}-{boot}", config)
        setup, heuristic, base, forecast = compared(plan, config, chosen)
        known = tuple(known_arrivals(demand, boot) for demand in setup.demands)
        true = replace(setup, heuristic=make_provisioner(parse_spec(TRUTH)), forecasts=known)
        agents = [daily(setup, f"agent:run={run}") for run in trainings(plan, cluster, boot, chosen["forecast"][0])]
        mean = np.mean(agents, axis=0)
        found = {
            "forecast": ratio_of_means(forecast, base),
            "agents": ratio_of_means(mean, base),
            "arrivals known": ratio_of_means(daily(true, TRUTH), base),
        }
        for key, interval in found.items():
            ratios.setdefault(key, []).append(interval.estimate)
        part.rows.append(
            {"cluster, boot time": name, "best heuristic": heuristic, "forecast": chosen["forecast"][0]}
            | {"cost of a day": f"{base.mean():.1f}"}
            | {f"{key} / heuristic": shown(interval, ".2f") for key, interval in found.items()}
            | {"agents / forecast": shown(ratio_of_means(mean, forecast), ".3f")}
            | {"single agents": " ".join(f"{one.sum() / forecast.sum():.2f}" for one in agents)}
        )
    part.figures = {
        f"{key}, geometric mean of {len(CELLS)} cells": geometric_mean(np.log(found)).estimate
        for key, found in ratios.items()
    }
    return part


def sizes(plan: Plan) -> Part:
    """Cost under the forecast relative to the best heuristic, with nodes of other sizes."""
    part = Part()
    for gpus in SIZES:
        ratios = list[float]()
        node = [f"cluster.nodes.0.gpus={gpus}", f"cluster.nodes.0.rented.most={MOST_GPUS // gpus}"]
        for cluster, boot in CELLS:
            config = config_of(plan, cluster, boot, *node)
            chosen = tuned(plan, f"{cluster}-{boot}-{gpus}", config)
            _, heuristic, base, forecast = compared(plan, config, chosen)
            interval = ratio_of_means(forecast, base)
            ratios.append(interval.estimate)
            part.rows.append(
                {"GPUs of a node": gpus, "cluster, boot time": f"{cluster}, {boot // 60} min"}
                | {"best heuristic": heuristic, "forecast": chosen["forecast"][0]}
                | {"forecast / heuristic": shown(interval, ".2f")}
            )
        part.figures[f"forecast, nodes of size {gpus}, geometric mean of {len(CELLS)} cells"] = geometric_mean(
            np.log(ratios)
        ).estimate
    return part


def compared(
    plan: Plan, config: Config, chosen: Mapping[str, tuple[str, float]]
) -> tuple[NodesSetup, str, FloatArray, FloatArray]:
    """The windows of the plan's split with the chosen forecast, the heuristic that was best in training, and the costs
    [days] under both, heuristic first."""
    config = config.model_copy(update={"provision": chosen["forecast"][0]})
    setup = nodes_setup(Experiment(config), plan.split, range(plan.draws))
    heuristic = min((chosen[one] for one in HEURISTICS), key=itemgetter(1))[0]
    return setup, heuristic, daily(setup, heuristic), daily(setup, chosen["forecast"][0])


def config_of(plan: Plan, cluster: str, boot: int, *more: str) -> Config:
    """The experiment of a cluster. more: other overrides."""
    return load_config(_common.CONFIGS / "rented.yaml", [*overrides_of(plan, cluster, boot), *more])


def overrides_of(plan: Plan, cluster: str, boot: int) -> list[str]:
    """Changes of configs/rented.yaml for a cluster."""
    given = [f"cluster.nodes.0.rented.boot={boot}", f"workload.path=microsoft/cluster{cluster}"]
    if cluster == "Philly":
        assert plan.data is not None
        path = json.dumps(str(plan.data / "traces" / "philly.csv.gz"))
        given[1:] = [f"workload.path={path}", "workload.skip_days=29", "cluster.nodes.0.rented.most=400"]
    return given


def tuned(plan: Plan, name: str, config: Config) -> dict[str, tuple[str, float]]:
    """By provisioner the spec with the lowest cost on training windows, and that cost. It is chosen once."""
    file = plan.cells / f"nodes-{name}.json"
    if not file.is_file():
        _common.progress(f"tuning provisioners: {name}")
        found = tune(config, [*HEURISTICS, "forecast"], lambda *_: None)
        best = {key: (tried[0].spec, tried[0].cost) for key, tried in found.items()}
        write_text(file, json.dumps(best), "chosen provisioners")
    return {key: (spec, cost) for key, (spec, cost) in read_json(file, "chosen provisioners", ConfigError).items()}


def trainings(plan: Plan, cluster: str, boot: int, start: str) -> list[Path]:
    """Folders of the trainings of all seeds, which are run first if necessary."""
    changes = [*overrides_of(plan, cluster, boot), "provision=" + json.dumps(start), "agent.threads=1", STEPS]
    config = _common.CONFIGS / "rented.yaml"
    return [training_of(plan, f"nodes-{cluster}-{boot}-{seed}", config, seed, changes) for seed in range(plan.seeds)]


def daily(setup: NodesSetup, spec: str) -> FloatArray:
    """[days] cost under a provisioner, the mean over draws of the jobs' models."""
    costs = -play_windows(setup, make_provisioner(parse_spec(spec))).sum(axis=1)
    days = [workload.name.rpartition("/")[0] for workload in setup.workloads]
    return np.array([costs[[day == one for day in days]].mean() for one in dict.fromkeys(days)])


def known_arrivals(demand: Demand, boot: float) -> FloatArray:
    """[T + 1, G, 1] GPUs that are really requested in the next boot time, in the form of a forecast."""
    asked, minutes = demand.counts[..., 1].T, int(boot / TICK_S)
    total = np.concatenate([np.zeros_like(asked[:1]), asked.cumsum(axis=0)])
    later = np.minimum(np.arange(len(total)) + minutes, len(asked))
    known: FloatArray = (total[later] - total)[..., None]
    return known
