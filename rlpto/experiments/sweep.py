"""Hyper-parameter sweeps with Optuna, in which each trial is a training in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError, model_validator

from rlpto.experiments.config import load_config
from rlpto.experiments.run_folder import Result, begin_run, config_file, differing_keys, has_begun, read_run_config
from rlpto.io.errors import CheckpointError, ConfigError, RlptoError
from rlpto.io.extras import extras
from rlpto.io.files import file_there, is_there, write_text
from rlpto.io.interrupts import Interrupted
from rlpto.io.reading import LARGEST_YAML_BYTES, read_text
from rlpto.io.settings import Settings
from rlpto.io.settings_text import inline_yaml
from rlpto.io.terminal import say
from rlpto.io.workers import Workers
from rlpto.io.yaml_file import read_yaml

if TYPE_CHECKING:
    import optuna
    import pandas as pd
    from optuna.distributions import BaseDistribution

STUDY, TRIALS, SPACE, TABLE = "study.log", "trials", "space.yaml", "sweep.csv"
"""Names in the folder of a sweep: Optuna's state, the trials' runs, the space, and the table of results."""
GOAL = "reward"
"""Name of the trials' result: their best validation reward per job."""


class Range(Settings):
    """Range from which numbers are drawn uniformly, or uniformly in their logarithm."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError("expected low below high, above 0 with log")
        return self


Space = dict[str, list[Any] | Range]
"""Choices and ranges by key."""


def read_space(path: Path) -> Space:
    """Read choices and ranges by key. Raises ConfigError, naming file and line, for a value that is neither."""
    file = read_yaml(path)
    if not file.data:
        raise ConfigError(f"{path}: expected keys of the config, such as agent.ppo.learning_rate")
    found: Space = {}
    for key, given in file.data.items():
        try:
            found[key] = given if isinstance(given, list) and given else Range.model_validate(given)
        except ValidationError:
            place = file.place((key,))
            wanted = "expected a list of values, or low below high (log: true, above 0)"
            raise ConfigError(f"{place}: {key}: {wanted}, got {given}") from None
    return found


def open_sweep(
    folder: Path, config: Path, overrides: Sequence[str], space: Path, on_wait: Callable[[str], None], *, resume: bool
) -> Space:
    """Begin or resume a sweep and return its choices and ranges. Configuration and space of a new sweep are written.

    config, overrides: an experiment file, and changes to it in all trials. on_wait: called with the name of the next
    slow step. Raises ConfigError, before anything is written, if a key's first value is invalid or trials cannot be
    compared; CheckpointError if the folder already holds a sweep, or has no sweep of this space and configuration to
    resume.
    """
    with extras("optuna"):
        pass
    wanted, text = read_space(space), read_text(space, "YAML", ConfigError, LARGEST_YAML_BYTES)
    if resume:
        there = read_run_config(folder)
        if not is_there(folder / STUDY) or not file_there(folder / SPACE):
            raise CheckpointError(f"{folder}: no sweep there, expected a folder that `rlpto sweep` has written")
        if read_text(folder / SPACE, "YAML", CheckpointError, LARGEST_YAML_BYTES) != text:
            raise CheckpointError(f"{folder / SPACE}: another space; expected the space of the sweep's first run")
        for key, old, new in differing_keys(there, load_config(config, overrides), Result.TRAINING):
            raise CheckpointError(f"{folder}: a sweep with {key} = {old}, now it is {new}; expected the same to resume")
        return wanted
    if is_there(folder / STUDY):
        raise CheckpointError(f"{folder}: holds a sweep; add --resume to go on, or use another --run-dir")
    first = {key: values.low if isinstance(values, Range) else values[0] for key, values in wanted.items()}
    load_config(config, overrides)
    try:
        tried = [load_config(config, [*overrides, change]) for change in changes(first)]
    except ConfigError as wrong:
        raise ConfigError(f"{space}: {str(wrong).removeprefix('--set: ')}") from None
    on_wait("checking that trials can be compared on validation windows")
    from rlpto.experiments.training_runs import check_whole_windows, validation_setup

    check_whole_windows(tried[-1])
    if validation_setup(tried[-1]) is None:
        raise ConfigError(f"{config}: no validation windows, by which trials could be compared")
    begin_run(folder, load_config(config, overrides))
    write_text(folder / SPACE, text, "the space")
    return wanted


def run_sweep(
    folder: Path,
    space: Space,
    trials: int,
    workers: Workers,
    seed: int,
    *,
    at_once: int,
    on_progress: Callable[[int], None],
) -> pd.DataFrame:
    """Run or continue the trials; return a row for each finished trial, best first, and write TABLE.

    at_once: parallel trainings. The values of a trial depend on the results of all trials but the `at_once` - 1 before
    it, whichever trial is finished first. on_progress: called with the number of trials that have ended. Raises
    ConfigError if all trials have failed, and Interrupted after Ctrl-C.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    from rlpto.experiments.parallel import train_all

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / STUDY)))
    study = optuna.create_study(storage=storage, study_name="sweep", direction="maximize", load_if_exists=True)
    known, domains = study.get_trials(deepcopy=False), {key: _domain(values) for key, values in space.items()}
    asked, reported = len(known), sum(trial.state.is_finished() for trial in known)
    runs, ended = list[Path](), dict[int, float | None]()

    def end(number: int, reward: float | None, error: RlptoError | None = None) -> None:
        ended[number] = reward
        if error is not None:
            say(f"rlpto: trial {number} has failed: {error}", err=True)
        on_progress(reported + len(ended))

    def begin(number: int, chosen: Mapping[str, Any]) -> None:
        run = folder / TRIALS / str(number)
        try:
            if not has_begun(run):
                begin_run(run, load_config(config_file(folder), changes(_point(space, chosen))))
            runs.append(run)
        except ConfigError as error:
            end(number, None, error)

    def go_on() -> None:
        """Begin all trials that may begin, and tell results in the order of the trials."""
        nonlocal asked, reported
        while asked < min(trials, reported + at_once) or reported in ended:
            if asked < min(trials, reported + at_once):
                own_seed = int(np.random.SeedSequence([seed, asked]).generate_state(1)[0])  # as in a resumed sweep
                study.sampler = optuna.samplers.TPESampler(seed=own_seed)
                asked += 1
                begin(asked - 1, study.ask(domains).params)
                continue
            reward = ended.pop(reported)
            study.tell(reported, reward, optuna.trial.TrialState.FAIL if reward is None else None)
            reported += 1

    on_progress(reported)
    for trial in known[reported:]:
        begin(trial.number, trial.params)
    go_on()
    try:
        for run, outcome in train_all(runs, workers):
            if isinstance(outcome, RlptoError):
                end(int(run.name), None, outcome)
            elif outcome.finished:
                end(int(run.name), outcome.best)
            go_on()
    except KeyboardInterrupt:
        finished = len(_write_table(folder, space, study))
        raise Interrupted(
            f"{finished} of {trials} trials are finished; add --resume to the same command to go on"
        ) from None
    table = _write_table(folder, space, study)
    if table.empty:
        raise ConfigError(f"{folder}: no trial has finished, all have failed")
    return table


