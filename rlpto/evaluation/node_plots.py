"""Plot the rented nodes in the report of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rlpto.core.records import RunRecord
from rlpto.core.renting import TICK_S
from rlpto.core.rewards import HOUR
from rlpto.evaluation.metrics import METRIC, scale_for
from rlpto.evaluation.plots import COLOURS, INK, WIDTH, Plot, empty_figure, in_our_style
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.tables import Results

PARTS = {"held by jobs": COLOURS[0], "idle": COLOURS[2], "booting": COLOURS[1]}
"""Parts of the stacked plot of GPUs, from the bottom up, and their colours."""


def nodes_plots(results: Results, finished: Sequence[FinishedCell]) -> list[Plot]:
    """Return a plot of the rented nodes of the highlighted policies on a typical window, or no plot if a policy rents
    none. Raises CheckpointError for an unreadable record."""
    policies = results.highlighted
    window, seed = typical_cell(results)
    runs = {done.cell.policy: done for done in finished if (done.cell.window, done.cell.seed) == (window, seed)}
    records = {policy: runs[policy].record() for policy in policies}
    if not all(len(record.rented.time) for record in records.values()):
        return []
    caption = (
        "Above, GPUs of all nodes and how many the provisioner wanted. Below, idle GPUs and how many it wanted to keep "
        f"beyond the GPUs that jobs hold or wait for (window {window}, seed {seed}: the median by reward). "
        + sentence(results)
    )
    return [Plot("rented_nodes", "Rented nodes", caption, nodes_over_time(records))]


def typical_cell(results: Results) -> tuple[str, int]:
    """Return the window and seed at the median of the differences in reward between the highlighted policies."""
    reward = results.cells.pivot_table(index=["window", "seed"], columns="policy", values="reward", dropna=False)
    policy, *others = results.highlighted
    value = reward[policy] - (reward[others[0]] if others else 0.0)
    window, seed = value.sort_values(kind="stable").index[(len(value) - 1) // 2]
    return str(window), int(seed)


def sentence(results: Results) -> str:
    """Return a sentence with the highlighted policies' GPU-hours of nodes, idle GPU-hours and waits, means of cells."""
    means = {one.policy: one.mean for one in results.policies if one.policy in results.highlighted}
    shown: dict[str, list[str]] = {policy: [] for policy in results.highlighted}
    for name in ("node_gpu_hours", "idle_gpu_hours", "queueing_mean"):
        scale = scale_for(METRIC[name], [mean[name].estimate for mean in means.values()])
        for policy, mean in means.items():
            shown[policy].append(f"{scale.number(mean[name].estimate)} {scale.unit}")
    text = "; ".join(
        f"under {policy} nodes take {paid}, {idle} of it idle, and jobs wait {wait} on average"
        for policy, (paid, idle, wait) in shown.items()
    )
    return f"{text[0].upper()}{text[1:]}."


def nodes_over_time(records: Mapping[str, RunRecord]) -> Figure:
    """Plot held, idle, booting and wanted GPUs over time for each policy; below, idle GPUs and wanted spare GPUs."""
    figure = empty_figure(WIDTH, 1.0 + 2.2 * len(records))
    panels = figure.subplots(2 * len(records), 1, sharex=True, height_ratios=[2, 1] * len(records))
    for (policy, record), upper, lower in zip(records.items(), panels[::2], panels[1::2], strict=True):
        rented, line = record.rented, {"where": "post", "linewidth": 0.9}
        hours, idle = (rented.time - rented.time[0]) / HOUR, rented.ready - rented.used
        upper.stackplot(hours, rented.used, idle, rented.booting, labels=list(PARTS), colors=list(PARTS.values()),
                        step="post", linewidth=0)  # fmt: skip
        upper.step(hours, rented.wanted, INK, label="wanted", **line)
        upper.set_title(policy, loc="left", fontsize=10, fontweight="bold", color=INK)
        upper.set(ylabel="GPUs", xlim=(0.0, max(hours[-1], TICK_S / HOUR)))
        lower.fill_between(hours, idle, color=PARTS["idle"], step="post", linewidth=0.5)
        lower.step(hours, rented.foreseen, COLOURS[3], label="wanted spare", **line)
    for row in (panels[::2], panels[1::2]):
        highest = max(axes.get_ylim()[1] for axes in row)
        for axes in row:
            in_our_style(axes)
            axes.set_ylim(0, highest)
            axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    panels[-1].set_xlabel("hours")
    entries = {text: mark for axes in panels[:2] for mark, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(entries.values()), list(entries), loc="outside upper left", ncols=5, frameon=False, fontsize=9,
                  labelcolor=INK, handlelength=1.2, columnspacing=1.0)  # fmt: skip
    return figure
