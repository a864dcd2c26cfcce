"""Training runs in separate folders: one agent, or several agents with different seeds. Imports torch."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlpto.agents.archive import NOT_TRAINED
from rlpto.agents.checkpoint import Identity
from rlpto.agents.settings import BEST, LAST
from rlpto.agents.training import train
from rlpto.agents.training_loop import BASELINES, EVENTS, HISTORY, Status, TrainingResult
from rlpto.agents.window_training import WEIGHTS, Player, train_on_windows
from rlpto.envs.episodes import EnvSetup
from rlpto.experiments.config import Config, load_config
from rlpto.experiments.environments import start_weights, training_setup
from rlpto.experiments.experiment import Experiment, refuse_for_learning
from rlpto.experiments.nodes_environments import nodes_setup
from rlpto.experiments.run_folder import (
    CONFIG_FILE,
    VERSIONS_FILE,
    Result,
    begin_run,
    deciding,
    differing_keys,
    git_commit,
    has_begun,
    members,
    read_run_config,
    refuse_foreign,
    versions,
)
from rlpto.io.errors import CheckpointError, ConfigError
from rlpto.io.files import file_there
from rlpto.io.interrupts import interruptible
from rlpto.policies.spec import parse_provisioner
from rlpto.provisioning.base import planned

PREPARATION_S = 6.0
"""Longest preparation of a training [s] that does not make its parts longer."""


def begin_training(config: Config, folder: Path, seeds: int, *, fresh: bool) -> None:
    """Write the configuration of a training into a folder and, if there are several seeds, into RUN/seed-K for each.

    Nothing is written unless the experiment is suitable for training. fresh: remove an existing training, which
    otherwise raises CheckpointError. An invalid experiment raises the error of its invalid part.
    """
    if not fresh and has_checkpoints(folder):
        raise CheckpointError(
            f"{folder}: holds a training; go on with `rlpto train --resume {folder}`, or, if it is finished, "
            f"`rlpto evaluate --run {folder}`; a new one needs another --run-dir, or --fresh to replace this one"
        )
    if not fresh:
        refuse_foreign(folder, config)
    refuse_for_learning(config.knowledge)
    check_whole_windows(config)
    experiments = by_load(config)
    start_weights(config)
    experiments[0].check_provision()
    if config.agent.learns == "nodes":
        experiments[0].check_renting()
    elif config.agent.learns == "windows" and experiments[0].shape.rented_groups:
        planned(experiments[0].provisioner(""))
    for experiment in experiments:
        experiment.windows("train")
    if fresh:
        _remove_training(folder)
    _remove_seeds_not_begun(folder)
    begin_run(folder, config)
    first = training_seed(config)
    for seed in range(first, first + seeds) if seeds > 1 else ():
        own = config.model_copy(update={"agent": config.agent.model_copy(update={"seed": seed})})
        begin_run(folder / f"seed-{seed}", own)


def check_whole_windows(config: Config) -> None:
    """Raise ConfigError if an agent that learns from whole windows would learn nothing, or nothing at some loads."""
    if config.agent.learns != "windows":
        return
    if config.simulator.max_hours is not None:
        raise ConfigError(
            f"simulator.max_hours: {config.simulator.max_hours:g}, but with agent.learns: windows the start heuristic "
            "has to finish the jobs of every window, with which others are compared; expected null"
        )
    if config.reward.time == 0 and config.reward.shortfall == 0:
        raise ConfigError(
            "reward.time and reward.shortfall: both 0, but with agent.learns: windows losses are shares of the start "
            "heuristic's cost of the two; expected one above 0"
        )
    loads, pairs = config.agent.loads or (), config.agent.whole_windows.rollout // 2
    if len(loads) > pairs:
        raise ConfigError(
            f"agent.loads: {len(loads)} loads, but agent.whole_windows.rollout plays {pairs} pairs of windows in an "
            f"update, each at one load; expected a rollout of at least {2 * len(loads)}, or fewer loads"
        )


def check_resumable(run: Path, config: Path | None, overrides: Sequence[str]) -> None:
    """Raise CheckpointError if the folder holds no training, or its training has another configuration."""
    there = read_run_config(run)
    if not has_begun(run):
        raise CheckpointError(f"{run}: no checkpoint there, expected a folder that `rlpto train` has written")
    wanted = there if config is None and not overrides else load_config(config or run / CONFIG_FILE, overrides)
    for key, old, new in differing_keys(there, wanted, Result.TRAINING):
        raise CheckpointError(
            f"{run}: trained with {key} = {old}, now it is {new}; expected the same, or a new training with --run-dir"
        )


def train_folder(
    run: Path, on_progress: Callable[[Status], None] | None = None, player: Player | None = None
) -> TrainingResult:
    """Train in a folder that contains a configuration, or continue from a checkpoint there.

    player: plays windows, if the agent learns from windows. Raises KeyboardInterrupt if Ctrl-C came before a clean stop
    was possible, and any error of experiment or checkpoint.
    """
    return train_in(run, read_run_config(run), on_progress=on_progress, player=player)


def train_in(
    run: Path,
    config: Config,
    known: Identity | None = None,
    *,
    on_progress: Callable[[Status], None] | None = None,
    player: Player | None = None,
    seconds: float = math.inf,
) -> TrainingResult:
    """Train by a configuration in a folder, or continue from a checkpoint there.

    known: identity of the training. Default: computed from the configuration. seconds: time after which the training
    stops between two updates, longer if its preparation took more than `PREPARATION_S`. `train_folder` explains the
    other arguments.
    """
    resume, began, until, due = has_begun(run), time.monotonic(), math.inf, False
    experiments = by_load(config)
    setup = training_windows(config, experiments)
    with interruptible() as interrupt:

        def report(status: Status) -> None:
            nonlocal until, due
            now = time.monotonic()
            due = now > until  # not before the first update
            if status.doing == "training" and not interrupt.learning:
                interrupt.learning = True
                until = now + seconds * max(1.0, (now - began) / PREPARATION_S)
            if on_progress is not None:
                on_progress(status)

        learn = partial(train_on_windows, player=player) if config.agent.learns == "windows" else train
        return learn(
            setup,
            config.agent,
            run,
            known or identity(config, experiments),
            validation_setup(config),
            resume=resume,
            on_progress=report,
            stop=lambda: interrupt.asked or due,
        )


def setup_for(config: Config) -> Callable[..., EnvSetup]:
    """Return the function that makes the agent's training environments."""
    return nodes_setup if config.agent.learns == "nodes" else training_setup


