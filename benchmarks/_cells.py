"""Cells of studies, each run once and kept: which policies run on which windows, and the trainings of agents."""

from __future__ import annotations

import hashlib
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import _common
import numpy as np
import pandas as pd
from _plan import MAIN, Plan, PlannedRun, Study, config_file

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import Policy
from rlpto.core.records import RunRecord
from rlpto.evaluation.runner import Cell, FinishedCell, config_fingerprint
from rlpto.evaluation.runner import evaluate as run_cells
from rlpto.evaluation.statistics import Interval, bootstrap_interval
from rlpto.evaluation.tables import frame
from rlpto.experiments.config import Config, spec_files
from rlpto.experiments.experiment import Experiment, prepare
from rlpto.experiments.training_runs import has_begun
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ConfigError
from rlpto.io.files import digest, write_text
from rlpto.io.reading import parsing, read_json
from rlpto.policies.spec import policy_label

AGENT, START, TUNED = "agent", "agent_start", "tuned_index"
"""Names in tables: the mean of the agents of all seeds, what they start from, and the tuned index."""
MEMBER = re.compile(rf"({AGENT}|{START})-\d+")
"""Agents of single seeds, and what they start from, by label."""
KEEPING = "keeping "
"""Before a policy's spec: the same policy, but no job gives up a GPU before it finishes."""
FIRST = "checkpoints/000000000.zip"
"""The checkpoint of a training before its first step."""
GAINED = 0.9
"""Share of its accuracy from which a job counts as converging, where the queue has that rule."""


# Trainings ----------------------------------------------------------------------------------------------------------


@contextmanager
def billed(plan: Plan, what: str) -> Iterator[None]:
    """Add the CPU time of a block, its processes included, to the account of `what`."""
    before = _cpu_seconds()
    try:
        yield
    finally:
        account = cpu_account(plan)
        account[what] = account.get(what, 0.0) + _cpu_seconds() - before
        write_text(plan.folder / "cpu.json", json.dumps(account, indent=1) + "\n", "the account of CPU time")


def cpu_account(plan: Plan) -> dict[str, float]:
    """CPU seconds so far, by what they went into; work that was found done costs nothing."""
    path, expected = plan.folder / "cpu.json", "an account of CPU time"
    if not path.is_file():
        return {}
    with parsing(path, expected, ConfigError):
        return {name: float(seconds) for name, seconds in read_json(path, expected, ConfigError).items()}


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def agents(plan: Plan, workload: str, variant: str = MAIN, overrides: Sequence[str] = ()) -> list[str]:
    """Specs of the agents of all seeds, labelled agent-0, agent-1 ..., each trained if that is not done yet.

    variant: name of the training, with `overrides` of the configuration.
    """
    runs = [trained(plan, workload, variant, overrides, seed) for seed in range(plan.seeds)]
    return [f"agent:label={AGENT}-{seed},run={run}" for seed, run in enumerate(runs)]


def starts(plan: Plan, workload: str, variant: str = MAIN, overrides: Sequence[str] = ()) -> list[str]:
    """Specs of the agents of all seeds before PPO has learned anything: the warm starts, kept as first checkpoints.

    Where all seeds start from one and the same file, the first stands for all.
    """
    seeds = range(1 if variant == MAIN else plan.seeds)
    runs = [trained(plan, workload, variant, overrides, seed) for seed in seeds]
    return [f"agent:label={START}-{seed},file={run / FIRST}" for seed, run in enumerate(runs)]


def trained(plan: Plan, workload: str, variant: str, overrides: Sequence[str], seed: int) -> Path:
    """Folder of a training; it is run, or resumed, only if it is not finished.

    Raises ConfigError if it fails, or if the folder holds a training of something else.
    """
    run = (plan.folder / "training" / f"{workload}-{variant}-{seed}").resolve()
    steps = () if plan.steps is None else (f"agent.steps={plan.steps}",)
    changes = [f"agent.loads=[{','.join(map(str, plan.loads))}]", *steps, *overrides]
    wanted = {"config": workload, "seed": seed, "overrides": changes}
    finished = run / "finished.json"
    if finished.is_file():
        if read_json(finished, "a note on a training", ConfigError) != wanted:
            raise ConfigError(f"{run}: a training with other settings is there, expected {wanted}: remove the folder")
    else:
        with billed(plan, "training"):
            _train(run, config_file(workload), seed, changes)
        write_text(finished, json.dumps(wanted, indent=1) + "\n", "a note")
    return run


