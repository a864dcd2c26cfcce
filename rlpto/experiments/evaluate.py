"""Evaluate policies on the windows of an experiment, and write the results into a run's folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlpto.agents.policy import run_file, shown_label
from rlpto.core.records import RunRecord
from rlpto.evaluation.runner import (
    CELLS_FILE,
    ONE_BY_ONE,
    Cell,
    FinishedCell,
    changed_policies,
    evaluate,
    load_cells,
)
from rlpto.evaluation.tables import Results, results, write_csv
from rlpto.experiments.config import Config, resolved_yaml
from rlpto.experiments.experiment import prepare
from rlpto.experiments.inputs import runner_for
from rlpto.experiments.run_folder import (
    EVALUATION,
    Result,
    begin_run,
    command_line,
    differing_keys,
    members,
    read_run_config,
    refuse_foreign,
    run_facts,
    versions,
)
from rlpto.io.errors import ConfigError
from rlpto.io.files import file_there, write_text
from rlpto.io.terminal import say
from rlpto.io.workers import Workers
from rlpto.policies.spec import PROVISION, parse_spec, policy_label
from rlpto.workloads.trace import lacking_types


def jobs_of_file(file: Path) -> list[str]:
    """Return overrides that take jobs from another trace and make all its windows test windows."""
    values: dict[str, object] = {"path": [str(file)], "draws": 0, "train_path": [], "validation_path": []}
    values |= {"source": "trace", "format": None, "skip_days": 0, "jobs": [], "mixture": []}
    values |= {"windows.train": 0, "windows.validation": 0, "windows.test": 1}
    return [*(f"workload.{key}={json.dumps(value)}" for key, value in values.items()), "evaluation.split=test"]


def with_agents(config: Config, run: Path) -> Config:
    """Return the configuration with the run's agents before its policies. An agent that rents nodes is the provisioner
    of the configuration's first policy, or of the run's first policy if the configuration has none. Raises ConfigError
    for a path that contains characters with a meaning in policy specs."""
    if set(str(run)) & set(",>@[]{}"):
        raise ConfigError(f"{run}: expected a path without , > @ and brackets, which end a policy's options: rename it")
    specs, allocates = list[str](), ""
    if config.agent.learns == "nodes":
        first, *_ = config.policies or read_run_config(run).policies
        allocates = f"{parse_spec(first).first}{PROVISION}"
    for folder in members(run):
        run_file(folder)
        label = "agent" if folder == run else f"agent-{folder.name.removeprefix('seed-')}"
        specs.append(f"{allocates}agent:label={label},run={folder}")
    return config.model_copy(update={"policies": (*specs, *config.policies)})


def with_reference(config: Config, chosen: bool) -> Config:
    """Return the configuration with a reference that is one of its policies.

    chosen: if true, the user named the policies, and the first one becomes the reference if the configured one is not
    among them. If false, ConfigError is raised instead. Two equal labels also raise ConfigError.
    """
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


def run_cells(
    config: Config,
    folder: Path,
    run_real: Callable[[Cell], RunRecord] | None = None,
    *,
    fresh: bool,
    progress: bool,
    workers: Workers = ONE_BY_ONE,
) -> list[FinishedCell]:
    """Run the missing cells and return all. Nothing is written before the whole experiment has passed its checks.

    run_real: runs a cell on a real cluster. Default: cells are simulated by the workers. progress: show a bar. Raises
    Interrupted after Ctrl-C.
    """
    experiment = prepare(config)
    cells = experiment.cells()
    experiment.check()
    decides = experiment.outcome()
    if run_real is None:
        experiment.check_simulated()
    else:
        decides["ran_on"] = "ray"
    refuse_foreign(folder, config, fresh=fresh)
    if progress and not fresh:
        for policy in changed_policies(folder, cells):
            say(f"rlpto: policy {policy}: its files have changed; it runs again", err=True)
    begin_run(folder, config, experiment.workload.repetition)
    run_one = run_real or runner_for(workers, config)
    return evaluate(cells, run_one, folder, progress, workers, config=decides, weights=config.reward, fresh=fresh)


def write_results(config: Config, finished: list[FinishedCell], folder: Path, *, report: bool) -> Results:
    """Write tables of finished cells as CSV; with `report` also plots and the report."""
    finished = labelled(finished)
    by_label = {policy_label(spec): spec for spec in config.policies}
    reference = config.evaluation.reference
    experiment = prepare(config)
    workload, load = experiment.workload, config.workload.load
    repetition = workload.repetition
    found = results(
        finished,
        config.knowledge.text,
        shown_label(by_label.get(reference, reference)),
        seed=config.seed,
        forecast=config.forecast.mode,
        notes=lacking_types([workload.trace(window) for window in workload.names()], experiment.shape.gpu_types)
        + ([repetition.text] if repetition is not None and repetition.is_high else []),
    )
    write_csv(found, folder)
    if report:
        from rlpto.evaluation.node_plots import nodes_plots
        from rlpto.evaluation.plots import all_plots, write_plots
        from rlpto.evaluation.report import About, report_html

        tables = experiment.tables().with_rescale_delay(config.simulator.rescale_delay)
        delays = {
            job_type.model: delay for job_type, delay in zip(tables.types, tables.rescale_delay.tolist(), strict=True)
        }
        plots = [*all_plots(found, finished, delays), *nodes_plots(found, finished)]
        write_plots(plots, folder / "plots")
        about = About(
            title=config.name,
            trace=workload.description + ("" if load is None else f", arrivals scaled to a load of {load:g}"),
            config=resolved_yaml(config),
            commands=[command_line()],
            versions=versions(),
            facts=run_facts(config) | ({} if repetition is None else {"Recorded jobs": repetition.text}),
        )
        write_text(folder / "report.html", report_html(found, plots, about), "the report")
    return found


def missed_switches(finished: list[FinishedCell]) -> list[str]:
    """Return a line for every run that ended before all its scheduled policies had taken decisions."""
    notes = []
    for done in finished:
        spec = parse_spec(done.cell.policy)
        if spec.later and len(decided := done.record().switches.policy or (spec.first.label,)) <= len(spec.later):
            notes.append(f"{done.cell}: only {', '.join(decided)} took decisions before the run ended")
    return notes


def labelled(finished: list[FinishedCell]) -> list[FinishedCell]:
    """Return the cells with policy labels in place of specs."""
    labels = {spec: shown_label(spec) for spec in {done.cell.policy for done in finished}}
    return [replace(done, cell=replace(done.cell, policy=labels[done.cell.policy])) for done in finished]


@dataclass(frozen=True)
class FinishedRun:
    """A run folder: its short name, its configuration, its finished cells."""

    name: str
    folder: Path
    config: Config
    cells: list[FinishedCell]

    @property
    def windows_and_seeds(self) -> set[tuple[str, int]]:
        """Windows and seeds of the run's cells."""
        return {(done.cell.window, done.cell.seed) for done in self.cells}


