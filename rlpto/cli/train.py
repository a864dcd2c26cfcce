"""`rlpto train`, `rlpto tune` and `rlpto sweep`: train agents, tune constants and search hyper-parameters."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlpto.cli.common import (
    EXPERIMENTS,
    AddressOption,
    ConfigArgument,
    QuietOption,
    RunDirOption,
    SetOption,
    Verb,
    WorkersOption,
    make_console,
    make_progress,
    make_table,
    read_config,
    waiting,
)
from rlpto.io.errors import ConfigError, RlptoError
from rlpto.io.interrupts import Interrupted
from rlpto.io.terminal import say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from rlpto.agents.training_loop import Status
    from rlpto.agents.window_training import Player
    from rlpto.experiments.ray_workers import RayWorkers


def train(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="Experiment file; not needed with --resume.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Go on with the training in this folder, bit for bit; with --cluster ray: fine-tune its agent.",
        ),
    ] = None,
    cluster: Annotated[
        Literal["sim", "ray"],
        typer.Option(help="sim: in virtual time; ray: a trained agent goes on learning on real jobs."),
    ] = "sim",
    address: AddressOption = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the training, instead of agent.seed; the workload keeps the config's."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Agents to train, with consecutive seeds, in RUN/seed-K; one if not given."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Trainings side by side, through Ray; not given: one for each core."),
    ] = None,
    workers: WorkersOption = None,
    set_: SetOption = None,
    run_dir: RunDirOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Train again from the start in a folder that holds a training.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Train an agent on the training windows of an experiment, and check it on the validation windows.

    Checkpoints, TensorBoard's events and tables go to the run's folder. Ctrl-C leaves a checkpoint to continue from.
    """
    changes = [*(set_ or ()), *([] if seed is None else [f"agent.seed={seed}"])]
    if cluster == "ray":
        if workers is not None:
            raise ConfigError("--workers: simulated trainings run there, expected --cluster sim")
        _fine_tune(config, changes, resume, run_dir, address, seeds, jobs, fresh=fresh, quiet=quiet)
        return
    if workers is not None and jobs is not None:
        raise ConfigError(f"--jobs {jobs}: expected it without --workers, whose cluster has its own CPUs")
    if address is not None:
        raise ConfigError("--address: expected --cluster ray as well")
    with _cluster(workers) as far:
        from rlpto.experiments.run_folder import members
        from rlpto.experiments.training_runs import begin_training, check_resumable

        if resume is not None:
            folder = resume
            check_resumable(resume, config, changes)
            if run_dir is not None and run_dir.resolve() != resume.resolve():
                raise ConfigError(f"--run-dir {run_dir}: a training is resumed in its own folder {resume}")
            begun = len(members(resume))
            if seeds not in (None, begun):
                raise ConfigError(f"--seeds {seeds}: expected {begun}, the number of seeds in {resume}")
            if fresh:
                raise ConfigError("--fresh: removes a training, expected it without --resume, which goes on with it")
        elif config is None:
            raise ConfigError("expected an experiment file to train from, or --resume RUN")
        else:
            settled = read_config(config, changes)
            folder = Path("runs") / settled.name if run_dir is None else run_dir
            begin_training(settled, folder, seeds or 1, fresh=fresh)
            agent = settled.agent
            counted = "windows" in agent.whole_windows.model_fields_set
            if agent.learns == "windows" and "steps" in agent.model_fields_set and not counted:
                make_console(quiet).print(
                    "note: agent.steps counts where agent.learns is decisions or nodes; "
                    "here agent.whole_windows.windows does"
                )
        _train_all(folder, jobs, far, quiet)


def _cluster(address: str | None) -> AbstractContextManager[RayWorkers | None]:
    """The workers of the option --workers."""
    if address is None:
        return nullcontext()
    from rlpto.experiments.parallel import STOP_TIMEOUT_S
    from rlpto.experiments.ray_workers import RayWorkers

    return RayWorkers(address, STOP_TIMEOUT_S)


def _train_all(folder: Path, jobs: int | None, far: RayWorkers | None, quiet: bool) -> None:
    """Train every member of a run, one after the other or side by side, with a progress bar."""
    from rlpto.experiments.parallel import local_trainers, one_by_one, train_all
    from rlpto.experiments.run_folder import members, read_run_config
    from rlpto.experiments.training_runs import how_to_go_on, summary, train_folder

    runs, console = members(folder), make_console(quiet)
    config, kept, failed = read_run_config(folder), "", list[RlptoError]()
    place = local_trainers(jobs, len(runs)) if far is None else nullcontext(far)
    with make_progress(quiet) as bar:
        try:
            with place as workers:
                if one_by_one(config, len(runs), workers):
                    for run in runs:
                        task = bar.add_task("preparing", total=None)
                        outcome = train_folder(run, partial(_show, bar, task), _player(run, far))
                        bar.remove_task(task)
                        kept = f"{outcome.steps} {outcome.unit}"
                        if not outcome.finished:
                            raise KeyboardInterrupt
                        console.print(summary(run, outcome), soft_wrap=True)
                else:
                    task = bar.add_task(f"training {len(runs)} seeds" if len(runs) > 1 else "training", total=len(runs))
                    for run, found in train_all(runs, workers):
                        if isinstance(found, RlptoError):
                            failed.append(found)
                        elif not found.finished:
                            bar.update(task, description=f"{run}: {found.steps} {found.unit}")
                            continue
                        else:
                            console.print(summary(run, found), soft_wrap=True)
                        bar.advance(task)
        except KeyboardInterrupt:
            raise Interrupted(how_to_go_on(folder, kept)) from None
    for error in failed[1:]:
        say(f"rlpto: error: {error}", err=True)
    if failed:
        raise failed[0]
    console.print(
        f"\nevaluate on test windows: rlpto evaluate --run {folder} --policies all", style="bold", soft_wrap=True
    )


