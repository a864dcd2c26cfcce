"""`rlpto compare`: two or more runs of the same windows, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlpto.cli.common import EXPERIMENTS, Verb, make_console, make_table
from rlpto.io.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from rlpto.experiments.evaluate import FinishedRun

SHOWN = ("reward", "jct_mean", "jct_p95", "utilisation", "rescales_per_job")
"""Metrics of the table."""
PAIRED = SHOWN[:2]
"""Metrics whose paired difference from the first run is shown too."""


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Folders that `rlpto evaluate` wrote.")],
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
        table.add_column(run.name, overflow="fold")
    for key, values in (differences(runs) or {"nothing": [""] * len(runs)}).items():
        table.add_row(key, *map(escape, values))
    return table


def comparison_table(runs: Sequence[FinishedRun]) -> Table:
    """For every policy that two or more runs share: its figures in each, and how they differ from the first."""
    import pandas as pd
    from rich.markup import escape

    from rlpto.evaluation.formatting import heading, scale_for
    from rlpto.evaluation.metrics import LOWER_BOUND, METRIC
    from rlpto.evaluation.statistics import compare as compare_cells
    from rlpto.evaluation.tables import frame, percent_change, signed_interval
    from rlpto.evaluation.tables import make_table as make_policy_table

    cells = pd.concat([frame(run.cells, run.config.knowledge.text).assign(run=run.name) for run in runs])
    means = cells.groupby(["policy", "run"])[list(SHOWN)].mean()
    scales = {name: scale_for(METRIC[name], means[name]) for name in SHOWN}
    caption = f"means over {len(runs[0].places)} cells; differences from {runs[0].name}, cell by cell [95%]"
    table = make_policy_table("Policies by run", escape(caption))
    table.add_column("run", overflow="fold")
    for name in SHOWN:
        table.add_column(heading(METRIC[name], scales[name]).replace(" [", "\n\\["), justify="right")
        if name in PAIRED:
            table.add_column("difference\n ", justify="right")
    for policy, mine in cells.groupby("policy", sort=False):
        base, *others = mine["run"].unique()
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


VERB = Verb(compare, EXPERIMENTS, "rlpto compare runs/quickstart runs/noisy")
