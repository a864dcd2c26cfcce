"""`rlpto evaluate` and `rlpto compare`: run policies on the windows of an experiment, and compare such runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlpto.cli.common import (
    EXPERIMENTS,
    AddressOption,
    OptionalConfig,
    QuietOption,
    RunDirOption,
    SeedOption,
    SetOption,
    Verb,
    WorkersOption,
    chosen_workers,
    make_console,
    make_table,
    read_config,
    waiting,
)
from rlpto.io.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from rlpto.evaluation.runner import FinishedCell
    from rlpto.experiments.config import Config
    from rlpto.experiments.evaluate import FinishedRun

ALL, AGENT = "all", "agent"
"""Names in `--policies`: every policy, and the agents of the run."""
SHOWN = ("reward", "jct_mean", "jct_p95", "utilisation", "rescales_per_job")
"""Metrics in the table of runs."""
PAIRED = SHOWN[:2]
"""Metrics with a paired difference from the first run."""


Where = Literal["sim", "ray", "both"]
"""Place in which jobs run."""


def evaluate(
    config: OptionalConfig = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Evaluate the agents of this run, on the windows of its configuration."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Jobs of another trace, in any format that can be imported.")
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="A,B|all",
            help="Policies to run, instead of the config's: by name, see rlpto policies, as the config labels them, or "
            "your own, my_policy.py:MyPolicy; A>3600:B is A, and B from that second on; all: every installed one, "
            "plug-ins too. With --run its agents are added, and all means every policy of the run's config.",
        ),
    ] = None,
    windows: Annotated[
        Literal["train", "validation", "test", "all"] | None,
        typer.Option(
            help="Windows to run on, instead of the config's; all: of a trace that was not used for training."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most windows, spread over the split.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions of every window, with other jobs.")] = None,
    seed: SeedOption = None,
    set_: SetOption = None,
    run_dir: RunDirOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run everything again, including finished cells.")] = False,
    report: Annotated[bool, typer.Option(help="Draw plots and write report.html.")] = True,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that run cells side by side.")] = 1,
    workers: WorkersOption = None,
    cluster: Annotated[
        Where,
        typer.Option(
            help="sim: simulated, in virtual time; ray: jobs really train, on a Ray cluster; both: one after "
            "the other, and how they differ."
        ),
    ] = "sim",
    profiles: Annotated[
        Path | None, typer.Option(metavar="FILE|FOLDER", help="How fast models train, such as from rlpto profile.")
    ] = None,
    address: AddressOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="ray: after Ctrl-C, let jobs go on training.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Run policies on the same windows and seeds, and compare them.

    Tables, plots and the report show the policies, windows and seeds of this command. Finished cells are kept: the
    same command continues where it was interrupted, and a cell that an earlier command has run is not run again.
    """
    from rlpto.evaluation.runner import cells_of_earlier_runs
    from rlpto.evaluation.tables import print_results
    from rlpto.experiments.config import with_policies
    from rlpto.experiments.evaluate import (
        jobs_of_file,
        missed_switches,
        run_cells,
        with_agents,
        with_reference,
        write_results,
    )

    overrides = [
        *([] if trace is None else jobs_of_file(trace)),
        *(set_ or ()),
        *([] if limit is None else [f"workload.windows.limit={limit}"]),
        *([] if seeds is None else [f"evaluation.seeds={seeds}"]),
        *([] if profiles is None else [f"profiles.folder={json.dumps(str(profiles))}"]),
        *_window_keys(windows, trace),
    ]
    resolved = read_config(_source(config, run), overrides, seed)
    if policies is not None and (run is None or policies.strip() != ALL):
        resolved = with_policies(resolved, _chosen_policies(policies, resolved.policies, run))
    resolved = resolved if run is None else with_agents(resolved, run)
    resolved = with_reference(resolved, policies is not None)
    folder = run_dir or _default_folder(resolved.name, run, trace, cluster)
    console = make_console(quiet)

    def show(title: str, config: Config, finished: list[FinishedCell], folder: Path) -> None:
        if title:
            console.print(f"{title}:", style="bold")
        print_results(write_results(config, finished, folder, report=report), console)
        for note in missed_switches(finished):
            console.print(note, style="yellow")
        if earlier := cells_of_earlier_runs(folder, finished):
            console.print(
                f"{earlier} cells of earlier commands are kept in {folder / 'cells'} and not shown", style="dim"
            )
        where = f"report: {folder / 'report.html'}" if report else f"tables: {folder}"
        console.print(f"\n{where}", style="bold")

    if cluster == "sim":
        for option, given in (("--address", address is not None), ("--keep", keep)):
            if given:
                raise ConfigError(f"{option}: expected --cluster ray or both as well")
        with chosen_workers(workers, jobs) as place:
            finished = run_cells(resolved, folder, fresh=fresh, progress=not quiet, workers=place)
        show("", resolved, finished, folder)
        return
    if workers is not None:
        raise ConfigError("--workers: simulated cells run there, expected --cluster sim")
    if jobs > 1:
        raise ConfigError(f"--jobs {jobs}: on a real cluster cells run one after the other, expected 1")
    from rlpto.evaluation.fidelity import fidelity_table, verdicts
    from rlpto.experiments.on_ray import RealRun, evaluate_both, run_real_cells

    with waiting(quiet) as on_wait:
        options = RealRun(console.print, on_wait, address, fresh, keep, not quiet)
        if cluster == "ray":
            show("", *run_real_cells(resolved, folder, options), folder)
            return
        found = evaluate_both(resolved, folder, options, show)
    console.print()
    console.print(fidelity_table(found))
    for sentence in verdicts(found):
        console.print(sentence)
    console.print(f"\ncomparison: {folder / 'fidelity.csv'}", style="bold")


