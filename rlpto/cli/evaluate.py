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
    OptionalConfig,
    QuietOption,
    RunDirOption,
    SeedOption,
    SetOption,
    make_console,
    read_config,
)
from rlpto.errors import ConfigError, RlptoError

if TYPE_CHECKING:
    from rlpto.config import Config
    from rlpto.evaluation.plots import Plot
    from rlpto.evaluation.runner import FinishedCell

ALL = "all"


class Where(StrEnum):
    """Where jobs run."""

    sim = "sim"
    ray = "ray"
    both = "both"


class Split(StrEnum):
    """Windows to evaluate on; all: every window of a trace that nobody was trained on."""

    train = "train"
    validation = "validation"
    test = "test"
    all = "all"


def evaluate(
    config: OptionalConfig = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Evaluate the agents of this run, on the windows of its configuration."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Jobs of another trace, in any format that can be imported."),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="A,B|all",
            help="Policies to run, instead of the config's; see rlpto policies. With --run its agents come on top.",
        ),
    ] = None,
    switch: Annotated[
        str | None,
        typer.Option(
            metavar="S:A,S:B",
            help="One more run, which the first policy begins and in which others take over after so many seconds: "
            "3600:las,7200:srtf.",
        ),
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
    cluster: Annotated[
        Where,
        typer.Option(
            help="sim: simulated, in virtual time; ray: jobs really train, on a Ray cluster; both: one after "
            "the other, and how they differ."
        ),
    ] = Where.sim,
    profiles: Annotated[
        Path | None,
        typer.Option(metavar="FILE|FOLDER", help="How fast models train, such as from rlpto profile."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|auto", help="ray: a cluster that is there; else a local one is started."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="ray: after Ctrl-C, let jobs go on training.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Run policies on the same windows, seed by seed, and compare them.

    Finished cells are kept: the same command goes on where it was interrupted, and more policies,
    windows or seeds add to what is there.
    """
    overrides = [
        *([] if trace is None else foreign_trace(trace)),
        *(set_ or ()),
        *([] if limit is None else [f"workload.windows.limit={limit}"]),
        *([] if seeds is None else [f"evaluation.seeds={seeds}"]),
        *([] if profiles is None else [f"profiles.folder={json.dumps(str(profiles))}"]),
        *_window_keys(windows, trace),
    ]
    source = _source(config, run)
    settled = read_config(source, [*overrides, *_policy_keys(policies, run)], seed)
    settled = settled if run is None else with_agents(settled, run)
    settled = _with_reference(settled if switch is None else with_switches(settled, switch), policies is not None)
    endings = {Where.sim: "", Where.ray: "-ray", Where.both: "-both"}
    folder = run_dir or _default_folder(settled.name, run, trace, endings[cluster])
    if cluster is Where.sim:
        _refuse_options_of_ray(address, keep)
        finished = run_cells(settled, folder, fresh=fresh, jobs=jobs, quiet=quiet)
        write_results(settled, finished, folder, report=report, quiet=quiet)
        return
    from rlpto.runs.real import run_real_cells

    if jobs > 1:
        raise ConfigError(f"--jobs {jobs}: on a real cluster cells run one after the other, expected 1")
    if cluster is Where.both:
        from rlpto.runs.both import evaluate_both

        evaluate_both(settled, folder, address=address, fresh=fresh, keep=keep, report=report, quiet=quiet)
        return
    settled, finished = run_real_cells(settled, folder, address=address, fresh=fresh, keep=keep, quiet=quiet)
    write_results(settled, finished, folder, report=report, quiet=quiet)


def _default_folder(name: str, run: Path | None, trace: Path | None, ending: str) -> Path:
    """Where results go if the command does not say."""
    return Path("runs") / f"{name}{ending}" if run is None else run / f"{_folder_name(trace)}{ending}"


def _refuse_options_of_ray(address: str | None, keep: bool) -> None:
    """Raises ConfigError if an option asks for a cluster that the command does not."""
    for option, given in (("--address", address is not None), ("--keep", keep)):
        if given:
            raise ConfigError(f"{option}: expected --cluster ray or both as well")


def _source(config: Path | None, run: Path | None) -> Path:
    """The file that says what to evaluate. Raises ConfigError unless there is exactly one."""
    from rlpto.runs.folder import config_file

    if config is not None and run is None:
        return config
    if run is not None and config is None:
        return config_file(run)
    raise ConfigError("expected either an experiment file or --run RUN")


def foreign_trace(trace: Path) -> list[str]:
    """Overrides that take jobs from another trace, and every window of it for testing."""
    values = {
        "source": "trace",
        "path": [str(trace)],
        "format": None,
        "skip_days": 0,
        "draws": 0,
        "train_path": [],
        "validation_path": [],
        "windows.train": 0,
        "windows.validation": 0,
        "windows.test": 1,
    }
    return [f"workload.{key}={json.dumps(value)}" for key, value in values.items()]


def _window_keys(windows: Split | None, trace: Path | None) -> list[str]:
    """Overrides that choose windows. Raises ConfigError if all are wanted where some were for training."""
    if trace is not None:
        if windows not in (None, Split.all):
            raise ConfigError(f"--windows {windows.value}: all windows of another trace are for testing, expected all")
        return ["evaluation.split=test"]
    if windows is Split.all:
        raise ConfigError("--windows all: training windows are among them; expected --trace FILE, or one of the splits")
    return [] if windows is None else [f"evaluation.split={windows.value}"]


def _policy_keys(policies: str | None, run: Path | None) -> list[str]:
    """Overrides that choose policies; `all` of a run are those of its configuration."""
    if policies is None or (run is not None and policies.strip() == ALL):
        return []
    return [f"policies={json.dumps(_policy_list(policies))}"]


def with_agents(config: Config, run: Path) -> Config:
    """The configuration with the agents of a run among its policies, in front."""
    from rlpto.agents.policy import run_file

    folders = sorted(run.glob("seed-*"), key=lambda path: (len(path.name), path.name)) or [run]
    specs = []
    for folder in folders:
        run_file(folder)
        label = "agent" if folder == run else f"agent-{folder.name.removeprefix('seed-')}"
        specs.append(f"agent:label={label},run={folder}")
    return config.model_copy(update={"policies": (*specs, *config.policies)})


def with_switches(config: Config, text: str) -> Config:
    """The configuration with one more run, in which its first policy is followed by others at set times.

    text: `SECONDS:POLICY,SECONDS:POLICY`; a policy may be one of the configuration by its label. Raises ConfigError
    that names the part that is wrong.
    """
    from rlpto.policies.registry import make_policy
    from rlpto.policies.spec import SWITCH, parse_spec, parse_switch, policy_label, split_specs

    by_label = {policy_label(spec): spec for spec in config.policies}
    parts = [config.policies[0]]
    for part in split_specs(text, "--switch"):
        try:
            time, policy = parse_switch(part)
            spec = by_label.get(str(policy), str(policy))
            make_policy(spec)
            parts.append(f"{time:.15g}:{spec}")
            parse_spec(SWITCH.join(parts))
        except RlptoError as error:
            raise ConfigError(f"--switch {text}: {part}: {error}") from None
    return config.model_copy(update={"policies": tuple(dict.fromkeys((*config.policies, SWITCH.join(parts))))})


def _folder_name(trace: Path | None) -> str:
    """Folder of an evaluation inside a run."""
    return "evaluation" if trace is None else f"evaluation-{trace.name.partition('.')[0]}"


def _policy_list(text: str) -> list[str]:
    from rlpto.policies.registry import available
    from rlpto.policies.spec import split_specs

    if text.strip() != ALL:
        return split_specs(text)

    return [policy.name for policy in available() if policy.complete]


def _with_reference(config: Config, chosen: bool) -> Config:
    """The config with a reference that is evaluated: of policies chosen by hand the first one, if need be.

    Raises ConfigError if the reference is not evaluated, or two policies go by one name.
    """
    from rlpto.policies.spec import policy_label

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
    from rlpto.evaluation.runner import evaluate as run_all
    from rlpto.experiment import prepare, refuse_online, run_cell
    from rlpto.runs.folder import begin_run, refuse_foreign

    refuse_online(config.knowledge)
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
    from rlpto.policies.spec import policy_label

    console = make_console(quiet)
    finished = labelled(finished)
    reference = policy_label(config.evaluation.reference)
    found = results(finished, config.knowledge.mode, reference, seed=config.seed, forecast=config.forecast.mode)
    print_results(found, console)
    for note in missed_switches(finished):
        console.print(note, style="yellow")
    write_csv(found, folder)
    write_json(found, folder / "results.json")
    if not report:
        console.print(f"\ntables: {folder}", style="bold")
        return
    from rlpto.config import resolved_yaml
    from rlpto.evaluation.plots import write_plots
    from rlpto.evaluation.report import About, make_plots, write_report
    from rlpto.runs.folder import command_line, run_facts, versions

    plots = [*make_plots(found, finished), *_forecast_plots(config, finished)]
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


def missed_switches(finished: list[FinishedCell]) -> list[str]:
    """A line for every run in which not all the policies that were to follow one another took decisions."""
    from rlpto.policies.spec import parse_spec

    notes = []
    for done in finished:
        spec = parse_spec(done.cell.policy)
        if spec.later and len(decided := done.record().switches.policy or (spec.first.label,)) <= len(spec.later):
            notes.append(f"{done.cell}: only {', '.join(decided)} took decisions before the run ended")
    return notes


def _forecast_plots(config: Config, finished: list[FinishedCell]) -> list[Plot]:
    """Plots of the forecasts on the windows of finished cells; none where nothing was forecast."""
    from rlpto.evaluation.forecast_plots import forecast_plots, foreseen
    from rlpto.experiment import prepare

    experiment = prepare(config)
    if (forecasts := experiment.forecasts) is None:
        return []
    seen = []
    for name in dict.fromkeys(done.cell.window for done in finished):
        jobs = experiment.jobs(name, config.seed)
        known = forecasts.known(experiment.window_traces[name].window, jobs)
        seen.append(foreseen(name, forecasts.step, known, jobs))
    return forecast_plots(seen, config.forecast.mode)


def labelled(finished: list[FinishedCell]) -> list[FinishedCell]:
    """The same cells under the labels of their policies."""
    from rlpto.policies.spec import policy_label

    return [replace(done, cell=replace(done.cell, policy=policy_label(done.cell.policy))) for done in finished]


def _workload_text(config: Config) -> str:
    workload = config.workload
    load = "" if workload.load is None else f", arrivals scaled to a load of {workload.load:g}"
    if workload.source == "synthetic":
        return f"synthetic, {workload.days:g} days calibrated on {Path(workload.calibration).stem}{load}"
    if workload.source == "jobs":
        return f"{sum(entry.count for entry in workload.jobs)} listed jobs"
    return f"{', '.join(path.name for path in workload.path)}{load}"
