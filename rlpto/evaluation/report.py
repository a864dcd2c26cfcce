"""The report of an evaluation: one self-contained HTML file."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from rlpto.evaluation.metrics import LOWER_BOUND, METRIC, METRICS, Scale, heading, scale_for
from rlpto.evaluation.plots import Plot, png
from rlpto.evaluation.statistics import LEVEL
from rlpto.evaluation.tables import Results, Summary, column_scale, warnings

PAIRED_METRICS = ("reward", "jct_mean", "jct_p95", "queueing_high", "gpu_hours")
"""Metrics of the table of paired differences."""


@dataclass(frozen=True)
class About:
    """A run, for the reader. trace: where the jobs came from. config: the resolved configuration. commands: what to
    type to get the same report. facts: anything further worth a line, by name."""

    title: str
    trace: str
    config: str
    commands: Sequence[str]
    versions: Mapping[str, str]
    facts: Mapping[str, str]


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


def _best(summaries: Sequence[Summary], name: str) -> float | None:
    means = [summary.mean[name].estimate for summary in summaries]
    known = [mean for mean in means if not math.isnan(mean)]
    if METRIC[name].better == "none" or len(known) < 2 or min(known) == max(known):
        return None
    return min(known) if METRIC[name].better == "lower" else max(known)
