"""What studies share: their size, trainings and cells, which are run once and kept, figures of cells with their
intervals, and runs of published systems."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import _common
import numpy as np
import pandas as pd
from pydantic import Field

from rlpto.agents.settings import LAST
from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.policy import Policy
from rlpto.core.queues import QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.runner import Cell, FinishedCell, config_fingerprint
from rlpto.evaluation.runner import evaluate as run_cells
from rlpto.evaluation.statistics import Interval, bootstrap_interval
from rlpto.experiments.config import Config, load_config
from rlpto.experiments.experiment import prepare
from rlpto.experiments.inputs import runner_for
from rlpto.experiments.run_folder import spec_files
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import ConfigError
from rlpto.io.files import digest, file_there, write_text
from rlpto.io.reading import read_json
from rlpto.io.settings import Settings
from rlpto.io.workers import LocalWorkers, Workers
from rlpto.performance.compile import compile_tables
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.parameter_server import ServerParams
from rlpto.performance.profiles import builtin_profiles
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.policies.spec import policy_label
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

if TYPE_CHECKING:
    from rlpto.ray_cluster.worker.training import Trainer

Workload = Literal["synthetic", "philly", "pollux"]
TIME_ONLY = ("reward.accuracy=0", "reward.resources=0", "reward.rescale=0")
"""Overrides that reward time alone, for comparisons of JCT."""
MISSION = ("reward.accuracy=0", "reward.rescale=0", "reward.shortfall=8", "reward.resources=0.15")
"""Overrides for the quickstart's reward, of time, missing accuracy and GPU-hours."""

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

MAIN = "main"
"""The training of `agents`."""
AGENT, TUNED = "agent", "tuned_index"
"""Names in tables: the mean over the agents of all seeds, and the tuned index."""
MEMBER = re.compile(rf"{AGENT}-\d+")
"""Labels of the agents of single seeds."""
MORE = {"pollux": ("workload.draws=100",)}
"""Overrides of trainings: number of windows drawn from each file; evaluations of policies draw fewer."""


class Plan(Settings):
    """The size of a study, and the place of its cells.

    seeds: number of seeds of training, or of a window's jobs. windows: most windows of each workload and load. draws:
    repetitions of every test window, with other models and work of the jobs, if policies are compared by reward.
    training: number of windows that every training plays. Default: the config's. workers: where trainings and cells
    run. data: folder with real traces and profiles, or None.
    """

    folder: Path
    cells: Path
    data: Path | None = None
    workers: Any = LocalWorkers()  # `Workers`
    workloads: Annotated[tuple[Workload, ...], Field(min_length=1)] = ("synthetic", "philly", "pollux")
    loads: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)] = (0.5, 0.7, 0.9, 1.1)
    seeds: Annotated[int, Field(ge=1)] = 3
    windows: Annotated[int, Field(ge=1)] = 26
    draws: Annotated[int, Field(ge=1)] = 5
    training: int | None = None
    split: Literal["test", "validation", "train"] = "test"

    def places(self) -> list[tuple[Workload, float]]:
        """Workloads and loads of the study."""
        return [(workload, load) for workload in self.workloads for load in self.loads]

    def config(self, workload: Workload, load: float, *overrides: str, windows: int | None = None) -> Config:
        """Configuration of a workload at a load. windows: most windows; the plan's own limit applies too."""
        limit = min(self.windows, windows or self.windows)
        return load_config(
            config_file(workload), [f"workload.load={load}", f"workload.windows.limit={limit}", *overrides]
        )


Row = Mapping[str, object]
"""A row of a table, by column."""


@dataclass
class Part:
    """One table of a study, and the figures that claims are about, by name.

    limits: upper limits of claims that depend on the run, by figure.
    """

    figures: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)


def config_file(workload: str) -> Path:
    """The experiment file of a workload."""
    return _common.CONFIGS / "results" / f"{workload}.yaml"


def tuned(name: str) -> str:
    """Spec of the index with a file of weights in configs/tuned."""
    return f"index:weights={_common.CONFIGS / 'tuned' / name}.yaml"


# Trainings ----------------------------------------------------------------------------------------------------------


