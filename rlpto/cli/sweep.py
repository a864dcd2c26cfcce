"""`rlpto sweep`: search hyper-parameters of the training with Ray Tune and Optuna."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlpto.cli.common import (
    ConfigArgument,
    QuietOption,
    RunDirOption,
    SetOption,
    interrupted,
    make_console,
    read_config,
)
from rlpto.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from rlpto.config import Config

TUNE, TRIALS, SPACE, TABLE = "tune", "trials", "space.yaml", "sweep.csv"
"""In the folder of a sweep: Ray Tune's own state, the trials' runs, the space, and the table of results."""
GOAL = "reward"
"""What trials report: their best validation reward per job."""


def sweep(
    config: ConfigArgument,
    space: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="YAML file: keys of the config with [a, b, c] to choose from, or {low: 1e-4, high: 1e-2, log: true}.",
        ),
    ],
    trials: Annotated[int, typer.Option("--trials", "-n", min=1, help="Trainings in all.")] = 20,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Trainings side by side; one for each core if not given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep in the run's folder.")] = False,
    set_: SetOption = None,
    run_dir: RunDirOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train with hyper-parameters from a space; the best by validation reward are searched for.

    Needs the extra `ray`. Every trial is a run of its own, and the sweep can be interrupted and resumed.
    """
    if find_spec("ray") is None or find_spec("optuna") is None:
        raise ConfigError("rlpto sweep needs Ray Tune and Optuna: install rlpto[ray]")
    from rlpto.files import write_text
    from rlpto.reading import LARGEST_YAML_BYTES, read_text
    from rlpto.runs.folder import CONFIG_FILE, begin_run
    from rlpto.runs.parallel import workers
    from rlpto.runs.training import make_evaluator

    settled = read_config(config, set_)
    folder = Path("runs") / f"{settled.name}-sweep" if run_dir is None else run_dir
    wanted = read_space(space)
    text = read_text(space, "YAML", ConfigError, LARGEST_YAML_BYTES)
    if resume:
        _check_same(folder, text)
    elif (folder / TUNE).exists():
        raise CheckpointError(f"{folder}: holds a sweep; add --resume to go on, or use another --run-dir")
    else:
        for place, choices in wanted.items():
            settled = _tried(config, set_, place, choices)
        if make_evaluator(settled, folder, progress=False) is None:
            raise ConfigError(f"{config}: no validation windows, by which trials could be compared")
        begin_run(folder, read_config(config, set_), sys.argv[1:])
        write_text(folder / SPACE, text, "the space")
    found = run_sweep(folder, wanted, trials, workers(jobs), settled.seed, resume=resume, quiet=quiet)
    finished = [row for row in found if row.get(GOAL) is not None]
    if not finished and any(row["failed"] for row in found):
        raise ConfigError(f"{folder}: no trial has finished; the errors are in {folder / TUNE}")
    if not finished:
        interrupted("no trial is finished; add --resume to the same command to go on")
    finished.sort(key=lambda row: (-float(row[GOAL]), row["trial"]))
    write_text(folder / TABLE, _table(finished), "the table of trials")
    if len(finished) < trials:
        interrupted(f"{len(finished)} of {trials} trials are finished; add --resume to the same command to go on")
    best = {key: value for key, value in finished[0].items() if key in wanted}
    options = " ".join(f"--set {key}={value}" for key, value in best.items())
    make_console(quiet).print(
        f"{folder / TABLE}: best validation reward per job {finished[0][GOAL]:+.4f} with {options}\n"
        f"its run: {folder / TRIALS / finished[0]['trial']}; all were set by {folder / CONFIG_FILE}",
        soft_wrap=True,
    )


def read_space(path: Path) -> dict[str, Any]:
    """Choices and ranges by key. Raises ConfigError, naming file and line, for one that is neither."""
    from rlpto.yamlfile import read_yaml

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


def run_sweep(
    folder: Path, space: Mapping[str, Any], trials: int, at_once: int, seed: int, *, resume: bool, quiet: bool
) -> list[dict[str, Any]]:
    """Let Ray Tune run, or go on with, the trials; a row for each, with its values and its reward."""
    from rlpto.runs.parallel import local_ray

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
                run_config=tune.RunConfig(name=TUNE, storage_path=str(folder.resolve()), verbose=0 if quiet else 1),
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

    from rlpto.runs.folder import CONFIG_FILE, begin_run
    from rlpto.runs.training import has_begun, train_run

    run = Path(folder) / TRIALS / _short(tune.get_context().get_trial_dir())
    config = read_config(Path(folder) / CONFIG_FILE, [f"{key}={value}" for key, value in point.items()])
    resume = has_begun(run)
    if not resume:
        begin_run(run, config, ["sweep"])
    outcome = train_run(config, run, resume=resume, progress=False)
    if outcome.finished:
        tune.report({GOAL: outcome.best, "steps": outcome.steps})


def _check_same(folder: Path, text: str) -> None:
    """Raise CheckpointError unless the folder holds a sweep of this space."""
    from rlpto.reading import LARGEST_YAML_BYTES, read_text
    from rlpto.runs.folder import read_run_config

    read_run_config(folder)
    if not (folder / TUNE).exists() or not (folder / SPACE).is_file():
        raise CheckpointError(f"{folder}: no sweep there, expected a folder that `rlpto sweep` has written")
    if read_text(folder / SPACE, "YAML", CheckpointError, LARGEST_YAML_BYTES) != text:
        raise CheckpointError(f"{folder / SPACE}: another space; expected the one that the sweep began with")


def _tried(config: Path, set_: list[str] | None, key: str, choices: Any) -> Config:
    """The configuration with the first value of a key, to see that there is such a key and it may have that value."""
    value = choices[0] if isinstance(choices, list) else choices["low"]
    return read_config(config, [*(set_ or ()), f"{key}={value}"])


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


def _table(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [key for key in rows[0] if key != "failed"], "", "ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
