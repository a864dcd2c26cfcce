"""From a configuration to a training, and what the verbs about agents share. Imports torch."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlpto.agents.checkpoint import Identity
from rlpto.agents.evolution import CHECKPOINT as EVOLUTION
from rlpto.agents.settings import BEST, LAST
from rlpto.agents.training import Outcome, Status, train
from rlpto.agents.validation import Evaluator
from rlpto.arrays import FloatArray
from rlpto.config import Config, resolved_yaml
from rlpto.environments import start_weights, training_setup
from rlpto.errors import ConfigError
from rlpto.evaluation.runner import Cell
from rlpto.evaluation.runner import evaluate as run_cells
from rlpto.experiment import Experiment
from rlpto.interrupts import interruptible
from rlpto.policies.base import Policy
from rlpto.policies.spec import policy_label
from rlpto.records import RunRecord
from rlpto.runs.folder import command_line, git_commit, versions

BASELINES = "baselines"
"""Folder of a run with the baselines' cells on its validation windows."""


def train_run(
    config: Config, folder: Path, *, resume: bool, progress: bool, told: Callable[[Status], None] | None = None
) -> Outcome:
    """Train the agent of a configuration, or go on; the folder has its configuration already.

    progress: show a bar while baselines run. Raises KeyboardInterrupt if Ctrl-C came before it could stop in good
    order, and what is wrong with the experiment or the checkpoint.
    """
    experiments = by_load(config)
    seeds = range(config.seed, config.seed + config.agent.window_seeds)
    setup = training_setup(experiments, "train", seeds)
    evaluator = make_evaluator(config, folder, progress)
    with interruptible() as interrupt:

        def tell(status: Status) -> None:
            interrupt.learning |= status.doing == "training"
            if told is not None:
                told(status)

        return train(
            setup,
            config.agent,
            folder,
            identity(config, experiments),
            evaluator,
            resume=resume,
            texts={"config": resolved_yaml(config), "command": command_line(sys.argv[1:])},
            told=tell,
            stop=lambda: interrupt.asked,
        )


def by_load(config: Config) -> list[Experiment]:
    """An experiment for each load that the agent is trained at."""
    loads = config.agent.loads
    if loads is None:
        return [Experiment(config)]
    if not loads:
        raise ConfigError("agent.loads: expected one or more loads, or null for workload.load")
    return [Experiment(with_load(config, load)) for load in loads]


def with_load(config: Config, load: float) -> Config:
    """The configuration at another load. Raises ConfigError if its workload cannot be scaled."""
    if config.workload.source == "files" and not config.workload.draws:
        raise ConfigError("agent.loads: files are taken as they are, expected null, or workload.draws of 1 or more")
    return config.model_copy(update={"workload": config.workload.model_copy(update={"load": load})})


def make_evaluator(config: Config, folder: Path, progress: bool) -> Evaluator | None:
    """The validation windows of all loads; None where the workload has none."""
    windows = config.workload.windows.model_copy(update={"limit": config.agent.validation_windows})
    limited = config.model_copy(update={"workload": config.workload.model_copy(update={"windows": windows})})
    experiments = by_load(limited)
    if not any(experiment.windows("validation", required=False) for experiment in experiments):
        return None
    setup = training_setup(experiments, "validation")
    places = [
        (experiment, window)
        for experiment in experiments
        for window in experiment.windows("validation")
        if experiment.jobs(window, config.seed)
    ]
    specs = ranked_policies(config)

    def baselines() -> Mapping[str, FloatArray]:
        rewards: dict[str, list[float]] = {spec: [] for spec in specs}
        for number, experiment in enumerate(experiments):
            own = [window for at, window in places if at is experiment]
            cells = [Cell(spec, window, config.seed) for spec in specs for window in own]
            done = run_cells(
                cells,
                experiment.run_cell,
                folder / BASELINES / str(number),
                progress=progress and bool(cells),
                config=experiment.outcome(),
                weights=config.reward,
            )
            for finished in done:
                rewards[finished.cell.policy].append(finished.metrics["reward"])
        return {policy_label(spec): np.array(values) for spec, values in rewards.items()}

    middle, window = places[len(places) // 2]

    def record(policy: Policy) -> RunRecord:
        return middle.run_policy(policy, window, config.seed)

    return Evaluator(setup, baselines, record)


def ranked_policies(config: Config) -> list[str]:
    """Specs of the policies that the agent is compared with. Raises ConfigError for a name that is not there."""
    labels = {policy_label(spec): spec for spec in config.policies}
    if config.agent.baselines is None:
        return list(labels.values())
    for name in config.agent.baselines:
        if name not in labels:
            raise ConfigError(f"agent.baselines: {name} is none of the policies: {', '.join(labels)}")
    return [labels[name] for name in config.agent.baselines]


def training_seed(config: Config) -> int:
    """Seed of the training."""
    return config.seed if config.agent.seed is None else config.agent.seed


def identity(config: Config, experiments: list[Experiment]) -> Identity:
    """What a checkpoint must agree with to be resumed, and what is told about its origin."""
    decisive = {
        "experiments": [experiment.outcome() for experiment in experiments],
        "env": config.env.model_dump(mode="json", exclude={"start"}),
        "start": start_weights(config).tolist(),
        "agent": config.agent.model_dump(mode="json", exclude={"device", "threads", "seed"}),
        "windows": config.workload.windows.model_dump(mode="json"),
    }
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return Identity(digest, training_seed(config), provenance(config))


def provenance(config: Config) -> dict[str, Any]:
    """Where an agent is from, without anything about the machine but its software; files go by their names."""
    settings = config.model_dump(exclude={"policies", "evaluation"})
    software = {name: version for name, version in versions().items() if name != "platform"}
    return {"config": _nameable(settings), "commit": git_commit(), "versions": software}


def _nameable(value: Any) -> Any:
    """Plain data in which paths are file names."""
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Mapping):
        return {key: _nameable(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_nameable(entry) for entry in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def members(run: Path) -> list[Path]:
    """Folders of the trainings in a run: its own, or one for each seed."""
    found = sorted(run.glob("seed-*"), key=lambda path: (len(path.name), path.name))
    return [path for path in found if path.is_dir()] or [run]


def has_checkpoints(run: Path) -> bool:
    """True if a run, or one of its seeds, holds checkpoints."""
    return any((folder / name).is_file() for folder in members(run) for name in (BEST, LAST))


def has_begun(run: Path) -> bool:
    """True if there is something in a run, or one of its seeds, to go on from: a checkpoint, or generations."""
    return any((folder / name).is_file() for folder in members(run) for name in (LAST, EVOLUTION))
