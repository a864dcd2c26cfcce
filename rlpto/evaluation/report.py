"""The report of an evaluation: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from rlpto.evaluation.formatting import Scale, heading, scale_for
from rlpto.evaluation.metrics import LOWER_BOUND, METRIC, METRICS
from rlpto.evaluation.plots import Plot, all_plots, png
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.statistics import Comparison, Interval
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
    template = resources.files("rlpto.evaluation").joinpath("report_template.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=escape(about.title),
        lead=escape(_lead(results)),
        warnings=_warnings(warnings(results)),
        facts=_facts(_run_facts(results, about)),
        summary=_summary_table(results),
        summary_note=escape(_summary_note(results)),
        all_metrics=_metrics_table(results),
        paired=_paired_section(results),
        plots="\n".join(_figure(plot) for plot in plots),
        commands=escape("\n".join(about.commands)),
        config=escape(about.config),
        methods=escape(_methods(results)),
        definitions=_definitions(),
    )


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


def _facts(facts: Mapping[str, str]) -> str:
    return "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())


def _warnings(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "\n".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section class="warnings">\n<h2>Read this first</h2>\n<ul>\n{items}\n</ul>\n</section>'


def _summary_table(results: Results) -> str:
    unfinished = any(summary.mean["unfinished"].estimate > 0 for summary in results.policies)
    names = [*KEY_METRICS, *(["unfinished"] if unfinished else [])]
    scales = {name: column_scale(results, name) for name in names}
    best = {name: _best(results.policies, name) for name in names}
    head = ["policy", *(_column_heading(name, scales[name]) for name in names)]
    rows = []
    for summary in results.summaries:
        cells = [
            _interval_cell(
                summary.mean[name], scales[name], not summary.is_bound and summary.mean[name].estimate == best[name]
            )
            for name in names
        ]
        rows.append(_row(summary, cells))
    return _table(head, rows)


def _metrics_table(results: Results) -> str:
    """Metrics down, policies across: mean, and the interquartile mean below it."""
    head = ["metric", *(escape(summary.policy) for summary in results.summaries)]
    rows = []
    for metric in METRICS:
        scale = column_scale(results, metric.name)
        cells = []
        for summary in results.summaries:
            middle = scale.number(summary.iqm[metric.name].estimate)
            cells.append(f"<td>{scale.number(summary.mean[metric.name].estimate)}<small>IQM {middle}</small></td>")
        rows.append(f"<tr><th>{escape(heading(metric, scale))}</th>{''.join(cells)}</tr>")
    return _table(head, rows)


def _paired_section(results: Results) -> str:
    others = [summary.policy for summary in results.policies if summary.policy != results.reference]
    if not others:
        return ""
    sentences = [
        f"<li>{escape(finding(policy, reward, jct, results.level))}</li>"
        for policy in others
        for reward, jct in [(_of(results, "reward", policy), _of(results, "jct_mean", policy))]
    ]
    scales = {
        name: scale_for(METRIC[name], [c.difference.estimate for c in results.comparisons[name]])
        for name in PAIRED_METRICS
    }
    head = ["policy", *(_column_heading(name, scales[name], prefix="Δ ") for name in PAIRED_METRICS)]
    rows = []
    for policy in others:
        cells = [_comparison_cell(_of(results, name, policy), scales[name]) for name in PAIRED_METRICS]
        rows.append(f"<tr><th>{escape(policy)}</th>{''.join(cells)}</tr>")
    note = (
        f"Mean of policy minus {results.reference} over the same windows and seeds, with its {results.level:.0%} "
        "interval and the share of cells in which the policy does better (ties half). "
        f"{results.told.capitalize()}. Green and red: the interval excludes zero. "
        "Intervals are not corrected for the number of comparisons."
    )
    return (
        f"<section>\n<h2>Paired differences from {escape(results.reference)}</h2>\n"
        f'<ul class="findings">\n{chr(10).join(sentences)}\n</ul>\n'
        f'<div class="scroll">\n{_table(head, rows)}\n</div>\n<p class="note">{escape(note)}</p>\n</section>'
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


def _definitions() -> str:
    direction = {"lower": "lower is better", "higher": "higher is better", "none": "for information"}
    return "\n".join(
        f"<div><dt>{escape(metric.label)} <code>{escape(metric.name)}"
        f"{f' [{escape(metric.unit)}]' if metric.unit else ''}</code></dt>"
        f"<dd>{escape(metric.description)} ({direction[metric.better]})</dd></div>"
        for metric in METRICS
    )


def _figure(plot: Plot) -> str:
    image = base64.b64encode(png(plot.figure)).decode("ascii")
    return (
        f'<figure id="{escape(plot.name)}">\n<h3>{escape(plot.title)}</h3>\n'
        f'<img alt="{escape(plot.title)}: {escape(plot.caption)}" src="data:image/png;base64,{image}">\n'
        f"<figcaption>{escape(plot.caption)}</figcaption>\n</figure>"
    )


def _of(results: Results, metric: str, policy: str) -> Comparison:
    return next(comparison for comparison in results.comparisons[metric] if comparison.policy == policy)


def _best(summaries: Sequence[Summary], name: str) -> float | None:
    means = [summary.mean[name].estimate for summary in summaries]
    known = [mean for mean in means if not math.isnan(mean)]
    if METRIC[name].better == "none" or len(known) < 2 or min(known) == max(known):
        return None
    return min(known) if METRIC[name].better == "lower" else max(known)


def _column_heading(name: str, scale: Scale, prefix: str = "") -> str:
    label, _, unit = heading(METRIC[name], scale).partition(" [")
    return f"{prefix}{escape(label)}<span>{escape(unit.rstrip(']')) or '&nbsp;'}</span>"


def _interval_cell(interval: Interval, scale: Scale, best: bool) -> str:
    number = scale.number(interval.estimate)
    shown = f'<span class="best">{number}</span>' if best else number
    low, high = scale.number(interval.low), scale.number(interval.high)
    return f"<td>{shown}</td>" if low == high else f"<td>{shown}<small>{low} to {high}</small></td>"


def _comparison_cell(comparison: Comparison, scale: Scale) -> str:
    text, _, bounds = signed_interval(comparison.difference, scale).partition(" [")
    share = comparison.improvement.estimate
    below = [bounds.rstrip("]").replace(", ", " to ")] if bounds else []
    below += [f"better in {share:.0%}"] if not math.isnan(share) else []
    lines = "".join(f"<small>{line}</small>" for line in below)
    return f'<td><span class="{comparison.verdict}">{text}</span>{lines}</td>'


def _row(summary: Summary, cells: Iterable[str]) -> str:
    kind = ' class="bound"' if summary.is_bound else ""
    return f"<tr{kind}><th>{escape(summary.policy)}</th>{''.join(cells)}</tr>"


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    headings = "".join(f"<th>{text}</th>" for text in head)
    return f"<table>\n<thead><tr>{headings}</tr></thead>\n<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table>"