def _train(run: Path, config: Path, seed: int, overrides: Sequence[str]) -> None:
    """Train, or resume, by the command that users type, in a process of its own."""
    changes = [text for override in overrides for text in ("--set", override)]
    given = ["--resume", run] if has_begun(run) else [config, "--run-dir", run, "--seed", str(seed), *changes]
    _common.progress(f"training {run.name}")
    code = subprocess.run([sys.executable, "-m", "rlpto.cli.main", "train", *given], check=False).returncode
    if code < 0 or code == 130:
        raise KeyboardInterrupt
    if code != 0:
        raise ConfigError(f"{run}: training ended with exit code {code}")


# Cells --------------------------------------------------------------------------------------------------------------


def cells_of(plan: Plan, study: Study) -> pd.DataFrame:
    """Metrics of all runs of a study: one row a policy, window and draw, with label, workload and load.

    With contenders, the first draw of each window is for all policies; its best ones, the agents and their start have
    further draws, which say more about who is ahead where windows differ by the draw of their jobs.
    """
    tables = []
    for workload, load in plan.places():
        for run in study.runs:
            config = plan.config(workload, load, *_filled(run.see, workload), windows=run.windows)
            specs, name = specs_of(plan, config, workload, run), run.cells or f"{workload}-{load:g}"
            with billed(plan, "evaluation"):
                cells = evaluated(plan, config, specs, name)
                if study.contenders:
                    own = [spec for spec in specs if spec not in config.policies]
                    best = best_of(cells, list(map(label_of, config.policies)))[: study.contenders]
                    further = [*(spec for spec in config.policies if label_of(spec) in best), *own]
                    drawn = evaluated(plan, config, further, name, plan.draws)
                    cells = pd.concat([cells, drawn[drawn["seed"] != config.seed]], ignore_index=True)
            tables.append(cells.assign(**({"label": run.label} if run.label else {}), workload=workload, load=load))
    return pd.concat(tables)


def best_of(cells: pd.DataFrame, policies: Sequence[str]) -> list[str]:
    """The policies by mean reward, best first."""
    ranked = cells[cells["policy"].isin(policies)].groupby("policy")["reward"].mean()
    return list(ranked.sort_values(ascending=False, kind="stable").index)


def specs_of(plan: Plan, config: Config, workload: str, run: PlannedRun) -> list[str]:
    """Specs of the policies of a run, KEEPING before each where no job shall give up a GPU."""
    training = plan, workload, run.variant, _filled(run.overrides, workload)
    own = {label_of(spec): spec for spec in config.policies}
    specs: list[str] = []
    for policy in run.policies:
        if policy == "config":
            specs += config.policies
        elif policy == "agents":
            specs += agents(*training)
        elif policy == "starts":
            specs += starts(*training)
        else:
            specs += [own[policy]] if policy in own else _filled([policy], workload)
    return [KEEPING + spec if run.keep else spec for spec in specs]


def _filled(texts: Iterable[str], workload: str) -> list[str]:
    """Texts of studies.yaml with the names in braces filled in."""
    return [text.format(configs=_common.CONFIGS, workload=workload, gained=GAINED) for text in texts]


def evaluated(plan: Plan, config: Config, specs: Sequence[str], name: str, draws: int = 1) -> pd.DataFrame:
    """Metrics of policies on the config's windows: one row a policy, window and draw, the lower bound among them.

    The sample is windows: agents of several seeds are there one by one and, averaged in every window, as AGENT
    (and what they start from as START). Draws of a window differ by their seed.
    """
    done = finished(plan, config, specs, name, range(config.seed, config.seed + draws))
    return with_mean_agent(frame(done, config.knowledge.mode), ["knowledge", "window", "seed"])


