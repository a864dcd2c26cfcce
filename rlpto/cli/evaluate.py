"""`rlpto evaluate`: run policies on the windows of an experiment, and report."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlpto.cli.common import (
    INTERRUPTED,
    ConfigArgument,
    QuietOption,
    RunDirOption,
    SeedOption,
    SetOption,
    make_console,
    read_config,
    split_specs,
)
from rlpto.errors import ConfigError

if TYPE_CHECKING:
    from rlpto.config import Config
    from rlpto.evaluation.runner import FinishedCell

ALL = "all"


class Split(StrEnum):
    """Windows to evaluate on."""

    train = "train"
    validation = "validation"
    test = "test"


def evaluate(
    config: ConfigArgument,
    policies: Annotated[
        str | None,
        typer.Option(metavar="A,B|all", help="Policies to run, instead of the config's; see rlpto policies."),
    ] = None,
    windows: Annotated[Split | None, typer.Option(help="Windows to run on, instead of the config's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many windows, spread over the split.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions of every window.")] = None,
    seed: SeedOption = None,
    set_: SetOption = None,
    run_dir: RunDirOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run everything anew, also what is finished.")] = False,
    report: Annotated[bool, typer.Option(help="Draw plots and write report.html.")] = True,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that run cells side by side.")] = 1,
    quiet: QuietOption = False,
) -> None:
    """Run policies on the same windows, seed by seed, and compare them.

    Finished cells are kept: the same command goes on where it was interrupted, and more policies,
    windows or seeds add to what is there.
    """
    overrides = [
        *(set_ or ()),
        *([] if limit is None else [f"workload.windows.limit={limit}"]),
        *([] if seeds is None else [f"evaluation.seeds={seeds}"]),
        *([] if windows is None else [f"evaluation.split={windows.value}"]),
        *([] if policies is None else [f"policies={json.dumps(_policy_list(policies))}"]),
    ]
    settled = _with_reference(read_config(config, overrides, seed), chosen=policies is not None)
    folder = Path("runs") / settled.name if run_dir is None else run_dir
    finished = run_cells(settled, folder, fresh=fresh, jobs=jobs, quiet=quiet)
    write_results(settled, finished, folder, report=report, quiet=quiet)


def _policy_list(text: str) -> list[str]:
    if text.strip() != ALL:
        return split_specs(text)
    from rlpto.policies.registry import available

    return [policy.name for policy in available() if policy.complete]


def _with_reference(config: Config, chosen: bool) -> Config:
    """The config with a reference that is evaluated: of policies chosen by hand the first one, if need be.

    Raises ConfigError if the reference is not evaluated, or two policies go by one name.
    """
    from rlpto.policies.registry import policy_label

    labels = [policy_label(spec) for spec in config.policies]
    shared = next((label for label in labels if labels.count(label) > 1), None)
    if shared is not None:
        raise ConfigError(f"policies: two are called {shared}, expected a label of its own for each")
    reference = config.evaluation.reference
    if reference in {*config.policies, *labels}:
        return config
    if not chosen:
        listed = ", ".join(config.policies)
        raise ConfigError(f"evaluation.reference: {reference} is not evaluated, expected one of: {listed}")
    evaluation = config.evaluation.model_copy(update={"reference": config.policies[0]})
    return config.model_copy(update={"evaluation": evaluation})


def run_cells(config: Config, folder: Path, *, fresh: bool, jobs: int, quiet: bool) -> list[FinishedCell]:
    """Run what is missing. The folder is touched only when everything about the experiment is right."""
    from rlpto.cli.runfolder import begin_run, refuse_foreign
    from rlpto.evaluation.runner import evaluate as run_all
    from rlpto.experiment import prepare, run_cell

    experiment = prepare(config)
    cells = experiment.cells()
    experiment.check()
    if not fresh:
        refuse_foreign(folder, config)
    begin_run(folder, config, sys.argv[1:])
    try:
        return run_all(
            cells,
            partial(run_cell, config),
            folder,
            progress=not quiet,
            jobs=jobs,
            config=experiment.outcome(),
            weights=config.reward,
            fresh=fresh,
        )
    except KeyboardInterrupt:  # the runner has said what is kept and how to go on
        raise typer.Exit(INTERRUPTED) from None


def write_results(config: Config, finished: list[FinishedCell], folder: Path, *, report: bool, quiet: bool) -> None:
    """Tables on the terminal, as CSV and as JSON; plots and the report if wanted."""
    from rlpto.evaluation.tables import print_results, results, write_csv, write_json
    from rlpto.policies.registry import policy_label

    console = make_console(quiet)
    finished = labelled(finished)
    found = results(finished, config.knowledge.mode, policy_label(config.evaluation.reference), seed=config.seed)
    print_results(found, console)
    write_csv(found, folder)
    write_json(found, folder / "results.json")
    if not report:
        console.print(f"\ntables: {folder}", style="bold")
        return
    from rlpto.cli.runfolder import command_line, run_facts, versions
    from rlpto.config import resolved_yaml
    from rlpto.evaluation.plots import write_plots
    from rlpto.evaluation.report import About, make_plots, write_report

    plots = make_plots(found, finished)
    write_plots(plots, folder / "plots")
    about = About(
        title=config.name,
        trace=_workload_text(config),
        config=resolved_yaml(config),
        commands=[command_line(sys.argv[1:])],
        versions=versions(),
        facts=run_facts(config),
    )
    write_report(folder / "report.html", found, plots, about)
    console.print(f"\nreport: {folder / 'report.html'}", style="bold")


def labelled(finished: list[FinishedCell]) -> list[FinishedCell]:
    """The same cells under the labels of their policies."""
    from rlpto.policies.registry import policy_label

    return [replace(done, cell=replace(done.cell, policy=policy_label(done.cell.policy))) for done in finished]


def _workload_text(config: Config) -> str:
    workload = config.workload
    load = "" if workload.load is None else f", arrivals scaled to a load of {workload.load:g}"
    if workload.source == "synthetic":
        return f"synthetic, {workload.days:g} days calibrated on {Path(workload.calibration).stem}{load}"
    return f"{', '.join(path.name for path in workload.path)}{load}"