def training_windows(config: Config, experiments: list[Experiment]) -> EnvSetup:
    """Return the setup of all loads' training windows."""
    return setup_for(config)(experiments, "train", range(config.seed, config.seed + config.agent.window_seeds))


def by_load(config: Config) -> list[Experiment]:
    """Return an experiment for each training load (`agent.loads`). Raises ConfigError if the workload cannot be
    scaled."""
    loads = config.agent.loads
    if loads is None:
        return [Experiment(config)]
    workload = config.workload
    if workload.source == "files" and not workload.draws:
        raise ConfigError("agent.loads: files are taken as they are, expected null, or workload.draws of 1 or more")
    scaled = [workload.model_copy(update={"load": load}) for load in loads]
    return [Experiment(config.model_copy(update={"workload": one})) for one in scaled]


def validation_setup(config: Config) -> EnvSetup | None:
    """Return the setup of all loads' validation windows; None if the workload has no validation windows."""
    windows = config.workload.windows.model_copy(update={"limit": config.agent.validation_windows})
    limited = config.model_copy(update={"workload": config.workload.model_copy(update={"windows": windows})})
    experiments = by_load(limited)
    if not any(experiment.windows("validation", required=False) for experiment in experiments):
        return None
    return setup_for(config)(experiments, "validation")


def training_seed(config: Config) -> int:
    """Seed of the training."""
    return config.seed if config.agent.seed is None else config.agent.seed


def identity(config: Config, experiments: list[Experiment]) -> Identity:
    """Return the identity that a checkpoint must match to be resumed, with the description of its origin."""
    decisive = {
        "experiments": [experiment.outcome() for experiment in experiments],
        "env": config.env.model_dump(mode="json", exclude={"start"}),
        "start": start_weights(config).tolist(),
        "agent": deciding(config, Result.CHECKPOINT)["agent"],
        **({"provision": config.provision} if experiments[0].shape.rented_groups else {}),
        "windows": config.workload.windows.model_dump(mode="json"),
    }
    return Identity(digest_of(decisive), training_seed(config), provenance(config))


def digest_of(decisive: Mapping[str, Any]) -> str:
    """Digest of plain data that determines a training's result."""
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def provenance(config: Config) -> dict[str, Any]:
    """Origin of an agent, with the software of the machine but no other data about it; files are given by name."""
    settings = config.model_dump(exclude={"policies", "evaluation"})
    settings["provision"] = str(parse_provisioner(config.provision).with_paths(lambda path: Path(path).name))
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


def has_checkpoints(run: Path) -> bool:
    """Return True if a run, or any seed's folder in it, holds checkpoints."""
    return any(file_there(folder / name) for folder in members(run) for name in (BEST, LAST))


def summary(run: Path, outcome: TrainingResult) -> str:
    """One line on how a training ended."""
    text = f"{run}: {outcome.steps} {outcome.unit}"
    if outcome.best is None:
        return text
    gained, earned = f"gain over the start {outcome.best:+.2%}", f"reward per job {outcome.best:+.4f}"
    text += f", best validation {gained if outcome.unit == 'windows' else earned}"
    if outcome.best_steps == 0:
        return f"{text} before the first one: {run / BEST} holds the {NOT_TRAINED}"
    return text if outcome.best_steps is None else f"{text} after {outcome.best_steps} {outcome.unit}"


def how_to_go_on(folder: Path, kept: str = "") -> str:
    """Say how to continue an interrupted training. kept: saved progress, such as `300 steps`."""
    if not has_begun(folder):
        return "no checkpoint has been written yet; the same command starts again"
    return f"{kept and f'{kept} are kept; '}go on with: rlpto train --resume {folder}"


def _remove_seeds_not_begun(folder: Path) -> None:
    """Remove the folders of seeds whose training was interrupted before its first checkpoint: it may have had another
    configuration. Folders that hold anything else stay."""
    for run in members(folder):
        before = (CONFIG_FILE, VERSIONS_FILE, HISTORY, BASELINES)
        if run != folder and all(path.name in before or path.match(EVENTS) for path in run.iterdir()):
            shutil.rmtree(run)


def _remove_training(folder: Path) -> None:
    """Remove the files of a training, including all seeds."""
    for run in members(folder):
        for path in (*(run / name for name in (BEST, LAST, HISTORY, WEIGHTS)), *run.glob(EVENTS)):
            path.unlink(missing_ok=True)
        shutil.rmtree(run / BASELINES, ignore_errors=True)
        if run != folder:
            shutil.rmtree(run)
