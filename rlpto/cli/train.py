"""`rlpto train`: train an agent, or several with different seeds."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlpto.cli.common import QuietOption, RunDirOption, SetOption, interrupted, make_console, make_progress, read_config
from rlpto.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from rlpto.agents.training import Outcome, Status
    from rlpto.config import Config

FREE = ("name", "description", "policies", "evaluation")
"""Keys that may change when a training is resumed: they do not decide how it comes out."""


class TrainWhere(StrEnum):
    """Where an agent learns."""

    sim = "sim"
    ray = "ray"


def train(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="Experiment file; not needed with --resume.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Go on with the training in this folder, bit for bit; with --cluster ray: fine-tune its agent.",
        ),
    ] = None,
    cluster: Annotated[
        TrainWhere,
        typer.Option(help="sim: in virtual time; ray: an agent that was trained so goes on learning on real jobs."),
    ] = TrainWhere.sim,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|auto", help="ray: a cluster that is there; else a local one is started."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the training, instead of agent.seed; the workload keeps the config's."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Train so many agents with seeds that follow each other, in RUN/seed-K.")
    ] = 1,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Trainings side by side, through Ray; not given: one for each core."),
    ] = None,
    set_: SetOption = None,
    run_dir: RunDirOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train anew where a training is already.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Train an agent on the training windows of an experiment; look at it on the validation windows.

    Checkpoints, TensorBoard's events and tables go to the run's folder. Ctrl-C leaves a checkpoint to go on from.
    """
    changes = [*(set_ or ()), *([] if seed is None else [f"agent.seed={seed}"])]
    if cluster is TrainWhere.ray:
        _fine_tune(config, changes, resume, run_dir, address, seeds, jobs, fresh=fresh, quiet=quiet)
        return
    if address is not None:
        raise ConfigError("--address: expected --cluster ray as well")
    if resume is not None:
        folder = resume
        _check_same(resume, config, changes)
        if run_dir is not None and run_dir.resolve() != resume.resolve():
            raise ConfigError(f"--run-dir {run_dir}: a training is resumed in its own folder {resume}")
    elif config is None:
        raise ConfigError("expected an experiment file to train from, or --resume RUN")
    else:
        settled = read_config(config, changes)
        folder = Path("runs") / settled.name if run_dir is None else run_dir
        _make_way(folder, fresh)
        _begin(settled, folder, seeds)
    _train_all(folder, jobs=jobs, quiet=quiet)


def _fine_tune(
    config: Path | None,
    changes: Sequence[str],
    resume: Path | None,
    run_dir: Path | None,
    address: str | None,
    seeds: int,
    jobs: int | None,
    *,
    fresh: bool,
    quiet: bool,
) -> None:
    """Let the agent of a run go on learning on a real cluster. Raises ConfigError for options that make no sense."""
    from rlpto.runs.finetuning import FOLDER, fine_tune_run

    if config is None:
        raise ConfigError("--cluster ray: expected an experiment file with jobs that really train")
    if resume is None:
        raise ConfigError(
            "--cluster ray: expected --resume RUN with an agent that was trained in simulation; "
            "learning from nothing takes hundreds of thousands of decisions"
        )
    if seeds > 1 or jobs is not None:
        raise ConfigError("--cluster ray: there is one real cluster, expected neither --seeds nor --jobs")
    folder = resume / FOLDER if run_dir is None else run_dir
    fine_tune_run(read_config(config, changes), resume, folder, address=address, fresh=fresh, quiet=quiet)


def _check_same(run: Path, config: Path | None, changes: Sequence[str]) -> None:
    """Raise CheckpointError if a training is to be resumed with another configuration, or is none."""
    from rlpto.runs.folder import CONFIG_FILE, differing_keys, read_run_config
    from rlpto.runs.training import has_begun

    there = read_run_config(run)
    if not has_begun(run):
        raise CheckpointError(f"{run}: no checkpoint there, expected a folder that `rlpto train` has written")
    wanted = there if config is None and not changes else read_config(config or run / CONFIG_FILE, changes)
    for key, old, new in differing_keys(there, wanted, free=FREE):
        raise CheckpointError(
            f"{run}: trained with {key} = {old}, now it is {new}; expected the same, or a new training with --run-dir"
        )


