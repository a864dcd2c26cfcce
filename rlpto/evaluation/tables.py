"""Results as tables, on the terminal and as CSV: every cell, a summary per policy, paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlpto.evaluation.metrics import JCT_METRICS, LOWER_BOUND, METRIC, METRICS, NOTHING, Scale, heading, scale_for
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.statistics import LEVEL, Comparison, Interval, bootstrap_interval, compare
from rlpto.io.files import write_text

KEY_METRICS = (
    "reward",
    "jct_mean",
    "jct_p95",
    "time_to_95",
    "makespan",
    "queueing_high",
    "queueing_low",
    "utilisation",
    "gpu_hours",
    "rescales_per_job",
    "fairness_mean",
    "latency_p99",
)
"""Metrics of the table on the terminal. It also shows `unfinished` if jobs were left, `STOPPING` if jobs may stop
early, `ettr` if nodes may fail, `MONEY` if nodes have a price, and `RENTED` if nodes are rented."""

STOPPING = ("epochs_saved", "accuracy_lost")
"""Metrics of jobs that may stop early."""

MONEY = ("cost", "cost_per_job")
RENTED = ("late_hours", "idle_cost")

SIGNED = ("late_hours", "idle_cost", "accuracy_lost")
"""Metrics that may be below 0, besides the reward and its parts: what a policy saves counts against what it wastes."""

WITH_INTERVAL = ("reward", "jct_mean")
"""Metrics for which the terminal also shows intervals and paired differences."""

FEW_CELLS = 8
"""Intervals of fewer samples are called unreliable."""


@dataclass(frozen=True)
class Summary:
    """One policy over all its cells: means with intervals, by metric."""

    policy: str
    mean: dict[str, Interval]

    @property
    def is_bound(self) -> bool:
        """True for the row of the lower bound, which is not a policy."""
        return self.policy == LOWER_BOUND


@dataclass(frozen=True)
class Results:
    """All data shown by the tables, plots and the report.

    cells: the frame of all cells. summaries: by descending mean reward, the lower bound last.
    comparisons: every policy against `reference`, by metric name. knowledge: exact, noisy or online, followed
    by other settings of knowledge after commas; exact alone is an oracle.
    forecast: mode of arrival forecasts, off or on. notes: additional limits of these results.
    """

    cells: pd.DataFrame
    summaries: list[Summary]
    comparisons: dict[str, list[Comparison]]
    reference: str
    knowledge: str
    forecast: str = "off"
    notes: tuple[str, ...] = ()

    @property
    def bounded(self) -> bool:
        """True if there is a lower bound, which requires true speeds."""
        return any(summary.is_bound for summary in self.summaries)

    @property
    def known(self) -> str:
        """Knowledge of present jobs and forecasts of arrivals, for captions."""
        return f"knowledge: {self.knowledge}; forecast: {self.forecast}"

    @property
    def setting(self) -> str:
        """Knowledge, forecasts, and numbers of windows and seeds, for captions of tables."""
        return f"{self.known}; windows: {self.cells['window'].nunique()}, seeds: {self.cells['seed'].nunique()}"

    @property
    def policies(self) -> list[Summary]:
        """Summaries without the lower bound."""
        return [summary for summary in self.summaries if not summary.is_bound]

    @property
    def highlighted(self) -> tuple[str, ...]:
        """The policy that a reader looks for, and the reference: the best agent, or else the best other policy."""
        others = [summary.policy for summary in self.policies if summary.policy != self.reference]
        agents = [policy for policy in others if policy.startswith("agent")]
        return (*(agents or others)[:1], self.reference)

    @property
    def unfinished(self) -> bool:
        """True if a policy has left jobs unfinished."""
        return any(summary.mean["unfinished"].estimate > 0 for summary in self.policies)

    @property
    def key_metrics(self) -> list[str]:
        """Metrics of the tables of policies."""
        further = [name for name in (*STOPPING, *MONEY, *RENTED) if self._defined(name)]
        if self._defined("lost_gpu_hours"):
            further.append("ettr")
        return [*KEY_METRICS, *further, *(["unfinished"] if self.unfinished else [])]

    def _defined(self, metric: str) -> bool:
        """True if a metric has a value for any policy."""
        return any(math.isfinite(one.mean[metric].estimate) for one in self.policies)


def frame(finished: Sequence[FinishedCell], knowledge: str, forecast: str = "off") -> pd.DataFrame:
    """Return a table with one row per cell: policy, knowledge, window, seed and every metric. If every cell has a lower
    bound, the bound is added as another policy, with exact knowledge. It has no JCTs for windows and seeds on which a
    policy left jobs unfinished: the bound covers all jobs, and such a policy's JCTs only some of them.

    knowledge, forecast: fields of `Results`; a forecast other than off is added as the last column.
    """
    rows: list[dict[str, object]] = []
    bounds: dict[tuple[str, int], dict[str, Any]] = {}
    for done in finished:
        place = {"window": done.cell.window, "seed": done.cell.seed}
        rows.append({"policy": done.cell.policy, "knowledge": knowledge, **place, **done.metrics})
        bound = {"policy": LOWER_BOUND, "knowledge": "exact", **place, **done.bound}
        where = done.cell.window, done.cell.seed
        if where not in bounds or (done.bound and done.bound["jct_mean"] < bounds[where].get("jct_mean", 0.0)):
            bounds[where] = bound  # the lowest, as policies that may choose batch sizes can be faster
    for where in {(done.cell.window, done.cell.seed) for done in finished if done.metrics["unfinished"] > 0}:
        bounds[where] |= dict.fromkeys(JCT_METRICS, math.nan)
    columns = ["policy", "knowledge", "window", "seed", *METRIC]
    bounded = all(done.bound for done in finished)
    found = pd.DataFrame([*rows, *(bounds.values() if bounded else ())], columns=columns)
    return found if forecast == "off" else found.assign(forecast=forecast)


def results(
    finished: Sequence[FinishedCell],
    knowledge: str,
    reference: str | None = None,
    seed: int = 0,
    forecast: str = "off",
    notes: Sequence[str] = (),
) -> Results:
    """Compute summaries and paired differences of finished cells.

    reference: policy with which the others are compared. Default: the first policy. knowledge, forecast, notes: fields
    of `Results`.
    """
    cells = frame(finished, knowledge, forecast)
    reference = finished[0].cell.policy if reference is None else reference
    compared = [metric.name for metric in METRICS if metric.better != "none"]
    comparisons = {name: compare(cells, reference, name, seed) for name in compared}
    summaries = [
        _summary(str(policy), rows, seed)
        for policy, rows in cells.sort_values(["window", "seed"]).groupby("policy", sort=False)
    ]

    def rank(summary: Summary) -> tuple[bool, float]:
        reward = summary.mean["reward"].estimate
        return summary.is_bound, math.inf if math.isnan(reward) else -reward

    return Results(cells, sorted(summaries, key=rank), comparisons, reference, knowledge, forecast, tuple(notes))


def warnings(results: Results) -> list[str]:
    """Return sentences on limits of these results; empty if there are none."""
    notes = list(results.notes)
    for summary in results.policies:
        left = results.cells.loc[results.cells["policy"] == summary.policy, "unfinished"]
        if left.sum() > 0:
            notes.append(
                f"{summary.policy} left {left.sum():,.0f} jobs unfinished in {(left > 0).sum()} of {len(left)} cells: "
                "they are missing from its JCT, queueing and fairness figures, which look better than they are."
            )
    count = max(summary.mean["reward"].samples for summary in results.policies)
    if count < FEW_CELLS:
        notes.append(
            f"Intervals rest on only {count} independent {'sample' if count == 1 else 'samples'} per policy "
            f"and are unreliable: use {FEW_CELLS} or more windows."
        )
    if results.cells["window"].nunique() == 1:
        notes.append("All runs are on one window: the results say nothing about other times of the trace.")
    if results.knowledge == "exact":
        notes.append(
            "Knowledge is exact: policies were given the true remaining work and speed of every job, "
            "which no real scheduler knows."
        )
    return notes


def summary_table(results: Results) -> Table:
    """Tabulate the key metrics of every policy for the terminal, in 120 columns."""
    names = results.key_metrics
    caption = f"{results.setting}; means over cells, [{LEVEL:.0%} interval]"
    if results.unfinished:
        caption += "; jobs were left unfinished: JCT and queueing cover only those that finished"
    table = make_table("Policies, best reward first", caption)
    scales = {name: column_scale(results, name) for name in names}
    for name in names:
        wrapped = heading(METRIC[name], scales[name]).replace(" [", "\n\\[").replace(" ", "\n", 1)
        table.add_column(wrapped, justify="right")
    for summary in results.summaries:
        cells = [_interval_text(summary.mean[name], scales[name], name in WITH_INTERVAL) for name in names]
        table.add_row(escape(summary.policy), *cells, style="italic dim" if summary.is_bound else None)
    return table


def paired_table(results: Results) -> Table:
    """Tabulate the differences from the reference policy, paired by cell, for the terminal."""
    caption = f"{results.setting}; differences on the same windows and seeds, [{LEVEL:.0%} interval]"
    table = make_table(f"Paired differences from {escape(results.reference)}", caption)
    rows: dict[str, list[str]] = {
        summary.policy: [] for summary in results.policies if summary.policy != results.reference
    }
    for name in WITH_INTERVAL:
        comparisons = results.comparisons[name]
        scale = scale_for(METRIC[name], [abs(c.difference.estimate) for c in comparisons])
        relative = METRIC[name].unit == "s"
        titles = [heading(METRIC[name], scale).replace("[", "\\["), *(["relative"] if relative else []), "P(better)"]
        for title in titles:
            table.add_column(title, justify="right")
        table.add_column("verdict")
        for c in comparisons:
            rows[c.policy] += [
                signed_interval(c.difference, scale).replace("[", "\\["),
                *([percent_change(c.relative)] if relative else []),
                f"{c.improvement.estimate:.2f}" if c.difference.samples else NOTHING,
                _VERDICTS[c.verdict],
            ]
    for policy, texts in rows.items():
        table.add_row(escape(policy), *texts)
    return table


def print_results(results: Results, console: Console) -> None:
    """Print both tables and the warnings."""
    console.print(summary_table(results))
    if len(results.policies) > 1:
        console.print()
        console.print(paired_table(results))
    for note in warnings(results):
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False)


def write_csv(results: Results, folder: Path) -> None:
    """Write cells.csv, summary.csv and paired.csv (one row per policy and metric) to `folder`.

    Raises CheckpointError if a file cannot be written.
    """
    tables = {
        "cells.csv": results.cells,
        "summary.csv": pd.DataFrame(_summary_rows(results)),
        "paired.csv": pd.DataFrame(_paired_rows(results), columns=_PAIRED_COLUMNS),
    }
    for name, table in tables.items():
        write_text(folder / name, table.to_csv(index=False, lineterminator="\n"), "a table")


def column_scale(results: Results, name: str) -> Scale:
    """Return the scale on which the means of one metric are shown for all policies."""
    return scale_for(METRIC[name], [summary.mean[name].estimate for summary in results.summaries])


def signed_interval(interval: Interval, scale: Scale) -> str:
    """Format a difference with its sign and, if it has one, its interval."""
    text = scale.signed(interval.estimate)
    if not interval.bounded:
        return text
    return f"{text} [{scale.signed(interval.low)}, {scale.signed(interval.high)}]"


def percent_change(share: float) -> str:
    """Format a relative difference in percent, with its sign."""
    return NOTHING if math.isnan(share) else f"{100 * share:+.1f} %"


def make_table(title: str, caption: str) -> Table:
    """Make a table for the terminal with a column of policies and no rows."""
    table = Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("policy", overflow="fold", min_width=8)
    return table


_VERDICTS = {"better": "[green]better", "worse": "[red]worse", "equal": "equal", "undecided": "undecided"}
_PAIRED_COLUMNS = [
    "policy", "reference", "knowledge", "metric", "samples", "difference", "low", "high", "relative",
    "p_better", "p_better_low", "p_better_high", "wins", "ties", "verdict",
]  # fmt: skip


def _summary(policy: str, rows: pd.DataFrame, seed: int) -> Summary:
    windows = rows["window"].tolist()

    def interval(name: str) -> Interval:
        found = bootstrap_interval(rows[name].to_numpy(dtype=float), windows, seed=seed)
        if name.startswith("reward") or name in SIGNED:
            return found
        return found.within(0.0, 1.0 if METRIC[name].unit == "share" else math.inf)

    return Summary(policy, {name: interval(name) for name in METRIC})


def _interval_text(interval: Interval, scale: Scale, with_bounds: bool) -> str:
    text = scale.number(interval.estimate)
    if not with_bounds or not interval.bounded:
        return text
    return f"{text}\n[dim]\\[{scale.number(interval.low)}, {scale.number(interval.high)}][/dim]"


def _summary_rows(results: Results) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for summary in results.summaries:
        knowledge = "exact" if summary.is_bound else results.knowledge
        for name in METRIC:
            mean = summary.mean[name]
            row = {"policy": summary.policy, "knowledge": knowledge, "metric": name, "samples": mean.samples}
            rows.append(row | {"mean": mean.estimate, "low": mean.low, "high": mean.high})
    return rows


def _paired_rows(results: Results) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, c in ((name, comparison) for name, found in results.comparisons.items() for comparison in found):
        d, p = c.difference, c.improvement
        figures = (d.samples, d.estimate, d.low, d.high, c.relative, p.estimate, p.low, p.high, c.wins, c.ties)
        setting = (c.policy, results.reference, results.knowledge, name)
        rows.append(dict(zip(_PAIRED_COLUMNS, (*setting, *figures, c.verdict), strict=True)))
    return rows
