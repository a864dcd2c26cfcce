"""Parallel trainings, each in a separate Ray task: several seeds (sequential without Ray or on one core), and
hyper-parameter sweeps with Ray Tune and Optuna, in which each trial is a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError, model_validator

from rlpto.experiments.config import load_config
from rlpto.experiments.run_folder import begin_run, config_file
from rlpto.io.cores import cores
from rlpto.io.errors import CheckpointError, ConfigError, RlptoError
from rlpto.io.extras import extras
from rlpto.io.files import file_there, is_there, write_text
from rlpto.io.interrupts import Interrupted, handler_kept
from rlpto.io.reading import LARGEST_YAML_BYTES, read_text
from rlpto.io.settings import Settings
from rlpto.io.yaml_file import read_yaml

if TYPE_CHECKING:
    import pandas as pd

STOP_TIMEOUT_S = 60.0
"""Longest time for trainings to stop cleanly after Ctrl-C [s]."""
TUNE, TRIALS, SPACE, TABLE = "tune", "trials", "space.yaml", "sweep.csv"
"""Names in the folder of a sweep: Ray Tune's state, the trials' runs, the space, and the table of results."""
GOAL = "reward"
"""Name of the trials' result: their best validation reward per job."""


def workers(wanted: int | None) -> int:
    """Return the number of parallel trainings: as wanted, by default one per core; one without Ray."""
    if find_spec("ray") is None:
        return 1
    return wanted or cores()


def side_by_side(runs: Sequence[Path], at_once: int, on_finished: Callable[[Path, str | None], None]) -> None:
    """Train, or continue, in every folder. on_finished: called with each folder and its summary (None if it failed).

    Raises the first RlptoError of a training, after all others have ended; KeyboardInterrupt after Ctrl-C, once the
    trainings have left checkpoints.
    """
    failed: list[str] = []
    with local_ray(at_once):
        import ray

        remote = ray.remote(num_cpus=1, max_retries=0)(train_member)
        pending = {remote.remote(str(run.resolve())): run for run in runs}
        try:
            while pending:
                done, _ = ray.wait(list(pending), timeout=1.0)
                for reference in done:
                    run, answer = pending.pop(reference), ray.get(reference)
                    if answer["error"]:
                        failed.append(answer["error"])
                    on_finished(run, answer["summary"] and answer["summary"].replace(str(run.resolve()), str(run)))
        except KeyboardInterrupt:
            print("rlpto: stopping after these updates", file=sys.stderr)
            for reference in pending:
                ray.cancel(reference, force=False)
            ray.wait(list(pending), num_returns=len(pending), timeout=STOP_TIMEOUT_S)
            raise
    if failed:
        raise RlptoError(failed[0])


@contextmanager
def local_ray(cpus: int) -> Iterator[None]:
    """Run a Ray instance, private to this process, for the time of a block."""
    from rlpto.ray_cluster.nodes.environment import set_variables
    from rlpto.ray_cluster.nodes.local import LocalCluster

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        with LocalCluster([], cpus):
            yield
    finally:
        set_variables({"PYTHONPATH": before})


