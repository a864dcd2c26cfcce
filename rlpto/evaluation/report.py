"""The report of an evaluation: one self-contained HTML file."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from rlpto.evaluation.formatting import Scale, heading, scale_for
from rlpto.evaluation.metrics import LOWER_BOUND, METRIC, METRICS
from rlpto.evaluation.plots import Plot, png
from rlpto.evaluation.statistics import LEVEL, Comparison
from rlpto.evaluation.tables import Results, Summary, column_scale, percent_change, warnings
from rlpto.io.files import write_text

PAIRED_METRICS = ("reward", "jct_mean", "jct_p95", "queueing_high", "gpu_hours")
"""Metrics of the table of paired differences."""


@dataclass(frozen=True)
class About:
    """Description of a run for the reader.

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


def write_report(path: Path, results: Results, plots: Sequence[Plot], about: About) -> None:
    """Write the report. Raises CheckpointError if `path` cannot be written."""
    write_text(path, report_html(results, plots, about), "the report")


def report_html(results: Results, plots: Sequence[Plot], about: About) -> str:
    """The report as text: styles and images included, no script and no reference to anything outside."""
    compared = {name: {c.policy: c for c in found} for name, found in results.comparisons.items()}
    scales = {metric.name: column_scale(results, metric.name) for metric in METRICS}
    paired_scales = {
        name: scale_for(METRIC[name], [c.difference.estimate for c in compared[name].values()])
        for name in PAIRED_METRICS
    }
    template = _environment().get_template("report_template.html")
    return template.render(
        results=results,
        about=about,
        plots=plots,
        warnings=warnings(results),
        cells=results.cells[results.cells["policy"] == results.policies[0].policy],
        level=f"{LEVEL:.0%}",
        scales=scales,
        heads={name: _head(name, scales[name]) for name in results.key_metrics},
        best={name: _best(results.policies, name) for name in results.key_metrics},
        compared=compared,
        paired_scales=paired_scales,
        paired_heads={name: _head(name, paired_scales[name]) for name in PAIRED_METRICS},
        findings=[finding(policy, c, compared["jct_mean"][policy]) for policy, c in compared["reward"].items()],
        metrics=METRICS,
        heading=heading,
        lower_bound=LOWER_BOUND,
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """The environment that renders the template, with escaping of all values."""
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


def _head(name: str, scale: Scale) -> tuple[str, str]:
    """Label of a column, and its unit."""
    label, _, unit = heading(METRIC[name], scale).partition(" [")
    return label, unit.rstrip("]")


def finding(policy: str, reward: Comparison, jct: Comparison) -> str:
    """One sentence on what the paired differences of a policy show, for a reader who knows no statistics."""
    return f"{policy} {_phrase(reward, _REWARD_WORDS)} and {_phrase(jct, _JCT_WORDS)}."


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


def _phrase(comparison: Comparison, words: Mapping[str, str]) -> str:
    """The finding, with its figures in brackets."""
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
    if not difference.bounded:
        return f"{found} ({size}; too few cells for an interval)"
    zero = "excludes" if difference.excludes(0.0) else "includes"
    bounds = f"{scale.signed(difference.low)} to {scale.signed(difference.high)}{unit}"
    return f"{found} ({size}; the {LEVEL:.0%} interval {bounds} {zero} zero)"


def _best(summaries: Sequence[Summary], name: str) -> float | None:
    means = [summary.mean[name].estimate for summary in summaries]
    known = [mean for mean in means if not math.isnan(mean)]
    if METRIC[name].better == "none" or len(known) < 2 or min(known) == max(known):
        return None
    return min(known) if METRIC[name].better == "lower" else max(known)