def _player(run: Path, far: RayWorkers | None) -> Player | None:
    """Plays the windows of a training on the cluster `far`."""
    if far is None:
        return None
    from rlpto.experiments.run_folder import read_run_config
    from rlpto.experiments.window_tasks import FarPlayer

    return FarPlayer(far, read_run_config(run))


def _fine_tune(
    config: Path | None,
    changes: Sequence[str],
    resume: Path | None,
    run_dir: Path | None,
    address: str | None,
    seeds: int | None,
    jobs: int | None,
    *,
    fresh: bool,
    quiet: bool,
) -> None:
    """Fine-tune the agent of a run on a real cluster. Raises ConfigError for options that do not apply."""
    from rlpto.experiments.training_on_ray import FOLDER, fine_tune_run

    if config is None:
        raise ConfigError("--cluster ray: expected an experiment file with jobs that really train")
    if resume is None:
        raise ConfigError(
            "--cluster ray: expected --resume RUN with an agent that was trained in simulation; "
            "learning from nothing takes hundreds of thousands of decisions"
        )
    if seeds not in (None, 1) or jobs is not None:
        raise ConfigError("--cluster ray: there is one real cluster, expected neither --seeds nor --jobs")
    folder = resume / FOLDER if run_dir is None else run_dir
    settled, console = read_config(config, changes), make_console(quiet)
    console.print(f"live curves: tensorboard --logdir {folder}", style="dim", soft_wrap=True)
    with make_progress(quiet) as bar, waiting(quiet, bar.console) as on_wait:
        task = bar.add_task("starting", total=None)
        steps = fine_tune_run(
            settled,
            resume,
            folder,
            address=address,
            fresh=fresh,
            on_progress=partial(_show, bar, task),
            on_wait=on_wait,
        )
    console.print(
        f"{folder}: learned from {steps} decisions; evaluate it with the policy agent:run={folder}", soft_wrap=True
    )


def _show(bar: Progress, task: TaskID, status: Status) -> None:
    """Move a progress bar to the present step of a training."""
    best = "" if status.best is None else f", best {status.best:+.2f}"
    bar.update(task, description=f"{status.doing}{best}", completed=min(status.steps, status.total), total=status.total)


def sweep(
    config: ConfigArgument,
    space: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="YAML file: config keys with [a, b, c] to choose from, or {low: 1e-4, high: 1e-2, log: true}.",
        ),
    ],
    trials: Annotated[int, typer.Option("--trials", "-n", min=1, help="Trainings in all.")] = 20,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Trainings side by side; one for each core if not given.")
    ] = None,
    workers: WorkersOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep in the run's folder.")] = False,
    set_: SetOption = None,
    run_dir: RunDirOption = None,
    quiet: QuietOption = False,
) -> None:
    """Search hyper-parameters: train with values from a space, and rank the trials by validation reward.

    Needs the extra `ray`. Every trial is a run of its own, and the sweep can be interrupted and resumed.
    """
    from rlpto.experiments.sweep import SPACE, TABLE, TRIALS, changes, open_sweep, run_sweep

    chosen = read_config(config, set_)
    folder = Path("runs") / f"{chosen.name}-sweep" if run_dir is None else run_dir
    with _cluster(workers) as far:
        with waiting(quiet) as on_wait:
            wanted = open_sweep(folder, config, set_ or (), space, on_wait, resume=resume)
        from rlpto.experiments.parallel import local_trainers

        place = local_trainers(jobs, trials) if far is None else nullcontext(far)
        with make_progress(quiet) as bar, place as trainers:
            task = bar.add_task("trials", total=trials)
            table = run_sweep(
                folder,
                wanted,
                trials,
                trainers,
                chosen.seed,
                at_once=jobs or trainers.slots,
                on_progress=lambda finished: bar.update(task, completed=finished),
            )
    best = table.iloc[0]
    options = " ".join(f"--set {shlex.quote(change)}" for change in changes({key: best[key] for key in wanted}))
    make_console(quiet).print(
        f"{folder / TABLE}: best validation reward per job {best['reward']:+.4f} with {options}\n"
        f"its run: {folder / TRIALS / str(best['trial'])}; its space: {folder / SPACE}",
        soft_wrap=True,
    )


def tune(
    config: ConfigArgument,
    provisioners: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Which to tune, by name; not given: all that have something to tune."),
    ] = None,
    set_: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Choose the constants of provisioners, which set the number of rented nodes, on the training windows.

    The cost of a window is its negative reward minus the cost of the same jobs if none ever waited.
    """
    from rich.markup import escape

    from rlpto.experiments.tune import tune as tuned

    chosen = read_config(config, set_)
    names = [name.strip() for name in provisioners.split(",")] if provisioners is not None else []
    with make_progress(quiet) as bar:
        task = bar.add_task("tuning", total=None)
        found = tuned(chosen, names, lambda done, total: bar.update(task, completed=done, total=total))
    table = make_table("provisioner", "cost", "of time", "of money", "tried")
    for tried in sorted(found.values(), key=lambda points: points[0].cost):
        best = tried[0]
        table.add_row(escape(best.spec), *(f"{value:.2f}" for value in best[1:]), str(len(tried)))
    make_console(quiet).print(table)


VERBS = {
    "train": Verb(train, EXPERIMENTS, "rlpto train quickstart --seeds 3"),
    "tune": Verb(tune, EXPERIMENTS, "rlpto tune rented --provisioners spare,average"),
    "sweep": Verb(sweep, EXPERIMENTS, "rlpto sweep quickstart --space space.yaml --trials 20"),
}