def train_member(folder: str) -> dict[str, str | None]:
    """Train in a separate process, continuing from a checkpoint if there is one. Returns the text to print."""
    from rlpto.experiments.training_runs import summary, train_folder

    run = Path(folder)
    try:
        outcome = train_folder(run)
    except RlptoError as error:
        return {"error": str(error), "summary": None}
    return {"error": None, "summary": summary(run, outcome)}


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
    compared; CheckpointError if the folder already holds a sweep, or has no sweep of this space to resume.
    """
    with extras("ray", "optuna"):
        pass
    wanted, text = read_space(space), read_text(space, "YAML", ConfigError, LARGEST_YAML_BYTES)
    if resume:
        config_file(folder)
        if not is_there(folder / TUNE) or not file_there(folder / SPACE):
            raise CheckpointError(f"{folder}: no sweep there, expected a folder that `rlpto sweep` has written")
        if read_text(folder / SPACE, "YAML", CheckpointError, LARGEST_YAML_BYTES) != text:
            raise CheckpointError(f"{folder / SPACE}: another space; expected the one that the sweep began with")
        return wanted
    if is_there(folder / TUNE):
        raise CheckpointError(f"{folder}: holds a sweep; add --resume to go on, or use another --run-dir")
    first = {key: values.low if isinstance(values, Range) else values[0] for key, values in wanted.items()}
    load_config(config, overrides)
    try:
        tried = [load_config(config, [*overrides, change]) for change in _changes(first)]
    except ConfigError as wrong:
        raise ConfigError(f"{space}: {str(wrong).removeprefix('--set: ')}") from None
    on_wait("checking that trials can be compared on validation windows")
    from rlpto.experiments.training_runs import validation_setup

    if validation_setup(tried[-1]) is None:
        raise ConfigError(f"{config}: no validation windows, by which trials could be compared")
    begin_run(folder, load_config(config, overrides))
    write_text(folder / SPACE, text, "the space")
    return wanted


def run_sweep(
    folder: Path, space: Space, trials: int, at_once: int, seed: int, *, resume: bool, quiet: bool
) -> pd.DataFrame:
    """Run or continue the trials with Ray Tune; return a row for each finished trial, best first, and write TABLE.

    at_once: parallel trainings. Raises ConfigError if all trials failed, and Interrupted if none has finished.
    """
    with local_ray(at_once), handler_kept():  # after its first run, Ray Tune leaves a signal handler that does nothing
        from ray import tune
        from ray.tune.search.optuna import OptunaSearch

        place = folder.resolve()
        trial = tune.with_resources(tune.with_parameters(run_trial, folder=str(place)), {"cpu": 1})
        if resume:
            tuner = tune.Tuner.restore(str(place / TUNE), trial, resume_unfinished=True, restart_errored=True)
        else:
            search = OptunaSearch(seed=seed)
            tuner = tune.Tuner(
                trial,
                param_space={key: _domain(values) for key, values in space.items()},
                tune_config=tune.TuneConfig("max", GOAL, search, num_samples=trials, max_concurrent_trials=at_once),
                run_config=tune.RunConfig(name=TUNE, storage_path=str(place), verbose=0 if quiet else 1),
            )
        found = tuner.fit()
    names = {"trial_id": "trial", **{f"config/{key}": key for key in space}, GOAL: GOAL}
    table = found.get_dataframe().reindex(columns=list(names)).rename(columns=names).dropna(subset=[GOAL])
    if table.empty and found.num_errors:
        raise ConfigError(f"{folder}: no trial has finished; the errors are in {folder / TUNE}")
    if table.empty:
        raise Interrupted("no trial is finished; add --resume to the same command to go on")
    table = table.sort_values([GOAL, "trial"], ascending=[False, True])
    write_text(folder / TABLE, table.to_csv(index=False, lineterminator="\n"), "the table of trials")
    return table


def run_trial(point: Mapping[str, Any], folder: str) -> None:
    """Run a trial in a separate process: a training with some keys changed. It continues where it was interrupted."""
    from ray import tune

    from rlpto.experiments.run_folder import has_begun
    from rlpto.experiments.training_runs import train_folder

    run = Path(folder) / TRIALS / tune.get_context().get_trial_id()
    if not has_begun(run):
        begin_run(run, load_config(config_file(Path(folder)), _changes(point)))
    outcome = train_folder(run)
    if outcome.finished:
        tune.report({GOAL: outcome.best, "steps": outcome.steps})


def _changes(point: Mapping[str, Any]) -> list[str]:
    """Return the overrides that set the keys of a point."""
    return [f"{key}={'null' if value is None else value}" for key, value in point.items()]


def _domain(values: list[Any] | Range) -> Any:
    """Return the search space in Ray Tune's form."""
    from ray import tune

    if isinstance(values, list):
        return tune.choice(values)
    if isinstance(values.low, int) and isinstance(values.high, int):
        return (tune.lograndint if values.log else tune.randint)(values.low, values.high + 1)
    return (tune.loguniform if values.log else tune.uniform)(values.low, values.high)
