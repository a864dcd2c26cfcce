"""Sweeps: hyper-parameters of trainings, searched with Ray Tune and Optuna. Every trial is a run of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from rlpto.experiments.config import load_config
from rlpto.experiments.parallel import local_ray, workers
from rlpto.experiments.run_folder import begin_run, config_file
from rlpto.experiments.train import has_begun, make_evaluator, train_folder
from rlpto.io.errors import CheckpointError, ConfigError
from rlpto.io.files import file_there, is_there, write_text
from rlpto.io.interrupts import Interrupted
from rlpto.io.reading import LARGEST_YAML_BYTES, read_text
from rlpto.io.yaml_file import read_yaml

TUNE, TRIALS, SPACE, TABLE = "tune", "trials", "space.yaml", "sweep.csv"
"""In the folder of a sweep: Ray Tune's own state, the trials' runs, the space, and the table of results."""
GOAL = "reward"
"""What trials report: their best validation reward per job."""


def read_space(path: Path) -> dict[str, Any]:
    """Choices and ranges by key. Raises ConfigError, naming file and line, for one that is neither."""
    file = read_yaml(path)
    if not file.data:
        raise ConfigError(f"{path}: expected keys of the config, such as agent.ppo.learning_rate")
    found: dict[str, Any] = {}
    for key, given in file.data.items():
        value = _with_numbers(given) if isinstance(given, Mapping) else given
        if not (isinstance(value, list) and value) and not (isinstance(value, dict) and _is_range(value)):
            place = file.place((key,))
            raise ConfigError(f"{place}: {key}: expected a list of values, or low below high (log: true), got {given}")
        found[key] = value
    return found


def _with_numbers(ends: Mapping[Any, Any]) -> dict[Any, Any]:
    """The same with numbers such as 1e-4, which YAML takes for text."""
    numbers = dict(ends)
    for end in ("low", "high"):
        if isinstance(numbers.get(end), str):
            with suppress(ValueError):
                numbers[end] = float(numbers[end])
    return numbers


def _is_range(value: Mapping[Any, Any]) -> bool:
    """True for two numbers in order; both above 0 where logarithms are drawn from."""
    if not {"low", "high"} <= set(value) <= {"low", "high", "log"}:
        return False
    low, high = value["low"], value["high"]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)):
        return False
    return bool(low < high and (low > 0 or not value.get("log")))


def begin_sweep(folder: Path, config: Path, overrides: Sequence[str], space: Path) -> dict[str, Any]:
    """Write the configuration and the space of a sweep, and give back the choices and ranges in it.

    config, overrides: an experiment file, and what is changed about it in all trials.

    Nothing is written unless every key has a value that the configuration may take, and trials can be compared.
    Raises ConfigError otherwise, and CheckpointError if the folder holds a sweep already.
    """
    _check_installed()
    wanted = read_space(space)
    if is_there(folder / TUNE):
        raise CheckpointError(f"{folder}: holds a sweep; add --resume to go on, or use another --run-dir")
    first = {key: choices[0] if isinstance(choices, list) else choices["low"] for key, choices in wanted.items()}
    tried = [load_config(config, [*overrides, f"{key}={value}"]) for key, value in first.items()]
    if make_evaluator(tried[-1], folder, progress=False) is None:
        raise ConfigError(f"{config}: no validation windows, by which trials could be compared")
    begin_run(folder, load_config(config, overrides))
    write_text(folder / SPACE, read_text(space, "YAML", ConfigError, LARGEST_YAML_BYTES), "the space")
    return wanted


def resume_sweep(folder: Path, space: Path) -> dict[str, Any]:
    """The choices and ranges of a sweep that is there. Raises CheckpointError unless it is one of this space."""
    _check_installed()
    wanted = read_space(space)
    config_file(folder)
    if not is_there(folder / TUNE) or not file_there(folder / SPACE):
        raise CheckpointError(f"{folder}: no sweep there, expected a folder that `rlpto sweep` has written")
    known = read_text(folder / SPACE, "YAML", CheckpointError, LARGEST_YAML_BYTES)
    if known != read_text(space, "YAML", ConfigError, LARGEST_YAML_BYTES):
        raise CheckpointError(f"{folder / SPACE}: another space; expected the one that the sweep began with")
    return wanted


def _check_installed() -> None:
    if find_spec("ray") is None or find_spec("optuna") is None:
        raise ConfigError("rlpto sweep needs Ray Tune and Optuna: install rlpto[ray]")


def run_sweep(
    folder: Path, space: Mapping[str, Any], trials: int, jobs: int | None, seed: int, *, resume: bool, progress: bool
) -> list[dict[str, Any]]:
    """Let Ray Tune run, or go on with, the trials; a row for each that has finished, best first, and in TABLE.

    jobs: trainings side by side; None: one for each core. Raises ConfigError if all trials failed, and Interrupted
    if none has finished.
    """
    found = _tune(folder, space, trials, workers(jobs), seed, resume=resume, progress=progress)
    finished = [row for row in found if row.get(GOAL) is not None]
    if not finished and any(row["failed"] for row in found):
        raise ConfigError(f"{folder}: no trial has finished; the errors are in {folder / TUNE}")
    if not finished:
        raise Interrupted("no trial is finished; add --resume to the same command to go on")
    finished.sort(key=lambda row: (-float(row[GOAL]), row["trial"]))
    table = pd.DataFrame(finished).drop(columns="failed")
    write_text(folder / TABLE, table.to_csv(index=False, lineterminator="\n"), "the table of trials")
    return finished


def _tune(
    folder: Path, space: Mapping[str, Any], trials: int, at_once: int, seed: int, *, resume: bool, progress: bool
) -> list[dict[str, Any]]:
    """Let Ray Tune run, or go on with, the trials; a row for each, with its values and its reward."""
    with local_ray(at_once):
        from ray import tune
        from ray.tune.search.optuna import OptunaSearch

        place = folder.resolve() / TUNE
        trial = tune.with_resources(tune.with_parameters(run_trial, folder=str(folder.resolve())), {"cpu": 1})
        if resume:
            tuner = tune.Tuner.restore(str(place), trial, resume_unfinished=True, restart_errored=True)
        else:
            tuner = tune.Tuner(
                trial,
                param_space={key: _domain(value) for key, value in space.items()},
                tune_config=tune.TuneConfig(
                    metric=GOAL,
                    mode="max",
                    search_alg=OptunaSearch(seed=seed),
                    num_samples=trials,
                    max_concurrent_trials=at_once,
                ),
                run_config=tune.RunConfig(name=TUNE, storage_path=str(folder.resolve()), verbose=1 if progress else 0),
            )
        results = tuner.fit()
        return [
            {
                "trial": _short(result.path),
                **(result.config or {}),
                GOAL: (result.metrics or {}).get(GOAL),
                "failed": result.error is not None,
            }
            for result in (results[i] for i in range(len(results)))
        ]


def run_trial(point: Mapping[str, Any], folder: str) -> None:
    """One trial, in a process of its own: a training with some keys changed; goes on where it was interrupted."""
    from ray import tune

    run = Path(folder) / TRIALS / _short(tune.get_context().get_trial_dir())
    if not has_begun(run):
        begin_run(run, load_config(config_file(Path(folder)), [f"{key}={value}" for key, value in point.items()]))
    outcome = train_folder(run, progress=False)
    if outcome.finished:
        tune.report({GOAL: outcome.best, "steps": outcome.steps})


def _domain(value: Any) -> Any:
    """What Ray Tune draws from."""
    from ray import tune

    if isinstance(value, list):
        return tune.choice(value)
    low, high, log = value["low"], value["high"], bool(value.get("log"))
    if isinstance(low, int) and isinstance(high, int):
        return tune.lograndint(low, high + 1) if log else tune.randint(low, high + 1)
    return tune.loguniform(low, high) if log else tune.uniform(low, high)


def _short(trial_dir: str | None) -> str:
    """Name of a trial's run, from the folder Ray Tune has for it."""
    return "_".join(Path(trial_dir or "trial").name.split("_")[2:4])