def finished(
    plan: Plan,
    config: Config,
    specs: Sequence[str],
    name: str,
    seeds: Sequence[int] = (0,),
    windows: Callable[[str], bool] = lambda _: True,
) -> list[FinishedCell]:
    """Cells of policies on those of the config's windows that are wanted: policies first, then seeds, then windows."""
    experiment = prepare(config)
    names = [window for window in experiment.windows(plan.split) if windows(window)]
    cells = [Cell(spec, window, seed) for spec in specs for seed in seeds for window in names]
    return kept_cells(plan, cells, partial(run_cell, config), experiment.outcome(), name, config)


def kept_cells(
    plan: Plan,
    cells: Sequence[Cell],
    run: Callable[[Cell], RunRecord],
    outcome: Mapping[str, Any],
    name: str,
    config: Config,
) -> list[FinishedCell]:
    """Finished cells under the labels of their policies; what has been run with the same inputs is read back.

    Folders are called after digests of all inputs: a retrained agent or a new config never meets old cells.
    """
    folder = plan.cells / f"{name}-{config_fingerprint(outcome)[:8]}"
    done: list[FinishedCell] = []
    for spec in dict.fromkeys(cell.policy for cell in cells):
        _common.progress(f"{name}: {label_of(spec)}")
        mine = [cell for cell in cells if cell.policy == spec]
        out = folder / files_digest(spec)
        done += run_cells(mine, run, out, False, plan.jobs, config=outcome, weights=config.reward)
    return [replace(cell, cell=replace(cell.cell, policy=label_of(cell.cell.policy))) for cell in done]


def label_of(spec: str) -> str:
    """What a policy is called in tables."""
    return policy_label(spec.removeprefix(KEEPING))


def files_digest(spec: str) -> str:
    """Digest of the files that a policy's spec names: another agent in the same place is another policy."""
    files = spec_files(spec)
    if not files:
        return "plain"
    return hashlib.sha256("".join(digest(file) for file in files).encode()).hexdigest()[:8]


def run_cell(config: Config, cell: Cell) -> RunRecord:
    """Run one cell; with the config bound by functools.partial it can be sent to other processes."""
    experiment = prepare(config)
    return experiment.run_policy(make(experiment, cell.policy), cell.window, cell.seed)


def make(experiment: Experiment, spec: str) -> Policy:
    """A policy by its spec, which may begin with KEEPING."""
    policy = experiment.policy(spec.removeprefix(KEEPING))
    return Keeping(policy) if spec.startswith(KEEPING) else policy


class Keeping:
    """A policy whose jobs keep their GPUs until they finish: what is free is all it can give.

    Running jobs get no fewer than they hold; wishes for more are met in queue order while GPUs are free.
    """

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self._policy = policy

    def reset(self, seed: int) -> None:
        """Reset the policy."""
        self._policy.reset(seed)

    def __call__(self, state: ClusterState) -> Allocation:
        """The policy's wishes, as far as they can be met without taking from anyone."""
        jobs, wish = state.jobs, self._policy(state).gpus
        gpus = jobs.keepable.copy()
        free = state.capacity - int(gpus.sum())
        for row in np.flatnonzero(wish > gpus):
            given = min(int(wish[row]), int(gpus[row]) + max(free, 0))
            if given >= jobs.min_gpus[row]:
                free -= given - int(gpus[row])
                gpus[row] = given
        return Allocation(gpus)


def with_mean_agent(found: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """The rows with AGENT and START as further policies: in every place (columns `by`) the mean over all seeds."""
    means = [
        members.drop(columns="policy").groupby(list(by), as_index=False).mean().assign(policy=name)
        for name in (AGENT, START)
        if len(members := found[found["policy"].str.fullmatch(rf"{name}-\d+")])
    ]
    return pd.concat([found, *means], ignore_index=True)[list(found.columns)]


# Figures of cells ---------------------------------------------------------------------------------------------------


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


def shown(interval: Interval, form: str) -> str:
    """An estimate with its interval."""
    return f"{interval.estimate:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def ends_of(name: str, interval: Interval) -> dict[str, float]:
    """An estimate and the ends of its interval, as columns of a frame."""
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}