def _make_way(folder: Path, fresh: bool) -> None:
    """Refuse a folder with a training, or remove the training if a fresh one is wanted."""
    from rlpto.agents.evolution import CHECKPOINT as EVOLUTION
    from rlpto.agents.logs import EVENTS, HISTORY
    from rlpto.agents.settings import BEST, LAST
    from rlpto.agents.training import PERIODIC
    from rlpto.runs.training import BASELINES, has_checkpoints, members

    if not fresh and not has_checkpoints(folder):
        return
    if not fresh:
        raise CheckpointError(
            f"{folder}: holds a training; go on with `rlpto train --resume {folder}`, "
            "or use another --run-dir, or --fresh to train anew"
        )
    for run in members(folder):
        for name in (BEST, LAST, HISTORY, EVOLUTION):
            (run / name).unlink(missing_ok=True)
        for name in (EVENTS, PERIODIC, BASELINES):
            shutil.rmtree(run / name, ignore_errors=True)
        if run != folder:
            shutil.rmtree(run)


def _begin(config: Config, folder: Path, seeds: int) -> None:
    """Write configurations; nothing is written unless the experiment can be trained on."""
    from rlpto.experiment import refuse_online
    from rlpto.runs.folder import begin_run
    from rlpto.runs.training import by_load, ranked_policies, training_seed

    refuse_online(config.knowledge)
    for spec in ranked_policies(config):
        by_load(config)[0].policy(spec)
    for experiment in by_load(config):
        experiment.windows("train")
    begin_run(folder, config, sys.argv[1:])
    first = training_seed(config)
    for seed in range(first, first + seeds) if seeds > 1 else ():
        own = config.model_copy(update={"agent": config.agent.model_copy(update={"seed": seed})})
        begin_run(folder / f"seed-{seed}", own, sys.argv[1:])


def _train_all(folder: Path, *, jobs: int | None, quiet: bool) -> None:
    """Train every member of a run, one after the other or side by side."""
    from rlpto.runs.parallel import side_by_side, workers
    from rlpto.runs.training import members

    runs = members(folder)
    at_once = min(workers(jobs), len(runs))
    if at_once > 1:
        try:
            side_by_side(runs, at_once, quiet=quiet)
        except KeyboardInterrupt:
            interrupted(_how_to_go_on(folder))
    else:
        for run in runs:
            _train_one(run, folder, quiet=quiet)
    make_console(quiet).print(
        f"\nevaluate on test windows: rlpto evaluate --run {folder} --policies all", style="bold", soft_wrap=True
    )


def _train_one(run: Path, folder: Path, *, quiet: bool) -> None:
    """Train in one folder, or go on where there is something to go on from, with a progress bar."""
    from rlpto.runs.folder import read_run_config
    from rlpto.runs.training import has_begun, train_run

    config = read_run_config(run)
    with make_progress(quiet) as bar:
        task = bar.add_task("preparing", total=config.agent.steps)

        def told(status: Status) -> None:
            best = "" if status.best is None else f", best {status.best:+.2f}"
            bar.update(task, description=f"{status.doing}{best}", completed=min(status.steps, status.total))

        try:
            outcome = train_run(config, run, resume=has_begun(run), progress=not quiet, told=told)
        except KeyboardInterrupt:
            bar.stop()
            interrupted(_how_to_go_on(folder))
    if not outcome.finished:
        interrupted(_how_to_go_on(folder, outcome.steps))
    make_console(quiet).print(summary(run, outcome), soft_wrap=True)


def summary(run: Path, outcome: Outcome) -> str:
    """One line on how a training ended."""
    text = f"{run}: {outcome.steps} steps"
    if outcome.best is not None:
        text += f", best validation reward per job {outcome.best:+.4f}"
    if (rank := outcome.metrics.get("rank")) is not None:
        baselines = sum(name.startswith("wins/") for name in outcome.metrics)
        text += f", in the end rank {rank:.0f} among {baselines + 1:.0f}"
    return text


def _how_to_go_on(folder: Path, steps: int | None = None) -> str:
    """What is kept, and what to type."""
    from rlpto.runs.training import has_begun

    if not has_begun(folder):
        return "no checkpoint has been written yet; the same command begins anew"
    kept = "" if steps is None else f"{steps} steps are kept; "
    return f"{kept}go on with: rlpto train --resume {folder}"