def agents(plan: Plan, workload: str) -> list[str]:
    """Specs of the agents of all seeds, labelled agent-0, agent-1 ...; missing ones are trained first.

    They learn index weights for the quickstart's reward, as its agent does.
    """
    from rlpto.agents.window_training import WEIGHTS

    small = ("agent.whole_windows.network=0", "agent.whole_windows.windows=25000")
    overrides = (*MISSION, *small, *MORE.get(workload, ()))
    runs = [trained(plan, workload, MAIN, overrides, seed) for seed in range(plan.seeds)]
    return [f"index:label={AGENT}-{seed},weights={run / WEIGHTS}" for seed, run in enumerate(runs)]


def trained(plan: Plan, workload: str, variant: str, overrides: Sequence[str], seed: int) -> Path:
    """Folder of a training on whole windows at all loads, which is run or resumed unless it is finished."""
    short = () if plan.training is None else (f"agent.whole_windows.windows={plan.training}",)
    changes = [f"agent.loads=[{','.join(map(str, plan.loads))}]", *overrides, *short]
    return training_of(plan, f"{workload}-{variant}-{seed}", config_file(workload), seed, changes)


def training_of(plan: Plan, name: str, config: Path, seed: int, changes: Sequence[str]) -> Path:
    """Folder of a training, which is run or resumed unless it is finished.

    Raises ConfigError if it fails, or if the folder holds another training.
    """
    run = plan.folder / "training" / name
    wanted = {"config": config.stem, "seed": seed, "overrides": changes}
    finished = run / "finished.json"
    if finished.is_file():
        if read_json(finished, "a note on a training", ConfigError) != wanted:
            raise ConfigError(f"{run}: a training with other settings is there, expected {wanted}: remove the folder")
    else:
        _train(run, config, seed, changes, plan.workers)
        write_text(finished, json.dumps(wanted, indent=1) + "\n", "a note")
    return run


def _train(run: Path, config: Path, seed: int, overrides: Sequence[str], workers: Workers) -> None:
    """Train, or resume a training of the same settings, by the command that users type."""
    from rlpto.experiments.ray_workers import RayWorkers

    where = ["--workers", workers.address] if isinstance(workers, RayWorkers) else []
    changes = [text for override in overrides for text in ("--set", override)]
    given = [config, "--resume" if file_there(run / LAST) else "--run-dir", run, "--seed", str(seed), *changes]
    _common.progress(f"training {run.name}")
    if code := exit_code(["train", *given, *where]):
        raise ConfigError(f"{run}: training ended with exit code {code}")


def exit_code(words: Sequence[object], **more: Any) -> int:
    """Exit code of a command of `rlpto`, which runs in a process of its own. more: arguments of the process.

    Ctrl-C reaches the command too. It has the time that it needs to write a checkpoint and to end what it has started;
    then KeyboardInterrupt is raised.
    """
    interrupted = False
    with subprocess.Popen([sys.executable, "-m", "rlpto.cli.main", *map(str, words)], **more) as process:
        while process.poll() is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                interrupted = True
    if interrupted or process.returncode in (INTERRUPTED, -signal.SIGINT):
        raise KeyboardInterrupt
    return process.returncode


# Cells --------------------------------------------------------------------------------------------------------------


def best_of(cells: pd.DataFrame, policies: Sequence[str]) -> list[str]:
    """The policies by mean reward, best first."""
    ranked = cells[cells["policy"].isin(policies)].groupby("policy")["reward"].mean()
    return list(ranked.sort_values(ascending=False, kind="stable").index)


def finished(
    plan: Plan,
    config: Config,
    specs: Sequence[str],
    name: str,
    seeds: Sequence[int] = (0,),
    windows: Callable[[str], bool] = lambda _: True,
) -> list[FinishedCell]:
    """Cells of policies on the config's windows that `windows` accepts: policies first, then seeds, then windows.

    Cells carry the labels of their policies. Results for the same inputs are read back: folders are named after
    digests of all inputs, hence a retrained agent or a new config never meets old cells.
    """
    experiment = prepare(config)
    names = [window for window in experiment.windows(plan.split) if windows(window)]
    outcome = experiment.outcome()
    folder = plan.cells / f"{name}-{config_fingerprint(outcome)[:8]}"
    run = runner_for(plan.workers, config.model_copy(update={"policies": tuple(dict.fromkeys(specs))}))
    done = list[FinishedCell]()
    for spec in dict.fromkeys(specs):
        _common.progress(f"{name}: {policy_label(spec)}")
        cells = [Cell(spec, window, seed) for seed in seeds for window in names]
        # A retrained agent in the same file is another policy.
        files = "".join(digest(file) for file in spec_files(spec))
        out = folder / (hashlib.sha256(files.encode()).hexdigest()[:8] if files else "plain")
        done += run_cells(cells, run, out, False, plan.workers, config=outcome, weights=config.reward)
    return [replace(cell, cell=replace(cell.cell, policy=policy_label(cell.cell.policy))) for cell in done]