def _write_table(folder: Path, space: Space, study: optuna.Study) -> pd.DataFrame:
    """Write TABLE and return it."""
    import pandas as pd
    from optuna.trial import TrialState

    rows = [
        {"trial": trial.number, **_point(space, trial.params), GOAL: trial.value}
        for trial in study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    ]
    # Columns of objects: others turn null into NaN, and integers next to it into floats.
    table = pd.DataFrame(rows, columns=["trial", *space, GOAL], dtype=object)
    table = table.sort_values([GOAL, "trial"], ascending=[False, True])
    write_text(folder / TABLE, table.to_csv(index=False, lineterminator="\n"), "the table of trials")
    return table


def _point(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a trial by key. Optuna chooses from lists by position: it stores no lists and no null."""
    return {key: values[params[key]] if isinstance(values, list) else params[key] for key, values in space.items()}


def changes(point: Mapping[str, Any]) -> list[str]:
    """Return the overrides that set the keys of a point."""
    return [f"{key}={inline_yaml(value)}" for key, value in point.items()]


def _domain(values: list[Any] | Range) -> BaseDistribution:
    """Return the search space of a key in Optuna's form."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(values, list):
        return CategoricalDistribution(range(len(values)))
    if isinstance(values.low, int) and isinstance(values.high, int):
        return IntDistribution(values.low, values.high, log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)
