"""The plot of profiles by tables of sizes: throughput per GPU by the number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator, StrMethodFormatter

from rlpto.evaluation.plots import COLOURS, in_our_style
from rlpto.performance.profiles import Profile

COLUMNS, WIDTH, HEIGHT = 4, 2.5, 1.8
"""Of the panels: how many stand in a row, and the size of each [inches]."""


def throughput_panels(profiles: Mapping[str, Profile]) -> Figure:
    """Samples per second and GPU at each measured size, on as few nodes as measured: a panel a model, a line a kind."""
    columns = min(COLUMNS, len(profiles))
    rows = math.ceil(len(profiles) / columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows + 0.5), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    lines: dict[str, Artist] = {}
    for number, (name, profile) in enumerate(profiles.items(), 1):
        axes = figure.add_subplot(rows, columns, number)
        in_our_style(axes)
        for kind, law in profile.tables().items():
            seconds: dict[int, float] = {}
            for _, gpus, step in law.steps:  # by nodes where a size has several
                seconds.setdefault(gpus, step)
            speeds = [profile.batch.base / step / gpus for gpus, step in seconds.items()]
            known = list(lines).index(kind) if kind in lines else len(lines)
            (line,) = axes.plot(list(seconds), speeds, "o-", color=COLOURS[known % len(COLOURS)], ms=3, lw=1.2)
            lines.setdefault(kind, line)
        axes.set_title(name, fontsize=9)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=6))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(EngFormatter())
        axes.tick_params(labelsize=7)
    figure.supxlabel("GPUs", fontsize=9)
    figure.supylabel("samples/s per GPU", fontsize=9)
    figure.legend(list(lines.values()), list(lines), loc="outside upper center", ncols=6, frameon=False, fontsize=9)
    return figure