def _default_folder(name: str, run: Path | None, trace: Path | None, cluster: Where) -> Path:
    """Default folder of results. It is a subfolder for agents of a run, and if the folder has a training."""
    from rlpto.experiments.run_folder import EVALUATION, has_begun

    ending = "" if cluster == "sim" else f"-{cluster}"
    folder = run or Path("runs") / f"{name}{ending}"
    if run is None and not has_begun(folder):
        return folder
    inside = EVALUATION if trace is None else f"{EVALUATION}-{trace.name.partition('.')[0]}"
    return folder / (inside if run is None else f"{inside}{ending}")


def _source(config: Path | None, run: Path | None) -> Path:
    """The file with the configuration to evaluate. Raises ConfigError unless exactly one is given."""
    from rlpto.experiments.run_folder import config_file

    if config is not None and run is None:
        return config
    if run is not None and config is None:
        return config_file(run)
    raise ConfigError("expected either an experiment file or --run RUN")


def _window_keys(windows: str | None, trace: Path | None) -> list[str]:
    """Overrides that choose windows. Raises ConfigError for all windows if some of them were for training."""
    if trace is not None:
        if windows not in (None, ALL):
            raise ConfigError(f"--windows {windows}: all windows of another trace are for testing, expected all")
        return []
    if windows == ALL:
        raise ConfigError("--windows all: training windows are among them; expected --trace FILE, or one of the splits")
    return [] if windows is None else [f"evaluation.split={windows}"]


def _chosen_policies(text: str, configured: Sequence[str], run: Path | None) -> list[str]:
    """Specs of the requested policies; policies of the config may be given by their labels.

    run: its agents are always included, hence the name `agent` adds nothing.
    """
    from rlpto.policies.registry import available, is_complete
    from rlpto.policies.spec import policy_label, split_specs

    if text.strip() == ALL:
        return [name for name, policy in available().items() if is_complete(policy)]
    labels = {policy_label(spec): spec for spec in configured}
    return [labels.get(name, name) for name in split_specs(text) if run is None or name != AGENT]


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders that `rlpto evaluate` wrote.")],
) -> None:
    """Compare two or more evaluations of the same windows, policy by policy, with paired differences."""
    from rlpto.experiments.evaluate import comparable_runs

    if len(runs) < 2:
        raise ConfigError(f"{runs[0]}: one run has nothing to be compared with, expected two or more run folders")
    read = comparable_runs(runs)
    console = make_console()
    console.print(differences_table(read))
    console.print()
    console.print(comparison_table(read))


def differences_table(runs: Sequence[FinishedRun]) -> Table:
    """The keys in which the configurations differ."""
    from rich.markup import escape

    from rlpto.experiments.evaluate import differences

    table = make_table(title="What differs")
    table.add_column("key", style="dim")
    for run in runs:
        table.add_column(escape(run.name), overflow="fold")
    for key, values in (differences(runs) or {"nothing": [""] * len(runs)}).items():
        table.add_row(*map(escape, (key, *values)))
    return table


def comparison_table(runs: Sequence[FinishedRun]) -> Table:
    """Figures of every policy that two or more runs share, and their differences from the first run that has it."""
    import pandas as pd
    from rich.markup import escape

    from rlpto.evaluation.metrics import LOWER_BOUND, METRIC, heading, scale_for
    from rlpto.evaluation.statistics import compare as compare_cells
    from rlpto.evaluation.tables import frame, percent_change, signed_interval
    from rlpto.evaluation.tables import make_table as make_policy_table

    cells = pd.concat([frame(run.cells, run.config.knowledge.text).assign(run=run.name) for run in runs])
    means = cells.groupby(["policy", "run"])[list(SHOWN)].mean()
    scales = {name: scale_for(METRIC[name], means[name]) for name in SHOWN}
    having = {policy: mine["run"].unique() for policy, mine in cells.groupby("policy", sort=False)}
    bases = {names[0] for names in having.values() if len(names) > 1}
    first = bases.pop() if len(bases) == 1 else "the first run that has the policy"
    caption = f"means over {len(runs[0].windows_and_seeds)} cells; differences from {first}, cell by cell [95%]"
    table = make_policy_table("Policies by run", escape(caption))
    table.add_column("run", overflow="fold")
    for name in SHOWN:
        table.add_column(heading(METRIC[name], scales[name]).replace(" [", "\n\\["), justify="right")
        if name in PAIRED:
            table.add_column("difference\n ", justify="right")
    for policy, mine in cells.groupby("policy", sort=False):
        base, *others = having[policy]
        if not others:
            continue
        by_run = mine.assign(policy=mine["run"])
        found = {(name, c.policy): c for name in PAIRED for c in compare_cells(by_run, base, name)}
        for run in (base, *others):
            row = [escape(str(policy)) if run == base else "", escape(run)]
            for name in SHOWN:
                row.append(scales[name].number(float(means[name][(policy, run)])))
                if name in PAIRED and (run == base or policy == LOWER_BOUND):
                    row.append("")
                elif name in PAIRED:
                    c = found[name, run]
                    colour = {"better": "green", "worse": "red"}.get(c.verdict, "default")
                    interval = escape(signed_interval(c.difference, scales[name]))
                    row.append(f"[{colour}]{percent_change(c.relative)}\n[dim]{interval}[/][/]")
            table.add_row(*row, end_section=run == others[-1])
    return table


VERBS = {
    "evaluate": Verb(evaluate, EXPERIMENTS, "rlpto evaluate quickstart --policies fifo,las,index"),
    "compare": Verb(compare, EXPERIMENTS, "rlpto compare runs/quickstart runs/noisy"),
}
