"""The report of an evaluation: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from rlpto.evaluation.formatting import Scale, heading, scale_for
from rlpto.evaluation.metrics import LOWER_BOUND, METRIC, METRICS
from rlpto.evaluation.plots import Plot, all_plots, png
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.statistics import Comparison
from rlpto.evaluation.tables import (
    KEY_METRICS,
    Results,
    Summary,
    column_scale,
    percent_change,
    signed_interval,
    warnings,
)
from rlpto.files import write_text
from rlpto.records import RunRecord

PAIRED_METRICS = ("reward", "jct_mean", "jct_p95", "queueing_high", "gpu_hours")
"""Metrics of the table of paired differences."""


@dataclass(frozen=True)
class About:
    """What was run, in words for the reader.

    title: heading. trace: where the jobs came from. config: the resolved configuration as text.
    commands: what to type to get the same report. versions: of RLPTO, Python and libraries.
    facts: anything further worth a line, by name.
    """

    title: str
    trace: str
    config: str
    commands: Sequence[str]
    versions: Mapping[str, str]
    facts: Mapping[str, str] = field(default_factory=dict)


def records_by_policy(finished: Sequence[FinishedCell]) -> dict[str, list[RunRecord]]:
    """Records of every policy, read from disk, ordered by window and seed so that equal places pair."""
    records: dict[str, list[RunRecord]] = {}
    for done in sorted(finished, key=lambda done: (done.cell.window, done.cell.seed)):
        records.setdefault(done.cell.policy, []).append(done.record())
    return records


def write_report(path: Path, results: Results, plots: Sequence[Plot], about: About) -> None:
    """Write the report. Raises CheckpointError if `path` cannot be written."""
    write_text(path, report_html(results, plots, about), "the report")


def make_plots(results: Results, finished: Sequence[FinishedCell]) -> list[Plot]:
    """Every plot, from the records of the finished cells. Raises CheckpointError if one is unreadable."""
    return all_plots(results, records_by_policy(finished))


def report_html(results: Results, plots: Sequence[Plot], about: About) -> str:
    """The report as text: styles and images included, no script and no reference to anything outside."""
    others = [summary.policy for summary in results.policies if summary.policy != results.reference]
    return (
        _environment()
        .get_template("report_template.html")
        .render(
            title=about.title,
            lead=_lead(results),
            warnings=warnings(results),
            facts=_run_facts(results, about),
            summary=_summary_table(results),
            summary_note=_summary_note(results),
            metrics=_metrics_table(results),
            reference=results.reference,
            paired=_paired_table(results, others) if others else None,
            paired_note=_paired_note(results),
            findings=[
                finding(policy, _of(results, "reward", policy), _of(results, "jct_mean", policy), results.level)
                for policy in others
            ],
            plots=plots,
            commands=about.commands,
            config=about.config,
            methods=_methods(results),
            definitions=METRICS,
            directions={"lower": "lower is better", "higher": "higher is better", "none": "for information"},
        )
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """Where the template is rendered: whatever is put into it is escaped."""
    found = Environment(
        loader=PackageLoader("rlpto.evaluation", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters["image"] = lambda plot: base64.b64encode(png(plot.figure)).decode("ascii")
    return found


class Column(NamedTuple):
    """Head of a column. unit: below it; None: nothing there."""

    label: str
    unit: str | None = None


class Cell(NamedTuple):
    """A cell of a table. below: further lines, smaller. kind: class of its style."""

    text: str
    below: Sequence[str] = ()
    kind: str = ""


class Row(NamedTuple):
    """A row of a table. bound: True for the lower bound."""

    name: str
    cells: Sequence[Cell]
    bound: bool = False


class Table(NamedTuple):
    """A table of the report."""

    head: Sequence[Column]
    rows: Sequence[Row]


def finding(policy: str, reward: Comparison, jct: Comparison, level: float) -> str:
    """One sentence on what the paired differences of a policy show, for a reader who knows no statistics."""
    return f"{policy} {_phrase(reward, _REWARD_WORDS, level)} and {_phrase(jct, _JCT_WORDS, level)}."


_REWARD_WORDS = {
    "better": "earns more reward",
    "worse": "earns less reward",
    "undecided": "shows no certain difference in reward",
    "equal": "earns the same reward in every cell",
}
_JCT_WORDS = {
    "better": "finishes jobs sooner",
    "worse": "finishes jobs later",
    "undecided": "shows no certain difference in mean JCT",
    "equal": "has the same mean JCT in every cell",
}


def _phrase(comparison: Comparison, words: Mapping[str, str], level: float) -> str:
    """What was found, with the figures it rests on in brackets."""
    metric, difference = METRIC[comparison.metric], comparison.difference
    found = words[comparison.verdict]
    if comparison.verdict == "equal":
        return found
    if difference.samples == 0:
        return f"{found} (no cell where both have it)"
    scale = scale_for(metric, [difference.estimate, difference.low, difference.high])
    unit = f" {scale.unit}" if scale.unit else ""
    relative = f", {percent_change(comparison.relative)}" if metric.unit == "s" else ""
    size = f"{scale.signed(difference.estimate)}{unit}{relative}"
    if math.isnan(difference.low):
        return f"{found} ({size}; too few cells for an interval)"
    zero = "excludes" if difference.excludes(0.0) else "includes"
    bounds = f"{scale.signed(difference.low)} to {scale.signed(difference.high)}{unit}"
    return f"{found} ({size}; the {level:.0%} interval {bounds} {zero} zero)"


def _lead(results: Results) -> str:
    best = results.policies[0]
    cells = results.cells[results.cells["policy"] == best.policy]
    jobs = int(cells["jobs"].sum())
    count, windows, seeds = len(results.policies), cells["window"].nunique(), cells["seed"].nunique()
    runs = f"{_count(windows, 'window')} and {_count(seeds, 'seed')}, {jobs:,} jobs in all"
    if count == 1:
        return f"Policy {best.policy} on {runs}. {results.told.capitalize()}."
    return f"{count} policies on the same {runs}. Best mean reward: {best.policy}. {results.told.capitalize()}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _run_facts(results: Results, about: About) -> dict[str, str]:
    return {
        "Trace": about.trace,
        "Windows": ", ".join(str(window) for window in results.cells["window"].unique()),
        "Seeds": ", ".join(str(seed) for seed in sorted(results.cells["seed"].unique())),
        "Knowledge": f"{results.knowledge} ({_KNOWLEDGE.get(results.knowledge, 'as configured')})",
        "Forecast": f"{results.forecast} ({_FORECAST.get(results.forecast, 'as configured')})",
        "Policies": ", ".join(summary.policy for summary in results.policies),
        "Reference": f"{results.reference} (paired differences are from it)",
        **about.facts,
        "Versions": ", ".join(f"{name} {version}" for name, version in about.versions.items()),
    }


_KNOWLEDGE = {
    "exact": "an oracle: policies see the true profile of every job",
    "noisy": "policies see the true profile with errors",
    "online": "policies see what was fitted to the job's own reports",
}


_FORECAST = {
    "off": "nothing is known of jobs to come",
    "on": "from the arrivals so far",
    "perfect": "an oracle: the jobs that will come",
}


def _summary_table(results: Results) -> Table:
    unfinished = any(summary.mean["unfinished"].estimate > 0 for summary in results.policies)
    names = [*KEY_METRICS, *(["unfinished"] if unfinished else [])]
    scales = {name: column_scale(results, name) for name in names}
    best = {name: _best(results.policies, name) for name in names}

    def cell(summary: Summary, name: str) -> Cell:
        interval, scale = summary.mean[name], scales[name]
        low, high = scale.number(interval.low), scale.number(interval.high)
        shines = not summary.is_bound and interval.estimate == best[name]
        below = [] if low == high else [f"{low} to {high}"]
        return Cell(scale.number(interval.estimate), below, "best" if shines else "")

    head = [Column("policy"), *(_column(name, scales[name]) for name in names)]
    rows = [
        Row(summary.policy, [cell(summary, name) for name in names], summary.is_bound) for summary in results.summaries
    ]
    return Table(head, rows)


def _metrics_table(results: Results) -> Table:
    """Metrics down, policies across: mean, and the interquartile mean below it."""
    rows = []
    for metric in METRICS:
        scale = column_scale(results, metric.name)
        cells = [
            Cell(
                scale.number(summary.mean[metric.name].estimate),
                [f"IQM {scale.number(summary.iqm[metric.name].estimate)}"],
            )
            for summary in results.summaries
        ]
        rows.append(Row(heading(metric, scale), cells))
    return Table([Column("metric"), *(Column(summary.policy) for summary in results.summaries)], rows)


def _paired_table(results: Results, others: Sequence[str]) -> Table:
    scales = {
        name: scale_for(METRIC[name], [c.difference.estimate for c in results.comparisons[name]])
        for name in PAIRED_METRICS
    }
    head = [Column("policy"), *(_column(name, scales[name], prefix="Δ ") for name in PAIRED_METRICS)]
    rows = [
        Row(policy, [_compared(_of(results, name, policy), scales[name]) for name in PAIRED_METRICS])
        for policy in others
    ]
    return Table(head, rows)


def _paired_note(results: Results) -> str:
    return (
        f"Mean of policy minus {results.reference} over the same windows and seeds, with its {results.level:.0%} "
        "interval and the share of cells in which the policy does better (ties half). "
        f"{results.told.capitalize()}. Green and red: the interval excludes zero. "
        "Intervals are not corrected for the number of comparisons."
    )


def _summary_note(results: Results) -> str:
    unfinished = sum(summary.mean["unfinished"].estimate > 0 for summary in results.policies)
    note = (
        f"Means over cells with {results.level:.0%} intervals; green: best mean of all policies. "
        f"{results.told.capitalize()}. The {LOWER_BOUND} has every job alone on the cluster from its "
        "submit on, in every epoch as fast as it can be: no policy can beat it."
    )
    return note + (" JCT, queueing and rho cover only the jobs that finished." if unfinished else "")


def _methods(results: Results) -> str:
    return (
        f"A cell is one policy on one window with one seed. Intervals are {results.level:.0%} bootstrap percentile "
        "intervals, drawing one value less than there are and with Student's t levels, so that they hold for few "
        "samples; below six values they are Student's intervals, which are wide. What is sampled are windows: the "
        "seeds of a window are averaged first, for another seed is no further window. With one window the interval "
        "is about seeds on it alone. IQM: mean without the lowest and highest quarter of the windows."
    )


def _of(results: Results, metric: str, policy: str) -> Comparison:
    return next(comparison for comparison in results.comparisons[metric] if comparison.policy == policy)


def _best(summaries: Sequence[Summary], name: str) -> float | None:
    means = [summary.mean[name].estimate for summary in summaries]
    known = [mean for mean in means if not math.isnan(mean)]
    if METRIC[name].better == "none" or len(known) < 2 or min(known) == max(known):
        return None
    return min(known) if METRIC[name].better == "lower" else max(known)


def _column(name: str, scale: Scale, prefix: str = "") -> Column:
    label, _, unit = heading(METRIC[name], scale).partition(" [")
    return Column(f"{prefix}{label}", unit.rstrip("]"))


def _compared(comparison: Comparison, scale: Scale) -> Cell:
    text, _, bounds = signed_interval(comparison.difference, scale).partition(" [")
    share = comparison.improvement.estimate
    below = [bounds.rstrip("]").replace(", ", " to ")] if bounds else []
    below += [f"better in {share:.0%}"] if not math.isnan(share) else []
    return Cell(text, below, comparison.verdict)
