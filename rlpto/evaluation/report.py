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
from rlpto.evaluation.tables import KEY_METRICS, Results, Summary, column_scale, signed_interval, warnings

SHOWN_METRICS = ("jct_mean", "jct_p95", "queueing_high", "utilisation", "gpu_hours", "rescales_per_job")
"""Metrics of the table of policies, besides the reward; `Results.key_metrics` adds metrics of special workloads."""
PAIRED_METRICS = ("jct_mean", "jct_p95", "queueing_high", "gpu_hours")
"""Metrics of the table of paired differences, besides the reward."""


@dataclass(frozen=True)
class About:
    """A run, for the reader. trace: origin of the jobs. config: the resolved configuration. commands: commands that
    reproduce the report. facts: additional properties of the run, by name."""

    title: str
    trace: str
    config: str
    commands: Sequence[str]
    versions: Mapping[str, str]
    facts: Mapping[str, str]


def report_html(results: Results, plots: Sequence[Plot], about: About) -> str:
    """Return the report as text: styles and images included, no script and no reference to anything outside."""
    shown = [*SHOWN_METRICS, *(name for name in results.key_metrics if name not in KEY_METRICS)]
    compared = {name: {c.policy: c for c in found} for name, found in results.comparisons.items()}
    scales = {metric.name: column_scale(results, metric.name) for metric in METRICS}
    paired_scales = {
        name: scale_for(METRIC[name], [c.difference.estimate for c in compared[name].values()])
        for name in ("reward", *PAIRED_METRICS)
    }
    template = _environment().get_template("report_template.html")
    return template.render(
        results=results,
        headline=headline(results),
        about=about,
        plots=plots,
        warnings=warnings(results),
        cells=results.cells[results.cells["policy"] == results.policies[0].policy],
        level=f"{LEVEL:.0%}",
        scales=scales,
        heads={name: _head(name, scales[name]) for name in shown},
        best={name: _best(results.policies, name) for name in ("reward", *shown)},
        compared=compared,
        paired_scales=paired_scales,
        paired_heads={name: _head(name, paired_scales[name]) for name in PAIRED_METRICS},
        metrics=METRICS,
        heading=heading,
        lower_bound=LOWER_BOUND,
    )


def headline(results: Results) -> str:
    """Return the result as one sentence: the reward of the highlighted policy compared with the reference."""
    policy, *others = results.highlighted
    found = next((c for c in results.comparisons["reward"] if c.policy == policy), None)
    if found is None or not found.difference.samples:
        reward = next(one.mean["reward"] for one in results.policies if one.policy == policy)
        text = signed_interval(reward, scale_for(METRIC["reward"], [reward.estimate])).replace("+", "")
        return f"{policy} earns a reward of {text}"
    cells = results.cells[results.cells["policy"] == policy]
    runs = "window" if cells["seed"].nunique() == 1 else "run"
    count = f"{len(cells)} {runs}{'s' if len(cells) > 1 else ''}"
    if found.verdict == "equal":
        return f"{policy} earns the same reward as {others[0]} in {'all ' if len(cells) > 1 else ''}{count}"
    change = signed_interval(found.difference, scale_for(METRIC["reward"], [found.difference.estimate]))
    ahead = f"ahead in {found.wins} of {count}" + (f", equal in {found.ties}" if found.ties else "")
    unclear = "" if found.verdict in ("better", "worse") else ", which may be chance"
    than = "over" if found.difference.estimate > 0 else "against"
    return f"{policy} {change} reward {than} {others[0]}, {ahead}{unclear}"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """Return the environment that renders the template, with escaping of all values."""
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
    """Return the label of a column, and its unit."""
    label, _, unit = heading(METRIC[name], scale).partition(" [")
    return label, unit.rstrip("]")


def _best(summaries: Sequence[Summary], name: str) -> float | None:
    means = [summary.mean[name].estimate for summary in summaries]
    known = [mean for mean in means if not math.isnan(mean)]
    if METRIC[name].better == "none" or len(known) < 2 or min(known) == max(known):
        return None
    return min(known) if METRIC[name].better == "lower" else max(known)