def with_mean_agent(found: pd.DataFrame) -> pd.DataFrame:
    """Add rows for the policy AGENT: on every window and seed, the mean over the agents of all training seeds."""
    members = found["policy"].str.fullmatch(MEMBER.pattern)
    places = ["knowledge", "window", "seed"]
    mean = found[members].drop(columns="policy").groupby(places, as_index=False).mean().assign(policy=AGENT)
    return pd.concat([mean, found], ignore_index=True)[list(found.columns)]


# Figures of cells ---------------------------------------------------------------------------------------------------


def by_window(cells: pd.DataFrame, policy: str, metric: str) -> FloatArray:
    """[windows] a metric of a policy in order of the windows: the mean over the policy's draws of each window."""
    mine = cells[cells["policy"] == policy].groupby("window")[metric].mean().sort_index()
    return mine.to_numpy(dtype=np.float64)


def difference(cells: pd.DataFrame, policy: str, other: str) -> Interval:
    """Mean over windows of the reward of `policy` minus the reward of `other`, with its interval."""
    return bootstrap_interval(by_window(cells, policy, "reward") - by_window(cells, other, "reward"))


def ratio_of_means(mine: FloatArray, its: FloatArray) -> Interval:
    """Return the mean of `mine` [n] over the mean of `its` [n], with an interval from resampled pairs."""
    every = np.arange(len(mine), dtype=np.float64)  # the statistic looks pairs up in order, by how often they are drawn
    return bootstrap_interval(every, statistic=lambda _, counts: (counts @ mine) / (counts @ its))


def geometric_mean(logs: FloatArray) -> Interval:
    """Geometric mean of ratios, by their logarithms [n], with the interval of the mean logarithm."""
    found = bootstrap_interval(logs)
    estimate, low, high = np.exp([found.estimate, found.low, found.high]).tolist()
    return Interval(estimate, low, high, found.samples)


def shown(interval: Interval, form: str) -> str:
    """An estimate with its interval."""
    return f"{interval.estimate:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


# Runs of published systems ------------------------------------------------------------------------------------------

DIGITS = 1437
"""Number of samples in the digits' training set."""


def play(
    nodes: ClusterShape | Sequence[Node],
    jobs: Sequence[Job],
    tables: SpeedTables,
    policy: Policy,
    settings: SimulatorSettings | None = None,
    queue: QueueSettings | None = None,
    **more: Any,
) -> RunRecord:
    """Let a policy schedule the jobs until all are over. more: arguments of the cluster."""
    cluster = SimulatedCluster(tuple(nodes), jobs, tables, settings or SimulatorSettings(), **more)
    return run(cluster, policy, queue or QueueSettings(), RewardWeights())


def server_tables(laws: Mapping[str, ServerParams], batch: int, most_workers: int, **changes: Any) -> SpeedTables:
    """Tables of models that train with parameter servers by these laws. changes: changes to the profile of cifar10."""
    base = builtin_profiles()["cifar10"]
    profiles = {name: replace(base, name=name, throughput=law, **changes) for name, law in laws.items()}
    types = [JobType(name, batch) for name in laws]
    return compile_tables(FittedProfiles(profiles), types, most_workers, 4, choose_servers=True)


def digits_trainer(program: str, batch_size: int, epochs: float, rule: str, seed: int, **options: Any) -> Trainer:
    """A training of scikit-learn's digits in this process. rule: rule of the learning rate. options: of the program."""
    from rlpto.ray_cluster.messages import JobSpec
    from rlpto.ray_cluster.worker.training import Trainer

    named = ("job", "digits", "digits", f"rlpto.ray_cluster.programs.digits:{program}", "none")
    sized = (batch_size, epochs, DIGITS, options)
    return Trainer(JobSpec(*named, *sized, lr_rule=rule, seed=seed, device="cpu"))  # type: ignore[arg-type]