def comparable_runs(folders: Sequence[Path]) -> list[FinishedRun]:
    """Read evaluations of the same windows and seeds. Raises ConfigError if windows or seeds differ, and ConfigError or
    CheckpointError if a folder is not a finished evaluation."""
    names = [folder.resolve().name for folder in folders]
    resolved = [_evaluation(folder).resolve() for folder in folders]
    for number, folder in enumerate(folders):
        if resolved[number] in resolved[:number]:
            raise ConfigError(f"{folder}: expected different run folders, got one twice")
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    first, *others = runs = [
        FinishedRun(name, folder, read_run_config(folder), labelled(load_cells(folder)))
        for name, folder in zip(names, map(_evaluation, folders), strict=True)
    ]
    for other in others:
        for key, mine, its in differing_keys(first.config, other.config, Result.CELL):
            if key == "seed" or key.startswith("workload."):
                raise ConfigError(
                    f"{other.folder}: other windows than {first.folder}: {key} is {its}, not {mine}; "
                    "expected runs on the same windows"
                )
        for window, seed in sorted(first.windows_and_seeds ^ other.windows_and_seeds):
            where = first.folder if (window, seed) in other.windows_and_seeds else other.folder
            raise ConfigError(f"{where}: no cells of window {window}, seed {seed}; expected runs on the same windows")
    return runs


def _evaluation(folder: Path) -> Path:
    """Return the folder itself, or the evaluation inside the folder of a training."""
    inside = folder / EVALUATION
    return inside if file_there(inside / CELLS_FILE) and not file_there(folder / CELLS_FILE) else folder


def differences(runs: Sequence[FinishedRun]) -> dict[str, list[str]]:
    """Return the keys in which the configurations differ, with the value in every run as text. The text is "None" if a
    run's configuration lacks the section of the key."""

    def value(part: object, key: str) -> object:
        for name in key.split("."):
            part = getattr(part, name, None)
        return part

    first, *others = [run.config for run in runs]
    keys = dict.fromkeys(key for other in others for key, _, _ in differing_keys(first, other, Result.CELL))
    return {key: [str(value(config, key)) for config in (first, *others)] for key in keys}
